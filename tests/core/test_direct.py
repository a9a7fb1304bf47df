"""Windows that are worked on elsewhere: those that went well tile the line; nothing else moves the mark."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.generated import NOW, watermarks
from tidegate.core import direct, transitions
from tidegate.core.errors import InvariantBroken
from tidegate.core.positions import Position
from tidegate.core.records import TIME_CURSOR, VERSION_CURSOR, closed, current, status_of
from tidegate.core.watermark import RunKind, RunState, StreamId, Watermark, from_json, to_json
from tidegate.core.windows import Window, tiles, within

STREAM = StreamId("gold", "orders")
acts = st.lists(
    st.sampled_from(["plan", "start", "complete", "fail", "retry", "skip", "correct"]), max_size=40
)


def planned(mark: Watermark, reach: int, cursor: tuple[str, ...] = VERSION_CURSOR) -> transitions.Step:
    low = mark.extracted.position
    end = (low.values[0] if low else 0) + reach  # type: ignore[operator]
    return transitions.plan(
        mark,
        run_id=f"run-{mark.runs}",
        kind=RunKind.DIRECT,
        window=Window(low, Position.of(end)),
        now=NOW,
        cursor=cursor,
        schema=("s", {}),
    )


def take(act: str, mark: Watermark, reach: int, now: datetime) -> transitions.Step:
    match act:
        case "plan":
            return planned(mark, reach)
        case "start":
            return direct.start(mark, run_id=f"job-{reach}", now=now)
        case "complete":
            return direct.complete(mark, rows=1, now=now)
        case "fail":
            return transitions.fail(mark, "it failed", now)
        case "retry":
            return direct.retry(mark, now)
        case "skip":
            return direct.skip(mark, reason=None, now=now)
        case _:
            return transitions.move(mark, mark.extracted.position, reason="a test", now=now)


def allowed(mark: Watermark, act: str) -> bool:
    run = mark.open_run
    if act == "plan":
        return run is None or run.state is RunState.FAILED
    return act == "correct" or run is not None


@given(acts=acts, reaches=st.lists(st.integers(0, 5), min_size=40, max_size=40))
def test_windows_that_went_well_tile_the_line(acts: list[str], reaches: list[int]) -> None:
    mark = transitions.new(STREAM, VERSION_CURSOR, NOW)
    done: list[Window] = []
    now = NOW
    for act, reach in zip(acts, reaches, strict=False):
        now += timedelta(seconds=1)
        step = partial(take, act, mark, reach, now)
        if not allowed(mark, act):
            if act != "fail":
                with pytest.raises(InvariantBroken):
                    step()
            continue
        before, (mark, events) = mark, step()
        assert from_json(to_json(mark)) == mark
        assert events[0].data.get("run") == mark.runs or act == "correct"
        if act == "complete":
            assert before.open_run is not None
            done.append(before.open_run.window)
        else:
            assert mark.extracted.position == before.extracted.position
        if act in ("start", "fail", "retry"):
            assert before.open_run is not None
            assert mark.open_run is not None
            assert (mark.open_run.window, mark.open_run.number) == (
                before.open_run.window,
                before.open_run.number,
            )
    if done:
        assert tiles(Window(None, mark.extracted.position), done)
        assert mark.loaded.position == mark.extracted.position


def test_a_window_that_does_not_begin_at_the_mark_is_refused() -> None:
    mark, _ = planned(transitions.new(STREAM, VERSION_CURSOR, NOW), 5)
    mark, _ = direct.complete(mark, rows=1, now=NOW)
    with pytest.raises(InvariantBroken, match="does not begin at the mark"):
        transitions.plan(
            mark,
            run_id="r",
            kind=RunKind.DIRECT,
            window=Window(Position.of(7), Position.of(9)),
            now=NOW,
            cursor=VERSION_CURSOR,
        )


def test_what_is_staged_is_not_completed_by_a_word() -> None:
    mark = transitions.new(STREAM, ("id",), NOW)
    mark, _ = transitions.plan(
        mark,
        run_id="r",
        kind=RunKind.INCREMENTAL,
        window=Window(None, Position.of(9)),
        now=NOW,
        cursor=("id",),
        schema=("s", {}),
    )
    with pytest.raises(InvariantBroken, match="stages what it reads"):
        direct.complete(mark, rows=1, now=NOW)


@pytest.mark.parametrize(
    ("cursor", "names"),
    [
        (VERSION_CURSOR, ["PLANNED", "PLANNED", "FAILED", "PLANNED", "COMPLETED"]),
        (TIME_CURSOR, ["READY", "RUNNING", "FAILED", "READY", "READY"]),
    ],
)
def test_the_outside_sees_one_state_machine_under_two_sets_of_names(
    cursor: tuple[str, ...], names: list[str]
) -> None:
    mark, _ = planned(transitions.new(STREAM, cursor, NOW), 5, cursor)
    seen = [mark]
    seen.append(direct.start(seen[-1], run_id="r", now=NOW)[0])
    seen.append(transitions.fail(seen[-1], "it failed", NOW)[0])
    seen.append(direct.retry(seen[-1], NOW)[0])
    seen.append(direct.complete(seen[-1], rows=3, now=NOW)[0])
    assert [status_of(item) for item in seen] == names
    assert current(seen[2]).failed_at == NOW
    assert current(seen[3]).error_message == "it failed"  # kept until it has gone well
    following, _ = planned(seen[-1], 5, cursor)
    rows = [closed(*pair) for pair in zip(seen, [*seen[1:], following], strict=True)]
    [row] = [row for row in rows if row is not None]  # one record for one window
    assert (row.status, row.records_processed) == ("COMPLETED" if cursor == VERSION_CURSOR else "SUCCESS", 3)


@given(before=st.none() | watermarks, after=watermarks)
def test_every_watermark_has_a_record(before: Watermark | None, after: Watermark) -> None:
    assert current(after).pipeline_name == after.stream.pipeline
    closed(before, after)


@given(low=st.none() | st.integers(0, 9), high=st.integers(0, 9), value=st.integers(0, 9))
def test_a_column_is_within_a_window_as_a_position_is(low: int | None, high: int, value: int) -> None:
    if low is not None and high < low:
        low, high = high, low
    window = Window(None if low is None else Position.of(low), Position.of(high))
    assert within(value, low, high) == (Position.of(value) in window)
