"""`watermark import` and `export` in the forms of the S3-Redshift backup tool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.choosing import Chosen, confirm, one_table, read_json
from tidegate.cli.invocation import Invocation
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.core.older import Older, OlderFormat
    from tidegate.core.watermark import StreamId
    from tidegate.sync.takeover import TakeOver, Wish


@dataclass(frozen=True)
class TakingOver:
    """Files of the older tool that are to become marks. All are looked at before any is taken over."""

    invocation: Invocation
    form: OlderFormat
    pipelines: Sequence[str]
    wish: Wish

    def run(self, path: Path, tables: Sequence[str], reason: str | None, *, yes: bool) -> None:
        found = [self._planned(file, tables) for file in _files(path)]
        plans = [(item, plan) for item, plan in found if plan is not None and item is not None]
        if not plans:
            raise UsageError("there is no watermark of what was asked for", where=str(path))
        _demand_one_each([item.stream for item, _ in plans], path)
        for item, plan in plans:
            position = plan.mark.extracted.position or "the beginning"
            self.invocation.terminal.say(f"{item.stream}: goes on after {position}")
            for note in plan.notes:
                self.invocation.terminal.warn(f"{item.stream}: {note}")
        confirm(f"Begin {len(plans)} tables where the older tool has stopped?", yes=yes)
        why = reason or f"taken over from {path.name} ({self.form.value})"
        with ExitStack() as all_held:
            ready = [
                all_held.enter_context(_by_hand(item).taking_over(plan.mark, plan.document, reason=why))
                for item, plan in sorted(plans, key=lambda pair: pair[0].stream)
            ]
            fresh = [begin for begin in ready if begin is not None]
            for begin in fresh:
                begin()
        earlier = len(ready) - len(fresh)
        self.invocation.terminal.say(
            f"{len(fresh):,} marks taken over"
            + (f"; {earlier:,} had been before and are left as they are" if earlier else "")
        )

    def _planned(self, file: Path, tables: Sequence[str]) -> tuple[Chosen, TakeOver] | tuple[None, None]:
        from tidegate.cli.marks_by_hand import described_job
        from tidegate.config.spelling import matches
        from tidegate.core.older import read_older
        from tidegate.state.clock import now
        from tidegate.sync.takeover import take_over

        older: Older = read_older(read_json(file), self.form, str(file))
        if tables and not any(matches(name, older.table) for name in tables):
            return None, None
        item = one_table(self.invocation, self.pipelines, [older.table])
        return item, take_over(older, described_job(item), self.wish, now())


def _demand_one_each(streams: Sequence[StreamId], path: Path) -> None:
    double = next((stream for stream in streams if streams.count(stream) > 1), None)
    if double is not None:
        raise UsageError(f"several of the files are of {double}", where=str(path), hint="keep the newest one")


def _files(path: Path) -> list[Path]:
    """One file, or the folder that all of them were copied to."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def _by_hand(item: Chosen) -> Any:
    from tidegate.cli.marks_by_hand import by_hand

    return by_hand(item.store, [item.pipeline])


def hand_back(invocation: Invocation, items: Sequence[Chosen], form: OlderFormat, path: Path) -> None:
    """Write the state of tables as the older tool would: one file, or a folder with one for each."""
    from tidegate.cli.sync import write_json

    known = [item for item in items if item.stored.watermark is not None]
    if not known:
        raise UsageError("none of these tables has a mark yet")
    if len(known) > 1 and not path.is_dir():
        raise UsageError(
            "the older tool has one file for each table",
            where=str(path),
            hint="name a folder that exists, or one table with -t",
        )
    for file, item in _own_files(known, path).items():
        write_json(file, _document(invocation, item, form))
    invocation.terminal.say(f"{len(known):,} marks saved to {path}")


def _own_files(items: Sequence[Chosen], path: Path) -> dict[Path, Chosen]:
    """Where each one's state goes. The older tool knows no pipelines: tables of two may share a file."""
    files: dict[Path, Chosen] = {}
    for item in items:
        file = path / f"{item.stream.name.replace('/', '_')}.json" if path.is_dir() else path
        other = files.setdefault(file, item)
        if other is not item:
            raise UsageError(
                f"{other.stream} and {item.stream} would go into the same file",
                where=str(file),
                hint="name one pipeline with -p, and give each a folder of its own",
            )
    return files


def _document(invocation: Invocation, item: Chosen, form: OlderFormat) -> dict[str, Any]:
    from tidegate.state.clock import now
    from tidegate.state.process import this_process
    from tidegate.sync.handback import older_document
    from tidegate.sync.library import open_staging
    from tidegate.sync.marks import live_holder

    mark = item.stored.watermark
    if mark is None:
        raise TidegateError("the table has no mark", where=str(item.stream))
    if mark.pending:
        invocation.terminal.warn(
            f"{item.stream}: files of Tidegate are pending; load them with `tidegate sync --load-only` "
            "before the older tool goes on"
        )
    holder = live_holder(item.stored, this_process("tidegate watermark"), now())
    return older_document(
        mark,
        item.store.history(item.stream),
        form,
        url=open_staging(item.pipeline.staging).url,
        order=item.pipeline.processing.strategy,
        held=holder is not None,
    )
