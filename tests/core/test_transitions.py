"""No sequence of transitions loses a pending segment, and no mark moves backwards by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.core.generated import NOW
from tidegate.core import transitions
from tidegate.core.errors import InvariantBroken, UsageError
from tidegate.core.lossy import tally
from tidegate.core.positions import Position
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import (
    Candidate,
    Event,
    Run,
    RunKind,
    StreamId,
    Watermark,
    from_json,
    to_json,
)
from tidegate.core.windows import Chunk, Window

STREAM = StreamId("shop", "orders")
steps = st.integers(1, 12)


def number(position: Position | None) -> int:
    """Where a position lies on the line; the beginning lies before everything."""
    if position is None:
        return -1000
    value = position.values[0]
    assert isinstance(value, int)
    return value


def receipt(run: Run, chunk: Chunk, *, rows: int, schema: str = "s0") -> Receipt:
    key = f"{run.id}/{run.chunks_done + chunk.number}"
    segment = Segment(key, rows, rows, "e", "c", run.number, chunk.number, chunk.window, schema)
    return Receipt(
        run.id,
        chunk.number,
        "a",
        chunk.window,
        rows,
        None,
        None,
        segment if rows else None,
        lossy=tally({"born": rows}),
    )


class Life(RuleBasedStateMachine):
    """A stream that is planned, extracted, loaded, interrupted and moved by hand in any order."""

    kind = RunKind.INCREMENTAL
    judged_by: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.mark = transitions.new(STREAM, ("id",), NOW)
        self.history: list[Event] = []
        self.visible: set[str] = set()
        """Every segment that ever was the target's to load."""
        self.proved: set[str] = set()
        """Segments of the current run, each with a receipt."""
        self.numbers = count(1)
        self.now = NOW

    # --- How the state changes -------------------------------------------------

    def become(self, mark: Watermark, events: tuple[Event, ...] = ()) -> None:
        by_hand = any(event.kind == "manual" for event in events)
        before = self.mark
        if not by_hand and self.kind is RunKind.INCREMENTAL:
            assert number(mark.extracted.position) >= number(before.extracted.position)
            assert number(mark.loaded.position) >= number(before.loaded.position)
        assert dict(mark.extracted.lossy).get("born", 0) == mark.extracted.rows_total, "counted like rows"
        assert mark.runs >= before.runs
        assert mark.generation >= before.generation
        assert mark.generation == before.generation or by_hand
        self.mark = mark
        self.history += [Event.from_json(json.loads(json.dumps(event.to_json()))) for event in events]
        self.visible |= {segment.key for segment in mark.pending}
        self.now += timedelta(seconds=1)

    @property
    def run(self) -> Run:
        assert self.mark.open_run is not None
        return self.mark.open_run

    def is_open(self) -> bool:
        return self.mark.open_run is not None

    def in_round(self) -> bool:
        return self.is_open() and self.run.round is not None and not self.run.round.finished

    def at_end(self) -> bool:
        return self.is_open() and not self.in_round() and self.run.progress == self.run.window.high

    # --- A run -----------------------------------------------------------------

    @rule(sizes=st.lists(st.tuples(steps, st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=8))
    def work(self, sizes: list[tuple[int, int, int]]) -> None:
        """Do what comes next, several times."""
        for reach, few, rows in sizes:
            if not self.is_open():
                self.plan(reach, back=few)
            elif self.in_round():
                self.advance(rows, 1 + few)
            elif self.run.round is not None and self.at_end():
                self.end(rows)
                assert self.proved <= {segment.key for segment in self.mark.pending} | self.gone()
                assert self.kind is RunKind.INCREMENTAL or len(self.mark.pending) == len(self.proved)
            else:
                with pytest.raises(InvariantBroken):
                    transitions.finish(self.mark, self.now)
                self.begin(reach, cuts=few)

    def end(self, chance: int) -> None:
        del chance
        self.become(*transitions.finish(self.mark, self.now))

    def plan(self, reach: int, back: int) -> None:
        low = self.mark.extracted.position
        start = Position.of(number(low) - back) if low and back else low
        window = Window(start, Position.of(max(number(low), 0) + reach))
        if self.kind is RunKind.SNAPSHOT:
            window = Window(None, None)
        fingerprint, schema = self.schema()
        self.become(
            *transitions.plan(
                self.mark,
                run_id=f"run-{next(self.numbers)}",
                kind=self.kind,
                window=window,
                now=self.now,
                cursor=("id",),
                schema=(fingerprint, schema),
                lookback=start != low,
                rules=self.judged_by,
            )
        )
        self.proved = set()
        needed = {segment.schema for segment in self.mark.pending} | {fingerprint}
        assert dict(self.mark.schemas).keys() == needed  # and no more: state stays small

    def schema(self) -> tuple[str, Any]:
        fingerprint = f"s{next(self.numbers) % 3}"
        return fingerprint, {"fingerprint": fingerprint}

    def begin(self, step: int, cuts: int) -> None:
        low, end = self.run.progress, self.run.window.high
        first = max(number(low), -50)
        last = first + 20 if end is None else min(first + step, number(end))
        inner = range(first + 1, min(first + 1 + cuts, last))
        window = Window(low, None if end is None else Position.of(last))
        self.become(transitions.begin_round(self.mark, window, [Position.of(i) for i in inner], self.now))

    def advance(self, rows: int, most: int) -> None:
        run = self.run
        assert run.round is not None
        chunks = run.round.chunks[run.round.done :][:most]
        schema = self.mark.schemas[-1][0]
        proofs = [receipt(run, chunk, rows=(rows + i) % 4, schema=schema) for i, chunk in enumerate(chunks)]
        self.proved |= {proof.segment.key for proof in proofs if proof.segment}
        self.become(transitions.advance(self.mark, proofs, self.now))

    # --- What comes between ----------------------------------------------------

    @rule()
    def fail_and_resume(self) -> None:
        self.become(*transitions.fail(self.mark, "it failed", self.now))
        if not self.is_open():
            self.become(transitions.nothing_new(self.mark, self.now))
        elif self.kind is RunKind.SNAPSHOT:
            self.become(transitions.restart_snapshot(self.mark, self.now))
        else:
            self.become(transitions.resume(self.mark, self.schema(), self.now))

    @rule()
    def remember(self) -> None:
        seen = Candidate(Position.of(7), self.now, ("transaction",))
        self.become(transitions.remember(self.mark, (seen,), self.now))

    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        with pytest.raises(InvariantBroken):
            transitions.loaded(self.mark, {"somebody else's"}, self.now)
        if self.mark.pending:
            keys = data.draw(st.sets(st.sampled_from([segment.key for segment in self.mark.pending])))
            self.become(*transitions.loaded(self.mark, keys, self.now))

    # --- By hand ---------------------------------------------------------------

    @rule(act=st.sampled_from(["move", "reset", "load again"]), data=st.data())
    def by_hand(self, act: str, data: st.DataObject) -> None:
        match act:
            case "move":
                place = data.draw(st.none() | st.integers(-10, 60))
                position = None if place is None or self.kind is RunKind.SNAPSHOT else Position.of(place)
                try:
                    step = transitions.move(self.mark, position, reason="a test", now=self.now)
                except UsageError:  # the position lies inside a pending segment, which cannot be cut in two
                    return
            case "reset":
                step = transitions.reset(self.mark, reason="a test", now=self.now)
            case _:
                step = self.load_again(data)
        self.become(*step)

    def load_again(self, data: st.DataObject) -> transitions.Step:
        past = [
            (Segment.from_json(item), event.data["schemas"])
            for event in self.history
            if event.kind == "loaded"
            for item in event.data["segments"]
        ]
        again = dict(data.draw(st.lists(st.sampled_from(past), unique_by=lambda p: p[0].key))) if past else {}
        schemas = {name: value for found in again.values() for name, value in found.items()}
        return transitions.reset_loaded(self.mark, list(again), schemas, reason="a test", now=self.now)

    # --- What always holds -----------------------------------------------------

    @invariant()
    def every_visible_segment_is_pending_loaded_or_spoken_of(self) -> None:
        assert self.visible <= {segment.key for segment in self.mark.pending} | self.gone()

    def gone(self) -> set[str]:
        """What was loaded, or given up with a word."""
        keys: set[str] = set()
        for event in self.history:
            keys |= {item["key"] for item in event.data.get("segments", ())}
            keys |= set(event.data.get("dropped", ())) | set(event.data.get("superseded", ()))
        return keys

    @invariant()
    def no_segment_is_pending_twice(self) -> None:
        keys = [segment.key for segment in self.mark.pending]
        assert len(keys) == len(set(keys))

    @invariant()
    def the_schema_of_every_pending_segment_is_known(self) -> None:
        assert {segment.schema for segment in self.mark.pending} <= dict(self.mark.schemas).keys()

    @invariant()
    def the_state_can_be_written_and_read(self) -> None:
        assert from_json(json.loads(json.dumps(to_json(self.mark)))) == self.mark

    @invariant()
    def loaded_is_never_ahead_of_extracted(self) -> None:
        assert number(self.mark.loaded.position) <= number(self.mark.extracted.position)

    @invariant()
    def a_run_never_passes_the_end_of_its_window(self) -> None:
        run = self.mark.run
        if run is not None and run.window.high is not None:
            assert number(run.progress) <= number(run.window.high)


class JudgedLife(Life):
    """Rows have rules, and runs end as their rows deserve."""

    judged_by = "some rules"

    def end(self, chance: int) -> None:
        before = self.mark
        if chance < 4:
            super().end(chance)
        elif chance < 7:
            self.become(*transitions.quarantine(self.mark, ["why"], self.now))
            assert self.mark.pending == before.pending
            assert self.mark.extracted.position == before.current_run.window.high or before.extracted.position
        else:
            self.become(*transitions.reject(self.mark, ["why"], self.now))
            assert (self.mark.extracted, self.mark.pending) == (before.extracted, before.pending)
            assert self.mark.open_run is None

    @invariant()
    def nothing_that_was_not_judged_is_the_targets_to_load(self) -> None:
        run = self.mark.open_run
        staged = {segment.key for segment in run.staged} if run else set()
        assert staged.isdisjoint(segment.key for segment in self.mark.pending)


class SnapshotLife(Life):
    kind = RunKind.SNAPSHOT

    @invariant()
    def an_unfinished_snapshot_is_never_the_targets_to_load(self) -> None:
        if self.is_open():
            assert not {segment.key for segment in self.run.staged} & {s.key for s in self.mark.pending}


@pytest.mark.parametrize("life", [Life, SnapshotLife, JudgedLife])
def test_no_transition_loses_a_segment_or_moves_a_mark_back(life: type[Life]) -> None:
    run_state_machine_as_test(life, settings=settings(max_examples=100, stateful_step_count=20))


# --- How far everything is loaded ---------------------------------------------


def test_loaded_waits_for_the_first_segment_that_is_still_pending() -> None:
    mark = in_round(cuts=(2, 5))
    run, parts = chunks(mark)
    mark = transitions.advance(mark, [receipt(run, chunk, rows=1) for chunk in parts], NOW)
    assert number(mark.extracted.position) == 10
    mark, _ = transitions.loaded(mark, {"r/1", "r/3"}, NOW)
    assert number(mark.loaded.position) == 2
    mark, _ = transitions.loaded(mark, set(), NOW)
    assert number(mark.loaded.position) == 2
    mark, _ = transitions.loaded(mark, {"r/2"}, NOW)
    assert number(mark.loaded.position) == 10


# --- What is refused ---------------------------------------------------------


def in_round(*, cuts: tuple[int, ...] = (5,)) -> Watermark:
    mark, _ = transitions.plan(
        transitions.new(STREAM, ("id",), NOW),
        run_id="r",
        kind=RunKind.INCREMENTAL,
        window=Window(None, Position.of(10)),
        now=NOW,
        cursor=("id",),
        schema=("s0", {}),
    )
    return transitions.begin_round(mark, Window(None, Position.of(10)), [Position.of(at) for at in cuts], NOW)


def chunks(mark: Watermark) -> tuple[Run, tuple[Chunk, ...]]:
    assert mark.run is not None
    assert mark.run.round is not None
    return mark.run, mark.run.round.chunks


def test_a_window_is_not_replaced_before_it_is_finished() -> None:
    with pytest.raises(InvariantBroken, match="has not finished"):
        transitions.plan(
            in_round(),
            run_id="r2",
            kind=RunKind.INCREMENTAL,
            window=Window(None, Position.of(20)),
            now=NOW,
            cursor=("id",),
            schema=("s0", {}),
        )


def test_receipts_of_the_wrong_chunk_run_or_range_prove_nothing() -> None:
    mark = in_round()
    run, (first, second) = chunks(mark)
    good = receipt(run, first, rows=3)
    for proofs in (
        [],
        [receipt(run, second, rows=3)],
        [good, good],
        [receipt(replace(run, id="another"), first, rows=3)],
        [receipt(run, Chunk(1, Window(None, Position.of(4))), rows=3)],
    ):
        with pytest.raises(InvariantBroken):
            transitions.advance(mark, proofs, NOW)
    assert number(transitions.advance(mark, [good], NOW).extracted.position) == 5


def test_a_receipt_whose_file_holds_other_rows_than_were_read_cannot_be_made() -> None:
    run, (first, _) = chunks(in_round())
    honest = receipt(run, first, rows=3)
    with pytest.raises(ValueError, match="3 staged"):
        replace(honest, rows=4)


def test_a_round_may_not_leave_a_gap() -> None:
    mark = in_round(cuts=())
    run, (only,) = chunks(mark)
    mark = transitions.advance(mark, [receipt(run, only, rows=1)], NOW)
    with pytest.raises(InvariantBroken, match="gap"):
        transitions.begin_round(mark, Window(Position.of(11), Position.of(12)), [], NOW)


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_change_by_hand_needs_a_reason(reason: str) -> None:
    mark = transitions.new(STREAM, ("id",), NOW)
    acts: list[Callable[[], object]] = [
        lambda: transitions.move(mark, None, reason=reason, now=NOW),
        lambda: transitions.reset(mark, reason=reason, now=NOW),
        lambda: transitions.reset_loaded(mark, [], {}, reason=reason, now=NOW),
    ]
    for act in acts:
        with pytest.raises(UsageError, match="reason"):
            act()


def test_history_tells_how_a_run_was_planned() -> None:
    mark = transitions.new(STREAM, ("id",), NOW)
    _, (event,) = transitions.plan(
        mark,
        run_id="r",
        kind=RunKind.SNAPSHOT,
        window=Window(None, None),
        now=NOW,
        cursor=(),
        schema=("s0", {}),
    )
    assert Event.from_json(event.to_json()).kind == "planned"


def test_a_snapshot_that_is_given_up_has_covered_nothing() -> None:
    mark, _ = transitions.move(
        transitions.new(STREAM, ("id",), NOW), Position.of(50), reason="begin here", now=NOW
    )
    planned, _ = transitions.plan(
        mark, run_id="r", kind=RunKind.SNAPSHOT, window=Window(None, None), now=NOW, cursor=("id",)
    )
    assert transitions.restart_snapshot(planned, NOW).began == Position.of(50)


def test_what_was_read_of_a_range_that_is_given_up_is_covered() -> None:
    mark = in_round(cuts=(2, 5))
    run = mark.current_run
    assert run.round is not None
    [first, *_] = run.round.chunks
    advanced = transitions.advance(mark, [receipt(run, first, rows=1)], NOW)
    assert transitions.give_up(mark, NOW).covered == ()
    assert transitions.give_up(advanced, NOW).covered == (first.window,)


def test_nothing_is_covered_once_the_source_is_read_again_from_the_start() -> None:
    mark = transitions.new(STREAM, ("id",), NOW)
    moved, _ = transitions.move(mark, Position.of(50), reason="begin here", now=NOW)
    covered = transitions.cover(moved, Window(Position.of(10), Position.of(20)), NOW)
    again, _ = transitions.reset_extracted(covered, reason="read it again", now=NOW)
    assert (again.covered, again.began, again.extracted.position) == ((), None, None)
