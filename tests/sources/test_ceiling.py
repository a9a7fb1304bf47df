"""What every database has in common when a ceiling is looked for, with a database that does as it is told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

import pytest

from tidegate.core.ceiling import OpenTransaction
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import CeilingSettings
from tidegate.core.types import Column, DataType, Kind
from tidegate.core.watermark import Candidate
from tidegate.core.windows import Window
from tidegate.sources.ceiling import POLL, UNSEEN, CannotSee, ClockFace, Freezing, Patience

NOON = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = CeilingSettings()
FACE = ClockFace(Kind.INSTANT, timedelta(microseconds=1), "UTC")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def open_since(identity: str, seconds: float | None) -> OpenTransaction:
    return OpenTransaction(identity, None if seconds is None else at(seconds), f"transaction {identity}")


@dataclass
class Scripted:
    """A database at noon. Each look at it shows the next list; the last one stays."""

    looks: list[list[OpenTransaction] | CannotSee]
    rows: list[float] = field(default_factory=lambda: [-100.0, -5.0, -2.0])
    unfinished: float | None = None
    slept: float = 0.0
    behind: CannotSee | None = None

    def clock(self) -> datetime:
        return at(self.slept)

    def blindness(self) -> CannotSee | None:
        return None

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        del ignore
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, CannotSee):
            raise look
        return tuple(look)

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        return listed.identity.startswith("prepared") and not gone.startswith("prepared")

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        del patience
        return self.behind

    def largest(self, bound: Value | None) -> Position | None:
        fitting = [at(row) for row in self.rows if bound is None or at(row) <= bound]  # type: ignore[operator]
        return Position.of(max(fitting)) if fitting else None

    def reaches_beyond(self, moment: Value) -> bool:
        return any(at(row) > moment for row in self.rows)  # type: ignore[operator]

    def earliest_unfinished(self, window: Window) -> Value | None:
        if self.unfinished is None or Position.of(at(self.unfinished)) not in window:
            return None
        return at(self.unfinished)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def freezing(self, settings: CeilingSettings = SETTINGS, after: Position | None = None) -> Freezing:
        return Freezing(self, self, settings, self.patience, after)

    @property
    def patience(self) -> Patience:
        return Patience(self.sleep, lambda: self.slept)


@dataclass
class Numbered(Scripted):
    """The same, with a largest id instead of timestamps."""

    top: int = 10

    def largest(self, bound: Value | None) -> Position | None:
        assert bound is None
        return Position.of(self.top)


def seconds(position: Position | None) -> float | None:
    if position is None:
        return None
    moment = position.values[0]
    assert isinstance(moment, datetime)
    return (moment - NOON).total_seconds()


BLIND = CannotSee("nothing can be seen", "open your eyes")


def test_a_quiet_database_is_looked_at_once() -> None:
    database = Scripted([[]])
    ceiling = database.freezing().by_clock(FACE)
    assert (seconds(ceiling.position), database.slept) == (-2, 0)


def test_a_row_within_the_lag_stays_for_later() -> None:
    assert seconds(Scripted([[]], rows=[-2, -0.5]).freezing().by_clock(FACE).position) == -2


def test_whoever_was_open_is_waited_for_and_whoever_came_later_is_not() -> None:
    one, two = open_since("1", -10), open_since("2", 0.1)
    database = Scripted([[one], [one, two], [two]])
    ceiling = database.freezing().by_clock(FACE)
    assert (seconds(ceiling.position), ceiling.held_back_by) == (-2, None)
    assert database.slept == pytest.approx(2 * POLL.total_seconds())


def test_whoever_outlasts_the_wait_lowers_the_ceiling_below_its_start() -> None:
    database = Scripted([[open_since("1", -4)]])
    ceiling = database.freezing().by_clock(FACE)
    assert seconds(ceiling.position) == -5
    assert ceiling.held_back_by == "transaction 1"
    assert ceiling.held_back_seconds == pytest.approx(3)
    assert database.slept == pytest.approx(5, abs=0.2)


def test_the_oldest_is_named_with_the_number_of_the_others() -> None:
    database = Scripted([[open_since("1", -4), open_since("2", -9), open_since("3", -1)]])
    assert database.freezing().by_clock(FACE).held_back_by == "transaction 2 and 2 others"


def test_whoever_has_outlasted_one_wait_is_not_waited_for_by_the_next_table() -> None:
    database = Scripted([[open_since("1", -4)]])
    freezing = database.freezing()
    freezing.by_clock(FACE)
    waited = database.slept
    freezing.by_clock(FACE)
    assert database.slept == waited


def test_a_start_nobody_knows_leaves_everything_for_later() -> None:
    ceiling = Scripted([[open_since("prepared 1", None)]]).freezing().by_clock(FACE)
    assert (ceiling.position, ceiling.held_back_by) == (None, "transaction prepared 1")


def test_whoever_vanishes_while_another_gets_prepared_may_be_that_one() -> None:
    database = Scripted([[open_since("1", -4)], [open_since("prepared 1", None)]])
    assert database.freezing().by_clock(FACE).position is None


def test_whatever_gets_prepared_after_all_have_ended_is_somebody_else() -> None:
    one, two, other = open_since("1", -4), open_since("2", -3), open_since("prepared 9", None)
    database = Scripted([[one, two], [two], [two, other], [other]])
    ceiling = database.freezing().by_clock(FACE)
    assert ceiling.position is None, "it may be 2, which vanished in that very look"
    database = Scripted([[one], [], [other]])
    assert seconds(database.freezing().by_clock(FACE).position) == -2


def test_a_transaction_that_gets_another_name_began_when_it_was_first_seen() -> None:
    class Renamed(Scripted):
        def continues(self, gone: str, listed: OpenTransaction) -> bool:
            return (gone, listed.identity) == ("statement", "transaction")

    database = Renamed([[open_since("statement", -6)], [open_since("transaction", 0)]])
    assert seconds(database.freezing().by_clock(FACE).position) == -100


def test_a_row_that_is_written_but_not_committed_lowers_the_ceiling_further() -> None:
    database = Scripted([[open_since("1", -1)]], unfinished=-5)
    assert seconds(database.freezing().by_clock(FACE).position) == -100


def test_with_a_short_lag_whoever_was_not_listed_yet_is_found_by_a_second_look() -> None:
    late = open_since("1", -0.01)
    settings = replace(SETTINGS, lag=timedelta(0), max_wait=timedelta(seconds=1))
    database = Scripted([[], [late]], rows=[-100, -0.005])
    assert seconds(database.freezing(settings).by_clock(FACE).position) == -100


def test_what_cannot_be_seen_costs_a_long_lag_and_a_look_back() -> None:
    ceiling = Scripted([BLIND], rows=[-100, -30]).freezing().by_clock(FACE)
    assert (seconds(ceiling.position), ceiling.lookback) == (-100, timedelta(seconds=60))
    assert "nothing can be seen" in ceiling.warnings[0]
    assert "open your eyes" in ceiling.warnings[0]


def test_a_replica_that_does_not_catch_up_costs_the_same() -> None:
    ceiling = Scripted([[]], rows=[-100, -30], behind=BLIND).freezing().by_clock(FACE)
    assert (seconds(ceiling.position), ceiling.lookback) == (-100, timedelta(seconds=60))


def test_where_nothing_is_new_nobody_is_looked_at() -> None:
    database = Scripted([BLIND])
    ceiling = database.freezing(after=Position.of(at(-2))).by_clock(FACE)
    assert (seconds(ceiling.position), ceiling.warnings) == (-2, ())


def test_rows_from_the_future_are_mentioned() -> None:
    [warning] = Scripted([[]], rows=[-2, 60]).freezing().by_clock(FACE).warnings
    assert "future" in warning


def test_a_mark_ahead_of_the_clock_is_mentioned_since_rows_may_be_written_behind_it() -> None:
    [warning] = Scripted([[]]).freezing(after=Position.of(at(30), 7)).by_clock(FACE).warnings
    assert "2026-06-01 12:00:30Z / 7, is ahead of the database's clock, 2026-06-01 12:00:00Z" in warning


def test_ids_are_safe_at_once_when_nobody_is_open() -> None:
    ceiling = Numbered([[]]).freezing().by_id(())
    assert (ceiling.position, ceiling.candidates) == (Position.of(10), ())


def test_ids_wait_for_those_who_were_open_and_keep_the_candidate() -> None:
    ceiling = Numbered([[open_since("1", -4)]]).freezing().by_id(())
    assert ceiling.position is None
    assert [(c.position, c.open) for c in ceiling.candidates] == [(Position.of(10), ("1",))]
    assert ceiling.held_back_by == "transaction 1"
    assert ceiling.held_back_seconds == pytest.approx(4)


def test_a_candidate_of_an_earlier_run_settles_while_others_are_open() -> None:
    earlier = Candidate(Position.of(7), at(-60), ("1",))
    ceiling = Numbered([[open_since("2", -4)]]).freezing().by_id((earlier,))
    assert ceiling.position == Position.of(7)
    assert [c.position for c in ceiling.candidates] == [Position.of(10)]


def test_a_candidate_waits_for_those_who_got_prepared_since_and_for_no_later_ones() -> None:
    earlier = Candidate(Position.of(7), at(-60), ("1",))
    first = Numbered([[open_since("prepared 1", None)]]).freezing().by_id((earlier,))
    assert first.position is None
    second = Numbered([[open_since("prepared 2", None)]]).freezing().by_id(first.candidates)
    assert second.position == Position.of(10), "both candidates had only waited for the first one"


def test_the_same_position_is_not_a_candidate_twice() -> None:
    earlier = Candidate(Position.of(10), at(-60), ("1",))
    ceiling = Numbered([[open_since("1", -90), open_since("2", -1)]]).freezing().by_id((earlier,))
    assert ceiling.candidates == (earlier,)


def test_unseen_candidates_settle_by_age() -> None:
    young, old = Candidate(Position.of(8), at(-59), (UNSEEN,)), Candidate(Position.of(7), at(-61), (UNSEEN,))
    ceiling = Numbered([BLIND]).freezing().by_id((old, young))
    assert ceiling.position == Position.of(7)
    assert [c.position for c in ceiling.candidates] == [Position.of(8), Position.of(10)]


def test_an_unseen_candidate_settles_when_all_who_are_listed_began_after_it() -> None:
    unseen = Candidate(Position.of(8), at(-30), (UNSEEN,))
    assert Numbered([[open_since("1", -40)]]).freezing().by_id((unseen,)).position is None
    assert Numbered([[open_since("1", None)]]).freezing().by_id((unseen,)).position is None
    assert Numbered([[open_since("1", -20)]]).freezing().by_id((unseen,)).position == Position.of(8)


def test_what_a_candidate_saw_open_is_not_forgotten_while_nothing_can_be_seen() -> None:
    seen = Candidate(Position.of(8), at(-1), ("1",))
    blind = Numbered([BLIND]).freezing().by_id((seen,))
    assert blind.position is None
    assert Numbered([[open_since("1", -4)]], slept=90).freezing().by_id(blind.candidates).position is None
    assert Numbered([[]], slept=90).freezing().by_id(blind.candidates).position == Position.of(10)


@pytest.mark.parametrize(
    ("kind", "digits", "zone", "bound", "complete"),
    [
        (Kind.INSTANT, 6, "UTC", "2026-06-01 12:00:00", "2026-06-01 11:59:59.999999+00:00"),
        (Kind.INSTANT, 0, "UTC", "2026-06-01 12:00:00.9", "2026-06-01 11:59:59+00:00"),
        (Kind.TIMESTAMP, 3, "UTC", "2026-06-01 12:00:00.0009", "2026-06-01 11:59:59.999"),
        (Kind.TIMESTAMP, 0, "Asia/Tokyo", "2026-06-01 12:00:00", "2026-06-01 20:59:59"),
        (Kind.DATE, 0, "UTC", "2026-06-01 12:00:00", "2026-05-31"),
        (Kind.DATE, 0, "Asia/Tokyo", "2026-06-01 15:01:00", "2026-06-01"),
        # The hour that Berlin repeats is held until it has passed.
        (Kind.TIMESTAMP, 0, "Europe/Berlin", "2026-10-25 00:30:00", "2026-10-25 01:59:59"),
        (Kind.TIMESTAMP, 0, "Europe/Berlin", "2026-10-25 01:30:00", "2026-10-25 02:29:59"),
    ],
)
def test_only_a_unit_of_time_that_has_passed_is_complete(
    kind: Kind, digits: int, zone: str, bound: str, complete: str
) -> None:
    face = ClockFace.of(Column("at", DataType(kind, precision=digits)), zone, digits)
    expected: Value = date.fromisoformat(complete) if kind is Kind.DATE else datetime.fromisoformat(complete)
    assert face.complete(datetime.fromisoformat(bound).replace(tzinfo=UTC)) == expected
