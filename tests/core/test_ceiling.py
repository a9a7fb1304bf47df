"""The arithmetic of the commit-safe ceiling."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate, count
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.generated import NOW
from tidegate.core.ceiling import (
    MOST_CANDIDATES,
    OpenTransaction,
    clock_bound,
    floor,
    settle,
    strictly_below,
    wall_clock,
)
from tidegate.core.positions import Position
from tidegate.core.watermark import Candidate

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
units = st.sampled_from([timedelta(days=1), SECOND, timedelta(milliseconds=1), timedelta(microseconds=1)])
instants = st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


# --- Precision ---------------------------------------------------------------


@given(instants, units)
def test_a_moment_is_floored_to_what_a_column_can_hold(moment: datetime, unit: timedelta) -> None:
    floored = floor(moment, unit)
    assert floored <= moment < floored + unit
    assert floor(floored, unit) == floored


@given(instants, units)
def test_a_second_that_is_still_filling_is_left_for_later(moment: datetime, unit: timedelta) -> None:
    """Nothing written from `moment` on, at this precision, is at or below the bound."""
    bound = strictly_below(moment, unit)
    assert bound < floor(moment, unit)
    assert floor(bound + unit, unit) == floor(moment, unit)


@given(instants, st.lists(st.none() | instants, max_size=4), st.integers(0, 100))
def test_the_bound_is_below_the_clock_and_every_open_transaction(
    clock: datetime, starts: list[datetime | None], lag: int
) -> None:
    still_open = [OpenTransaction(str(i), start, "") for i, start in enumerate(starts)]
    bound = clock_bound(clock, still_open, lag=lag * SECOND)
    assert bound <= clock - lag * SECOND
    assert all(start is None or bound <= start for start in starts)


# --- Wall clocks -------------------------------------------------------------

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Asia/Kolkata",
    "UTC",
]
REPEATS = {"Europe/Berlin": 60, "America/New_York": 60, "Australia/Lord_Howe": 30, "Antarctica/Troll": 120}
"""How many minutes each clock shows twice when it is set back."""


def shown(zone: str, moment: datetime) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


@cache
def days_to_look_at(zone: str) -> tuple[datetime, ...]:
    """Every day of 2025 and 2026 on which the clock is set, and two on which it is not."""
    days = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=i) for i in range(730)]
    set_on = [
        day for day in days if shown(zone, day + timedelta(days=1)) - shown(zone, day) != timedelta(days=1)
    ]
    return (days[0], days[200], *set_on)


@cache
def readings(zone: str, day: datetime) -> list[datetime]:
    """What the clock shows at every minute, from a day before to a day after."""
    return [shown(zone, day + MINUTE * i) for i in range(-1440, 2880)]


@pytest.mark.parametrize("zone", ZONES)
def test_a_wall_clock_is_bounded_by_the_smallest_reading_it_will_show_again(zone: str) -> None:
    assert len(days_to_look_at(zone)) == (6 if zone in REPEATS else 2)
    for day in days_to_look_at(zone):
        smallest = list(accumulate(reversed(readings(zone, day)), min))[::-1]
        for minute in range(-600, 1440):
            assert wall_clock(day + MINUTE * minute, zone) == smallest[1440 + minute]


@pytest.mark.parametrize("zone", ZONES)
def test_what_is_at_or_below_the_bound_is_never_shown_again(zone: str) -> None:
    """The promise itself: a column of whole minutes gets no more values at or below the ceiling."""
    for day in days_to_look_at(zone):
        for minute in range(-600, 1440, 17):
            ceiling = strictly_below(wall_clock(day + MINUTE * minute, zone), MINUTE)
            assert min(readings(zone, day)[1440 + minute :]) > ceiling


@pytest.mark.parametrize(("zone", "minutes"), REPEATS.items())
def test_the_repeated_time_is_held_until_it_has_passed(zone: str, minutes: int) -> None:
    found = 0
    for day in days_to_look_at(zone):
        clock = readings(zone, day)
        for back in (i for i in range(1, len(clock)) if clock[i] < clock[i - 1]):
            moment = day + MINUTE * (back - 1440)
            assert wall_clock(moment - MINUTE * minutes, zone) == clock[back]
            assert wall_clock(moment - MINUTE, zone) == clock[back]
            assert wall_clock(moment + MINUTE * minutes, zone) == clock[back] + MINUTE * minutes
            found += 1
    assert found == 2


@given(st.sampled_from(ZONES), st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)))  # noqa: DTZ001
def test_the_bound_is_never_ahead_of_the_clock_and_never_far_behind(zone: str, moment: datetime) -> None:
    bound = moment.replace(tzinfo=UTC)
    assert shown(zone, bound) - timedelta(hours=3) <= wall_clock(bound, zone) <= shown(zone, bound)


# --- Candidates --------------------------------------------------------------

transactions = st.sets(st.sampled_from("abcdefg"), max_size=4)
candidates = st.lists(
    st.builds(
        lambda place, second, names: Candidate(
            Position.of(place), NOW + SECOND * second, tuple(sorted(names))
        ),
        st.integers(0, 30),
        st.integers(0, 30),
        transactions,
    ),
    max_size=30,
)


def is_open(candidate: Candidate, open_now: set[str]) -> bool:
    return bool(set(candidate.open) & open_now)


@given(candidates, transactions)
def test_the_settled_position_is_the_largest_whose_transactions_have_all_ended(
    seen: list[Candidate], open_now: set[str]
) -> None:
    position, kept = settle(seen, open_now)
    ended = [candidate.position for candidate in seen if not is_open(candidate, open_now)]
    assert position == (max(ended, key=lambda p: p.values) if ended else None)
    assert len(kept) <= MOST_CANDIDATES
    for candidate in kept:
        assert is_open(candidate, open_now)
        assert position is None or position < candidate.position


@given(candidates, transactions)
def test_the_oldest_candidates_are_kept(seen: list[Candidate], open_now: set[str]) -> None:
    position, kept = settle(seen, open_now)
    waiting = [c for c in seen if is_open(c, open_now) and (position is None or position < c.position)]
    assert len(kept) == min(len(waiting), MOST_CANDIDATES)
    dropped = list(waiting)
    for candidate in kept:
        dropped.remove(candidate)
    assert all(old.seen_at <= new.seen_at for old in kept for new in dropped)


def test_when_there_are_too_many_candidates_the_newest_go() -> None:
    waiting = [Candidate(Position.of(i), NOW + SECOND * i, ("a",)) for i in range(2, 42)]
    settled = Candidate(Position.of(1), NOW, ())
    for seen in (waiting, [settled, *waiting], [*reversed(waiting), settled]):
        _, kept = settle(seen, {"a"})
        assert list(kept) == waiting[:MOST_CANDIDATES]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60)), min_size=1, max_size=80), st.integers(1, 5))
def test_overlapping_transactions_never_starve_a_stream(begun: list[tuple[int, int]], pause: int) -> None:
    """Each transaction takes an id, stays open for a while and commits; runs look now and then.

    No settled ceiling ever has an id at or below it that is still to come, and no run that looks later
    than the longest transaction lasts finds a ceiling from before that.
    """
    starts: list[tuple[int, int, int]] = []
    at = 0
    for number, (gap, length) in enumerate(begun, start=1):
        at += gap
        starts.append((number, at, at + length))
    end = max(finish for _, _, finish in starts) + 1
    kept: tuple[Candidate, ...] = ()
    settled: Position | None = None
    for moment in (*range(0, end, pause), end):
        visible = [number for number, _, finish in starts if finish <= moment]
        live = {str(number) for number, start, finish in starts if start <= moment < finish}
        seen = kept
        if visible:
            now = NOW + SECOND * moment
            seen = (*kept, Candidate(Position.of(max(visible)), now, tuple(sorted(live))))
        position, kept = settle(seen, live)
        if position is not None:
            settled = position
        if settled is not None:
            # An id at or below the ceiling belongs to a transaction that has ended.
            assert not [n for n, _, finish in starts if Position.of(n) <= settled and finish > moment]
    assert settled == Position.of(len(starts))


def test_a_stream_moves_on_while_there_is_never_a_moment_without_a_transaction() -> None:
    """Transactions of ten seconds begin every second, for ever: the ceiling follows ten seconds behind."""
    kept: tuple[Candidate, ...] = ()
    settled = 0
    for moment in count(20):
        live = {str(number) for number in range(moment - 9, moment + 1)}
        newest = Candidate(Position.of(moment - 10), NOW + SECOND * moment, tuple(sorted(live)))
        position, kept = settle((*kept, newest), live)
        if position is not None:
            [value] = position.values
            assert isinstance(value, int)
            assert value >= settled
            settled = value
        if moment == 200:
            break
    assert settled >= 200 - 10 - 10 - MOST_CANDIDATES
