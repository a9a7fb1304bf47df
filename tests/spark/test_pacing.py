"""A task keeps to its share of the source, and pauses when the source struggles."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tidegate.core.deadlines import NEVER, Deadline
from tidegate.core.errors import ConnectError
from tidegate.sources.strain import Strain
from tidegate.spark.pacing import Pace, Pacer

NOON = datetime(2025, 6, 4, 12, tzinfo=UTC)


@dataclass
class World:
    """A clock that sleeping moves on, and a source whose strain is a list of what it will say."""

    now: datetime = NOON
    strains: list[Strain | Exception] = field(default_factory=list)
    asked: int = 0

    def clock(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += timedelta(seconds=seconds)

    def strain(self) -> Strain:
        self.asked += 1
        answer = self.strains.pop(0) if len(self.strains) > 1 else self.strains[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pacer(self, pace: Pace, deadline: Deadline = NEVER) -> Pacer:
        return Pacer(pace, self, deadline, self.clock, self.sleep)

    @property
    def passed(self) -> float:
        return (self.now - NOON).total_seconds()


def chunk(world: World, pacer: Pacer, rows: int, seconds: float) -> None:
    pacer.before_chunk()
    world.sleep(seconds)
    pacer.after_chunk(rows)


def test_rows_take_as_long_as_the_rate_says() -> None:
    world = World()
    pacer = world.pacer(Pace(rows_per_second=100))
    for _ in range(5):
        chunk(world, pacer, rows=200, seconds=0.5)
    assert world.passed == pytest.approx(10)
    chunk(world, pacer, rows=100, seconds=7)  # slower than the rate already
    assert world.passed == pytest.approx(17)
    assert world.asked == 0
    assert pacer.notes == []


def test_a_busy_source_is_waited_for() -> None:
    world = World(strains=[Strain(80), Strain(70), Strain(40)])
    pacer = world.pacer(Pace(max_running=50))
    pacer.before_chunk()
    assert world.passed == pytest.approx(0.5 + 1)
    assert pacer.notes == ["paused 1.5 s for the source: 80 statements are running, more than 50"]


def test_a_replica_that_lags_is_waited_for_but_not_for_ever() -> None:
    world = World(strains=[Strain(1, lag=90)])
    pacer = world.pacer(Pace(max_lag=30, max_pause=20))
    pacer.before_chunk()
    assert world.passed == pytest.approx(20)
    assert "a replica is 90 s behind, more than 30 s, and went on all the same" in pacer.notes[0]


@pytest.mark.parametrize("answer", [Strain(), Strain(3, 2), ConnectError("gone")])
def test_a_source_that_is_well_or_says_nothing_is_read_at_once(answer: Strain | Exception) -> None:
    world = World(strains=[answer])
    world.pacer(Pace(max_running=50, max_lag=30)).before_chunk()
    assert world.passed == 0


def test_a_chunk_that_takes_much_longer_than_usual_is_followed_by_a_pause() -> None:
    world = World()
    pacer = world.pacer(Pace(slow_down_at=3))
    for _ in range(4):
        chunk(world, pacer, rows=100, seconds=1)
    chunk(world, pacer, rows=100, seconds=2.5)  # not much longer
    assert world.passed == pytest.approx(6.5)
    chunk(world, pacer, rows=100, seconds=5)
    assert world.passed == pytest.approx(6.5 + 5 + 4)
    assert pacer.notes == ["paused 4.0 s for the source: a chunk took 5.0 times as long as usual"]


def test_no_pause_goes_beyond_the_deadline() -> None:
    world = World(strains=[Strain(80)])
    pacer = world.pacer(Pace(max_running=50, rows_per_second=1), Deadline(NOON + timedelta(seconds=3)))
    pacer.before_chunk()
    assert world.passed == pytest.approx(3)
    pacer.after_chunk(100)
    assert world.passed == pytest.approx(3)
