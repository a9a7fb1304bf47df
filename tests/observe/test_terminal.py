from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tidegate.core.errors import SourceError, TidegateError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.observe.figures import counted, size, span
from tidegate.observe.terminal import Lines, Terminal, Tone, Toned, _Count

ORDERS = StreamId("shop", "orders")


@dataclass
class Outcome:
    status: str = "success"
    rows_extracted: int = 0
    rows_loaded: int = 0
    duration_seconds: float = 1.5
    error: TidegateError | None = None


def terminal(*, fancy: bool = False, quiet: bool = False) -> Terminal:
    return Terminal(io.StringIO(), io.StringIO(), quiet=quiet, fancy=fancy)


def out(shown: Terminal) -> str:
    assert isinstance(shown.out, io.StringIO)
    return shown.out.getvalue()


def err(shown: Terminal) -> str:
    assert isinstance(shown.err, io.StringIO)
    return shown.err.getvalue()


def staged(rows: int) -> Receipt:
    return Receipt("r1", 1, "a1", Window(None, None), 0, None, None, None) if not rows else _receipt(rows)


def _receipt(rows: int) -> Receipt:
    from tidegate.core.receipts import Segment

    segment = Segment("k", rows, 1, "e", "c", 1, 1, Window(None, None), "s")
    return Receipt("r1", 1, "a1", Window(None, None), rows, None, None, segment)


def test_a_plain_table_is_aligned_and_numbers_stand_right() -> None:
    shown = terminal()
    shown.table(["table", "rows"], [["orders", "1,000"], [Toned("x", Tone.BAD), "7"]])
    assert out(shown) == "table    rows\norders  1,000\nx           7\n"


def test_plain_output_has_no_control_characters_whatever_is_shown() -> None:
    shown = terminal()
    shown.show("a\x1b[31mred\rb", Tone.BAD)
    shown.table(["name"], [["t\x07\x1b]0;title\x07"]])
    shown.error("bad\x1b[2J", "hint\x08")
    assert all(sign.isprintable() or sign == "\n" for sign in out(shown) + err(shown))


def test_names_cannot_steer_a_real_terminal_either() -> None:
    shown = terminal(fancy=True)
    shown.show("a\x1b[31mred[bold]b[/bold]")
    assert "\x1b[31m" not in out(shown)
    assert "[bold]" in out(shown)


def test_a_table_too_wide_for_the_terminal_becomes_a_few_lines_for_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    shown = terminal(fancy=True)
    rows = [["shop", "orders", "2025-01-01", "extraordinarily-long"], ["shop", "carts", "–", "short"]]
    shown.table(["pipeline", "table", "up to", "state"], rows)
    assert out(shown).split() == [
        "shop/orders", "up", "to", "2025-01-01", "state", "extraordinarily-long",
        "shop/carts", "state", "short",
    ]  # fmt: skip


def test_signs_that_a_stream_does_not_know_stop_nothing() -> None:
    raw = io.BytesIO()
    shown = Terminal(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO(), fancy=False)
    shown.show("5 € – done")
    assert raw.getvalue() == b"5 ? ? done\n"


def test_secrets_are_taken_out_of_errors() -> None:
    shown = Terminal(io.StringIO(), io.StringIO(), fancy=False, hidden=lambda text: text.replace("pw", "•"))
    shown.error("login with pw refused", "is pw right?")
    assert err(shown) == "error: login with • refused\n hint: is • right?\n"


def test_an_error_is_one_line_and_its_hint_the_next() -> None:
    shown = terminal()
    shown.error("shop/orders: the disk is full", "make room")
    assert err(shown) == "error: shop/orders: the disk is full\n hint: make room\n"
    assert out(shown) == ""


def test_quiet_says_only_what_was_asked_for_and_what_is_wrong() -> None:
    shown = terminal(quiet=True)
    shown.say("by the way")
    with shown.watching() as watcher:
        watcher.started(ORDERS)
        watcher.note(ORDERS, "starts from the beginning")
        watcher.planned(ORDERS, 3, 100)
        watcher.finished(ORDERS, Outcome(rows_extracted=5))
        watcher.finished(ORDERS, Outcome("failed", error=SourceError("no such column", hint="look")))
    assert out(shown) == ""
    assert err(shown) == "error: shop/orders: no such column\n hint: look\n"


def test_lines_tell_a_sync_from_beginning_to_end() -> None:
    shown = terminal()
    with shown.watching() as watcher:
        watcher.started(ORDERS)
        watcher.planned(ORDERS, 3, 100)
        watcher.staged(ORDERS, staged(100))
        watcher.loaded(ORDERS, 100)
        watcher.finished(ORDERS, Outcome(rows_extracted=250, rows_loaded=250))
    assert out(shown).splitlines() == [
        "shop/orders: reading up to 300 rows in 3 chunks",
        "shop/orders: 250 rows extracted, 250 rows loaded in 1.5 s",
    ]


def test_lines_come_every_few_seconds_while_a_table_takes_its_time() -> None:
    shown, times = terminal(), iter([0.0, 1.0, 6.0, 7.0, 12.0])
    lines = Lines(shown, clock=lambda: next(times))
    lines.planned(ORDERS, 9, 100)
    for _ in range(3):
        lines.staged(ORDERS, staged(100))
    lines.loaded(ORDERS, 300)
    assert out(shown).splitlines()[1:] == [
        "shop/orders: 200 rows staged, 7 chunks to go",
        "shop/orders: 300 rows loaded",
    ]


def test_nothing_new_is_said_in_words() -> None:
    shown = terminal()
    with shown.watching() as watcher:
        watcher.finished(ORDERS, Outcome("nothing_new"))
    assert out(shown) == "shop/orders: nothing new\n"


def test_bars_survive_everything_a_sync_can_tell() -> None:
    shown = terminal(fancy=True)
    with shown.watching() as watcher:
        watcher.remark("starting Spark")
        watcher.started(ORDERS)
        watcher.note(ORDERS, "is new")
        watcher.planned(ORDERS, 2, 100)
        watcher.staged(ORDERS, staged(100))
        watcher.staged(ORDERS, staged(0))
        watcher.loaded(StreamId("shop", "orders@ranges"), 5)
        watcher.finished(ORDERS, Outcome("failed", error=SourceError("gone", where="shop/orders")))
    assert "is new" in out(shown)
    assert "error: shop/orders: gone" in err(shown)


def test_rows_a_second_are_told_once_they_can_be_told() -> None:
    now = 100.0
    count = _Count(lambda: now)
    count.planned(3, 100)
    count.staged(100)
    count.staged(100)
    assert count.rate == 0, "two chunks that were proved in the same moment say nothing"
    now += 2
    assert count.rate == 50


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (4.24, "4.2 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_spans_are_read_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == span(timedelta(seconds=seconds)) == text


def test_counts_and_sizes_are_read_easily() -> None:
    assert counted(1, "row") == "1 row"
    assert counted(300_000, "row") == "300,000 rows"
    assert [size(number) for number in (999, 1_500, 2_000_000)] == ["999 B", "1.5 kB", "2.0 MB"]
