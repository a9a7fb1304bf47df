"""The commit-safe ceiling: the part of it that is arithmetic.

A ceiling is safe when no row at or below it can still appear. A source observes its database (the clock,
the largest visible position, the open transactions) and these functions decide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tidegate.core.positions import Position
from tidegate.core.watermark import Candidate

MOST_CANDIDATES = 16
"""Kept between runs. The oldest stay, since they are the first to become safe."""

_QUARTER = timedelta(minutes=15)
"""Clocks are set at whole quarters of an hour."""
_LONGEST_REPEAT = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that may still commit rows. `started` is missing where the database does not tell."""

    identity: str
    """Stays the same as long as the transaction lives, and never returns."""
    started: datetime | None
    description: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The frozen high end of a run's window, and what held it back."""

    position: Position | None
    """None: there is nothing at or below a safe bound."""
    held_back_seconds: float = 0.0
    held_back_by: str | None = None
    lookback: timedelta = timedelta(0)
    """How far behind the mark to read again, because the view of other transactions cannot be trusted."""
    candidates: tuple[Candidate, ...] = ()
    warnings: tuple[str, ...] = ()


def floor(moment: datetime, unit: timedelta) -> datetime:
    """The last moment at or before `moment` that a column of this precision can hold."""
    epoch = datetime(1970, 1, 1, tzinfo=moment.tzinfo)
    return epoch + ((moment - epoch) // unit) * unit


def strictly_below(moment: datetime, unit: timedelta) -> datetime:
    """The largest value a column of this precision can hold that is already complete at `moment`."""
    return floor(moment, unit) - unit


def clock_bound(clock: datetime, still_open: Collection[OpenTransaction], *, lag: timedelta) -> datetime:
    """The instant below which nothing can appear: the lagging clock, or the oldest open transaction."""
    starts = [transaction.started for transaction in still_open if transaction.started is not None]
    return min([clock - lag, *starts])


def wall_clock(bound: datetime, zone: str) -> datetime:
    """The reading of a zoneless column's clock below which everything is complete at `bound`.

    It is the smallest reading the clock will ever show again. While a clock is about to be set back, or
    passes the repeated hour for the first time, that is where the second pass will begin.
    """
    tz = ZoneInfo(zone)
    quarter = floor(bound, _QUARTER)
    ahead = [quarter + _QUARTER * (step + 1) for step in range(_LONGEST_REPEAT // _QUARTER)]
    return min(moment.astimezone(tz).replace(tzinfo=None) for moment in (bound, *ahead))


def settle(
    candidates: Sequence[Candidate], open_now: Collection[str]
) -> tuple[Position | None, tuple[Candidate, ...]]:
    """The largest candidate none of whose transactions is still open, and the candidates worth keeping.

    Candidates below the settled one can add nothing any more. If there are too many, the newest go.
    """
    settled: Candidate | None = None
    waiting: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.seen_at):
        if any(identity in open_now for identity in candidate.open):
            waiting.append(candidate)
        elif settled is None or settled.position < candidate.position:
            settled = candidate
    if settled is None:
        return None, tuple(waiting[:MOST_CANDIDATES])
    above = [candidate for candidate in waiting if settled.position < candidate.position]
    return settled.position, tuple(above[:MOST_CANDIDATES])
