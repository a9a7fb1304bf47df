"""What people see: lines, tables and progress.

In a terminal it has colours and moving bars, through Rich, which is imported only then. Everywhere else it is
plain lines: no colours, no control characters, so that it can be read in a log or by another program.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from tidegate.observe.figures import counted, span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.text import Text

    from tidegate.core.errors import TidegateError
    from tidegate.core.receipts import Receipt
    from tidegate.core.watermark import StreamId


class Tone(StrEnum):
    """What a word means, not how it looks."""

    PLAIN = ""
    STRONG = "bold"
    FAINT = "dim"
    GOOD = "green"
    WARN = "yellow"
    BAD = "bold red"


@dataclass(frozen=True, slots=True)
class Toned:
    text: str
    tone: Tone = Tone.PLAIN


Cell = str | Toned

_NUMBER = re.compile(r"[-–+]?[\d,.]+( ?(%|s|B|kB|MB|GB|TB))?|–|")


class Terminal:
    """Where people read. `out` takes what was asked for, `err` takes warnings and errors."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        quiet: bool = False,
        fancy: bool | None = None,
        hidden: Callable[[str], str] = str,
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.quiet = quiet
        self._hidden = hidden
        """Takes secrets out of what drivers say: errors quote them, and may quote too much."""
        self.fancy = _can_be_fancy(self.out) if fancy is None else fancy
        self._turn = threading.RLock()

    def say(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        """A line about what is going on; silent when only warnings and errors are wanted."""
        if not self.quiet:
            self.show(text, tone)

    def show(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        """A line that was asked for."""
        if self.fancy:
            self.console.print(_text(Toned(text, tone)), soft_wrap=True)
            return
        self._print(text, self.out)

    def warn(self, text: str) -> None:
        self._aloud("warning", Tone.WARN, text, None)

    def error(self, text: str, hint: str | None = None) -> None:
        """What happened and where on one line, what to do about it on the next."""
        self._aloud("error", Tone.BAD, text, hint)

    def _aloud(self, word: str, tone: Tone, text: str, hint: str | None) -> None:
        lines = [(f"{word}: ", tone, self._hidden(text))]
        if hint:
            lines.append((" " * (len(word) - len("hint")) + "hint: ", Tone.FAINT, self._hidden(hint)))
        for label, colour, rest in lines:
            if self._err_fancy:
                from rich.text import Text

                line = Text.assemble((label, colour.value), _printable(rest))
                self._err_console.print(line, soft_wrap=True)
            else:
                self._print(f"{label}{rest}", self.err)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        if not self.fancy:
            self._print("\n".join(plain_table(headings, rows)), self.out)
            return
        columns = [[heading, *(row[i] for row in rows)] for i, heading in enumerate(headings)]
        widths = _fitted(columns, self.console.width - _BETWEEN * len(columns))
        if widths is None:
            self._records(headings, rows)
        else:
            self._rich_table(headings, rows, widths)

    def _rich_table(
        self, headings: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int]
    ) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, heading in enumerate(headings):
            right = _numeric([row[number] for row in rows])
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(heading, justify=justify, width=widths[number], overflow="fold")
        for row in rows:
            table.add_row(*(_text(cell) for cell in row))
        self.console.print(table)

    def _records(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Too wide for this terminal: each row becomes a few lines, and what is empty is left out."""
        from rich.text import Text

        margin = max(map(len, headings)) + _BETWEEN
        named = 2 if list(headings[:2]) == ["pipeline", "table"] else 1
        for row in rows:
            title = "/".join(_printable(_plain(cell)) for cell in row[:named])
            self.console.print(Text.assemble("\n", (title, Tone.STRONG.value)))
            for heading, cell in zip(headings[named:], row[named:], strict=True):
                if _plain(cell) not in ("", "–"):
                    label = (f"  {heading}".ljust(margin), Tone.FAINT.value)
                    self.console.print(Text.assemble(label, _text(cell)), soft_wrap=True)
        self.console.print()

    def _print(self, text: str, stream: TextIO) -> None:
        # A stream that knows fewer signs than we write shows a question mark, and stops nothing.
        encoding = getattr(stream, "encoding", None) or "utf-8"
        known = _printable(text).encode(encoding, "replace").decode(encoding)
        with self._turn:
            print(known, file=stream, flush=True)

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Somebody watches a sync: bars in a terminal, lines elsewhere, only errors when quiet."""
        if self.quiet:
            yield OnlyErrors(self)
        elif self.fancy:
            with Bars(self) as bars:
                yield bars
        else:
            yield Lines(self)

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(file=self.out, highlight=False, markup=False, emoji=False)

    @cached_property
    def _err_fancy(self) -> bool:
        return self.fancy and _can_be_fancy(self.err)

    @cached_property
    def _err_console(self) -> Console:
        from rich.console import Console

        # One console for one screen: a second one would write through the first one's moving bars.
        if self.out is self.err or (_can_be_fancy(self.out) and _can_be_fancy(self.err)):
            return self.console
        return Console(file=self.err, highlight=False, markup=False, emoji=False)


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Columns aligned by blanks; numbers to the right."""
    cells = [list(headings), *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(headings))]
    right = [_numeric([row[number] for row in rows]) for number in range(len(headings))]
    lines = []
    for row in cells:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return lines


_BETWEEN = 3
"""Columns of the terminal between two columns of a table."""


def _fitted(columns: Sequence[Sequence[Cell]], room: int) -> list[int] | None:
    """Widths that fit into the room, breaking lines between words only; None if there are none."""
    widths = [max(len(_plain(cell)) for cell in cells) for cells in columns]
    least = [
        max((len(word) for cell in cells for word in _plain(cell).split()), default=0) for cells in columns
    ]
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda i: widths[i] - least[i])
        widths[widest] -= 1
    return widths


def _plain(cell: Cell) -> str:
    return " ".join((cell.text if isinstance(cell, Toned) else cell).split("\n"))


def _numeric(cells: Sequence[Cell]) -> bool:
    texts = [_plain(cell) for cell in cells]
    return any(text.strip("–") for text in texts) and all(_NUMBER.fullmatch(text) for text in texts)


def _text(cell: Cell) -> Text:
    from rich.text import Text

    toned = cell if isinstance(cell, Toned) else Toned(cell)
    return Text(_printable(toned.text), style=toned.tone.value)


def _printable(text: str) -> str:
    """Names and messages come from outside, and must not steer the terminal they are shown in."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\ufffd" for sign in text)


def _can_be_fancy(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:  # it was closed
        return False


# --- Watching a sync -----------------------------------------------------------


class Outcome(Protocol):
    """What is shown of a table's result."""

    @property
    def status(self) -> str: ...
    @property
    def rows_extracted(self) -> int: ...
    @property
    def rows_loaded(self) -> int: ...
    @property
    def duration_seconds(self) -> float: ...
    @property
    def error(self) -> TidegateError | None: ...


class Watcher(Protocol):
    """What a running sync tells, and beside it, remarks of those who run it."""

    def started(self, stream: StreamId) -> None: ...
    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None: ...
    def staged(self, stream: StreamId, receipt: Receipt) -> None: ...
    def loaded(self, stream: StreamId, rows: int) -> None: ...
    def note(self, stream: StreamId, text: str) -> None: ...
    def finished(self, stream: StreamId, result: Outcome) -> None: ...
    def remark(self, text: str) -> None: ...


class OnlyErrors:
    """Says what went wrong, and nothing else."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def started(self, stream: StreamId) -> None:
        pass

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        pass

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        pass

    def loaded(self, stream: StreamId, rows: int) -> None:
        pass

    def note(self, stream: StreamId, text: str) -> None:
        pass

    def remark(self, text: str) -> None:
        pass

    def finished(self, stream: StreamId, result: Outcome) -> None:
        error = result.error
        if error is not None:
            self._terminal.error(f"{place_in_words(stream, error.where)}: {error.message}", error.hint)


def place_in_words(stream: StreamId, where: str | None) -> str:
    """The table, and what the error adds to it."""
    table = str(stream)
    if where is None or where in table:
        return table
    return where if table in where else f"{table}, {where}"


class Lines(OnlyErrors):
    """Plain lines, not more often than every few seconds for a table that takes its time."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(terminal)
        self._clock = clock
        self._counts: dict[StreamId, _Count] = {}
        self._said: dict[StreamId, float] = {}

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        count = self._counts.setdefault(stream, _Count())
        count.planned(chunks, batch_size)
        rows = f"up to {count.expected:,} rows in " if chunks > 1 else ""
        self._terminal.say(f"{stream}: reading {rows}{counted(chunks, 'chunk')}")
        self._said[stream] = self._clock()

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        count = self._counts.setdefault(stream, _Count())
        count.staged(receipt.rows)
        self._now_and_then(stream, f"{counted(count.rows, 'row')} staged, {count.left} chunks to go")

    def loaded(self, stream: StreamId, rows: int) -> None:
        count = self._counts.setdefault(stream, _Count())
        count.loaded += rows
        self._now_and_then(stream, f"{counted(count.loaded, 'row')} loaded")

    def note(self, stream: StreamId, text: str) -> None:
        self._terminal.say(f"{stream}: {text}")

    def remark(self, text: str) -> None:
        self._terminal.say(text)

    def finished(self, stream: StreamId, result: Outcome) -> None:
        super().finished(stream, result)
        if result.error is None:
            self._terminal.say(f"{stream}: {_in_words(result)}")

    def _now_and_then(self, stream: StreamId, text: str) -> None:
        now = self._clock()
        if now - self._said.get(stream, now) >= _SECONDS_BETWEEN_LINES:
            self._said[stream] = now
            self._terminal.say(f"{stream}: {text}")


_SECONDS_BETWEEN_LINES = 5.0


def _in_words(result: Outcome) -> str:
    if not result.rows_extracted and not result.rows_loaded:
        return result.status.replace("_", " ")
    moved = []
    if result.rows_extracted:
        moved.append(f"{counted(result.rows_extracted, 'row')} extracted")
    if result.rows_loaded:
        moved.append(f"{counted(result.rows_loaded, 'row')} loaded")
    return f"{', '.join(moved)} in {span(result.duration_seconds)}"


class _Count:
    """Rows so far, and an estimate of those to come: chunks are full, except the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = 0
        self.left = 0
        self.loaded = 0
        self._batch = 0
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def planned(self, chunks: int, batch_size: int) -> None:
        self.left = chunks
        self._batch = batch_size

    def staged(self, rows: int) -> None:
        self.rows += rows
        self.left = max(0, self.left - 1)
        self._first = self._first or (self._clock(), self.rows)

    @property
    def rate(self) -> float:
        """Rows a second since the first chunk was there; 0 while that cannot be told yet.

        Several chunks are often proved in the same moment.
        """
        began, rows = self._first or (self._clock(), self.rows)
        passed = self._clock() - began
        return (self.rows - rows) / passed if passed >= 1 else 0.0

    @property
    def expected(self) -> int:
        return self.rows + self.left * self._batch


class Bars(OnlyErrors):
    """A bar for each table under way: rows, rows a second, time left, rows loaded."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._progress = _rich_progress(terminal.console)
        self._tasks: dict[StreamId, TaskID] = {}
        self._counts: dict[StreamId, _Count] = {}
        self._remark: TaskID | None = None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, stream: StreamId) -> None:
        self._counts[stream] = _Count()
        self._tasks[stream] = self._progress.add_task(_printable(str(stream)), total=None, rows="", pace="")

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        self._count(stream).planned(chunks, batch_size)
        self._update(stream)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        self._quiet_remark()
        self._count(stream).staged(receipt.rows)
        self._update(stream)

    def loaded(self, stream: StreamId, rows: int) -> None:
        self._count(stream).loaded += rows
        self._update(stream)

    def note(self, stream: StreamId, text: str) -> None:
        self._terminal.say(f"{stream}: {text}", Tone.FAINT)

    def remark(self, text: str) -> None:
        """What the wait is for; it goes when something moves."""
        self._quiet_remark()
        self._remark = self._progress.add_task(_printable(text), total=None, rows="", pace="")

    def finished(self, stream: StreamId, result: Outcome) -> None:
        self._quiet_remark()
        super().finished(stream, result)
        task = self._tasks.pop(stream, None)
        if task is not None:
            self._progress.remove_task(task)

    def _count(self, stream: StreamId) -> _Count:
        # Streams beside a table, such as its ranges, have no bar of their own until something moves.
        if stream not in self._tasks:
            self.started(stream)
        return self._counts[stream]

    def _update(self, stream: StreamId) -> None:
        count = self._counts[stream]
        about = "~" if count.left else ""
        loaded = f", {count.loaded:,} loaded" if count.loaded else ""
        rate = count.rate
        left = f", {span((count.expected - count.rows) / rate)} left" if rate and count.left else ""
        self._progress.update(
            self._tasks[stream],
            completed=count.rows,
            total=count.expected,
            rows=f"{count.rows:,} of {about}{count.expected:,} rows{loaded}",
            pace=f"{rate:,.0f} rows/s{left}" if rate else "",
        )

    def _quiet_remark(self) -> None:
        if self._remark is not None:
            self._progress.remove_task(self._remark)
            self._remark = None


def _rich_progress(console: Console) -> RichProgress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[rows]}", markup=False),
        TextColumn("{task.fields[pace]}", style="cyan", markup=False),
        console=console,
        transient=True,
    )
