"""The commit-safe ceiling: what every database has in common.

A ceiling is safe when no row at or below it can still appear. It is found in an order that matters:

1. read the database's clock and the largest visible position;
2. *then* list the open transactions: whoever is not in the list began after the clock was read, or has
   ended and is visible;
3. wait until those that were listed have ended. What was at or below the position is visible now to any
   snapshot taken from here on.

Who outlasts our patience lowers the ceiling below its start. Where a start is unknown, or transactions
cannot be seen at all, a position is either proved by an older look or left for later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from tidegate.core.ceiling import Ceiling, OpenTransaction, clock_bound, settle, strictly_below, wall_clock
from tidegate.core.errors import SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import CeilingSettings
from tidegate.core.types import Column, Kind
from tidegate.core.watermark import Candidate
from tidegate.core.windows import Window

POLL = timedelta(milliseconds=150)
"""Between two looks at the open transactions. Looked at more often, MySQL shows an old list for ever."""

UNSEEN = "unseen"
"""Stands in a candidate for the transactions that were open and could not be listed."""

_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_ANY_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)


class CannotSee(Exception):
    """The list of open transactions cannot be trusted; `remedy` says what would help."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Observer(Protocol):
    """How a database lets its transactions be watched."""

    def clock(self) -> datetime:
        """The database's own clock, in UTC."""
        ...

    def blindness(self) -> CannotSee | None:
        """Why this server's transactions cannot be seen from here, if that is known beforehand."""
        ...

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        """The transactions that may still commit rows, as a list that is proved to be fresh.

        Raises `CannotSee` if it cannot be proved.
        """
        ...

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        """Whether a listed transaction may be the one that was known by an identity now gone."""
        ...

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        """Wait until what has ended where transactions are listed is visible where rows are read."""
        ...


@dataclass(frozen=True)
class Blind:
    """An observer that has only the clock: why it sees nothing is known beforehand."""

    observer: Observer
    reason: CannotSee

    def clock(self) -> datetime:
        return self.observer.clock()

    def blindness(self) -> CannotSee | None:
        return self.reason

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        del ignore
        raise self.reason

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        return self.observer.continues(gone, listed)

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        del patience
        return self.reason


class Stream(Protocol):
    """The rows of one stream, seen through its cursor."""

    def largest(self, bound: Value | None) -> Position | None:
        """The largest visible position whose leading value is at or below the bound."""
        ...

    def reaches_beyond(self, moment: Value) -> bool: ...

    def earliest_unfinished(self, window: Window) -> Value | None:
        """The smallest leading value that a written but uncommitted row of the window may have.

        For databases whose list of transactions cannot be trusted to tell when one began.
        """
        ...


@dataclass(frozen=True)
class ClockFace:
    """How a column shows the time: its zone, if it has none of its own, and its precision."""

    kind: Kind
    unit: timedelta
    zone: str

    @classmethod
    def of(cls, column: Column, zone: str, digits: int) -> ClockFace:
        match column.type.kind:
            case Kind.DATE:
                return cls(Kind.DATE, _DAY, zone)
            case Kind.TIMESTAMP | Kind.INSTANT as kind:
                return cls(kind, _MICROSECOND * 10 ** (6 - digits), zone)
            case _:
                raise SourceError(
                    f"column `{column.name}` is {column.native or column.type}, not a date or timestamp",
                    hint="name a timestamp column as the cursor, or follow an id",
                )

    def complete(self, bound: datetime) -> Value:
        """The largest value the column can hold that nothing will be added to after `bound`."""
        if self.kind is Kind.INSTANT:
            return strictly_below(bound, self.unit)
        return self._value(strictly_below(wall_clock(bound, self.zone), self.unit))

    def before(self, value: Value) -> Value:
        """The next smaller value the column can hold."""
        assert isinstance(value, date)  # which a datetime is, too
        return value - self.unit

    def reading(self, moment: datetime) -> Value:
        if self.kind is Kind.INSTANT:
            return moment
        return self._value(moment.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None))

    def _value(self, reading: datetime) -> Value:
        return reading.date() if self.kind is Kind.DATE else reading


@dataclass
class Patience:
    """How the time passes while transactions are waited for, and who was waited for in vain.

    One that has outlasted a whole wait is not waited for again by the next table of the same run.
    """

    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    outlasted: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Freezing:
    """One attempt to find a ceiling."""

    stream: Stream
    observer: Observer
    settings: CeilingSettings
    patience: Patience
    after: Position | None = None

    def by_clock(self, face: ClockFace) -> Ceiling:
        """The ceiling of a stream whose positions begin with a timestamp."""
        clock = self.observer.clock()
        seen = self.stream.largest(face.complete(clock - self.settings.lag))
        warnings = (*self._set_back(face, clock), *self._future(face, clock))
        if seen is None or not self._is_new(seen):
            return Ceiling(seen, warnings=warnings)
        try:
            still_open = self._outlasting(clock)
        except CannotSee as blind:
            return self._lagging(face, clock, blind, warnings)
        if not still_open:
            return Ceiling(seen, warnings=warnings)
        return self._lowered(face, clock, seen, still_open, warnings)

    def by_id(self, candidates: tuple[Candidate, ...]) -> Ceiling:
        """The ceiling of a stream whose positions are ids: the largest candidate that has settled."""
        seen = self.stream.largest(None)
        if seen is None or not self._is_new(seen):
            return Ceiling(seen)
        clock = self.observer.clock()
        try:
            return self._settled(seen, clock, candidates)
        except CannotSee as blind:
            return self._aged(seen, clock, candidates, blind)

    def by_clock_alone(self) -> Ceiling:
        """A moment up to which everything is visible, for a SELECT whose positions only its author knows."""
        clock = self.observer.clock()
        try:
            still_open = self._outlasting(clock)
        except CannotSee as blind:
            bound = clock - self._long_lag
            return Ceiling(_instant(bound), lookback=self._long_lag, warnings=(self._in_words(blind),))
        if any(transaction.started is None for transaction in still_open):
            return _held(None, clock, still_open, ())
        bound = clock_bound(clock, still_open, lag=self.settings.lag)
        if not still_open:
            return Ceiling(_instant(bound))
        return _held(_instant(bound), clock - self.settings.lag, still_open, ())

    # --- with a clock

    def _lowered(
        self,
        face: ClockFace,
        clock: datetime,
        seen: Position,
        still_open: Collection[OpenTransaction],
        warnings: tuple[str, ...],
    ) -> Ceiling:
        if any(transaction.started is None for transaction in still_open):
            return _held(None, clock, still_open, warnings)
        position = self._at_most(face.complete(clock_bound(clock, still_open, lag=self.settings.lag)), seen)
        if position is not None and self._is_new(position):
            hidden = self.stream.earliest_unfinished(Window(self.after, position))
            if hidden is not None:
                position = self._at_most(face.before(hidden), position)
        return _held(position, clock - self.settings.lag, still_open, warnings)

    def _at_most(self, bound: Value, seen: Position) -> Position | None:
        return seen if not Position.of(bound).precedes(seen) else self.stream.largest(bound)

    def _lagging(
        self, face: ClockFace, clock: datetime, blind: CannotSee, warnings: tuple[str, ...]
    ) -> Ceiling:
        position = self.stream.largest(face.complete(clock - self._long_lag))
        return Ceiling(position, lookback=self._long_lag, warnings=(*warnings, self._in_words(blind)))

    @property
    def _long_lag(self) -> timedelta:
        return max(self.settings.lag, self.settings.fallback_lag)

    def _future(self, face: ClockFace, clock: datetime) -> tuple[str, ...]:
        moment = face.reading(clock + max(self.settings.lag, face.unit))
        if not self.stream.reaches_beyond(moment):
            return ()
        return (f"some rows have timestamps in the future, after {Position.of(moment)}: they stay for later",)

    def _set_back(self, face: ClockFace, clock: datetime) -> tuple[str, ...]:
        """A mark was behind the clock when it was made. If it is ahead now, rows may be written behind it."""
        mark = Position(self.after.values[:1]) if self.after else None
        now = Position.of(face.reading(clock))
        if mark is None or not now.precedes(mark):
            return ()
        warning = (
            f"the mark, {self.after}, is ahead of the database's clock, {now}: rows that are written before "
            "the clock has passed it will not be found. If the clock was set back, put the mark back with "
            "`tidegate watermark set`"
        )
        return (warning,)

    # --- with ids

    def _settled(self, seen: Position, clock: datetime, candidates: tuple[Candidate, ...]) -> Ceiling:
        listed = self._listed()
        pool = _with_newest(candidates, Candidate(seen, clock, tuple(sorted(listed))))
        deadline = self._deadline()
        while True:
            pool = [self._followed(candidate, listed) for candidate in pool]
            position, rest = settle(pool, listed)
            blockers = listed.keys() & {name for candidate in rest for name in candidate.open}
            if position == seen or self._gives_up(blockers, deadline):
                break
            listed = self._listed_again()
        self._catch_up()
        if position == seen:
            return Ceiling(seen)
        return _held_ids(position, clock, [listed[name] for name in blockers], rest)

    def _followed(self, candidate: Candidate, listed: Mapping[str, OpenTransaction]) -> Candidate:
        """A candidate that waits only for what is still open, under the name it has now."""
        still = self._still_open({name: None for name in candidate.open if name != UNSEEN}, listed)
        if UNSEEN in candidate.open:
            # Of those nobody saw, the ones that have not ended can be seen now, and began before.
            older = (t for t in listed.values() if t.started is None or t.started <= candidate.seen_at)
            still.update({transaction.identity: transaction for transaction in older})
        return replace(candidate, open=tuple(sorted(still)))

    def _aged(
        self, seen: Position, clock: datetime, candidates: tuple[Candidate, ...], blind: CannotSee
    ) -> Ceiling:
        """Where nothing can be listed, a candidate is taken for safe once it is old enough."""
        pool = _with_newest(candidates, Candidate(seen, clock, (UNSEEN,)))
        judged = [replace(c, open=()) if self._is_old(c, clock) else c for c in pool]
        position, rest = settle(judged, {name for candidate in judged for name in candidate.open})
        seconds = self.settings.fallback_lag.total_seconds()
        warning = f"{blind.reason}, so an id is taken for safe after {seconds:g} s: {blind.remedy}"
        return Ceiling(position, candidates=rest, warnings=(warning,))

    def _is_old(self, candidate: Candidate, clock: datetime) -> bool:
        return clock - candidate.seen_at >= self.settings.fallback_lag

    # --- waiting

    def _outlasting(self, clock: datetime) -> tuple[OpenTransaction, ...]:
        """The transactions open now that have not ended when our patience has."""
        waiting = self._listed()
        deadline = self._deadline()
        # A session takes its timestamp a moment before it is listed: a lag this short needs a second look.
        closely = self.settings.lag < POLL
        looks = 1
        while not self._gives_up(waiting, deadline) or (closely and looks == 1):
            listed = self._listed_again()
            looks += 1
            late = {t.identity: t for t in listed.values() if closely and t.started and t.started < clock}
            waiting = {**late, **self._still_open(waiting, listed)}
        self._catch_up()
        return tuple(waiting.values())

    def _listed(self) -> dict[str, OpenTransaction]:
        blind = self.observer.blindness()
        if blind is not None:
            raise blind
        return {t.identity: t for t in self.observer.transactions(self.settings.ignore)}

    def _listed_again(self) -> dict[str, OpenTransaction]:
        self.patience.sleep(POLL.total_seconds())
        return self._listed()

    def _still_open(
        self, waiting: Mapping[str, OpenTransaction | None], listed: Mapping[str, OpenTransaction]
    ) -> dict[str, OpenTransaction]:
        """Of those we wait for, the ones that are listed, and the ones that may now have another name."""
        open_now: dict[str, OpenTransaction] = {}
        for name, before in waiting.items():
            for heir in [listed[name]] if name in listed else self._heirs(name, waiting, listed):
                open_now[heir.identity] = _since(before, open_now.get(heir.identity, heir))
        return open_now

    def _heirs(
        self, gone: str, waiting: Collection[str], listed: Mapping[str, OpenTransaction]
    ) -> list[OpenTransaction]:
        strangers = [transaction for name, transaction in listed.items() if name not in waiting]
        return [transaction for transaction in strangers if self.observer.continues(gone, transaction)]

    def _deadline(self) -> float:
        return self.patience.monotonic() + self.settings.max_wait.total_seconds()

    def _gives_up(self, waiting: Collection[str], deadline: float) -> bool:
        """Whether there is nobody left whom it could help to wait for."""
        if all(name in self.patience.outlasted for name in waiting):
            return True
        if self.patience.monotonic() < deadline:
            return False
        self.patience.outlasted.update(waiting)
        return True

    def _catch_up(self) -> None:
        blind = self.observer.catch_up(self.settings.max_wait)
        if blind is not None:
            raise blind

    # --- answers

    def _is_new(self, seen: Position) -> bool:
        return seen.may_follow(self.after)

    def _in_words(self, blind: CannotSee) -> str:
        seconds = self.settings.fallback_lag.total_seconds()
        return (
            f"{blind.reason}, so rows are left for later until they are {seconds:g} s old, "
            f"and the last {seconds:g} s are read again: {blind.remedy}"
        )


def _instant(moment: datetime) -> Position:
    return Position.of(moment.astimezone(UTC))


def _since(before: OpenTransaction | None, now: OpenTransaction) -> OpenTransaction:
    """A transaction began when it was first known to be under way, whatever its new name says."""
    if before is None or before.started is None or now.started is None:
        return now
    return replace(now, started=min(before.started, now.started))


def _with_newest(candidates: tuple[Candidate, ...], newest: Candidate) -> list[Candidate]:
    """An older candidate at the same position needs no more to settle than the newest would."""
    if any(candidate.position == newest.position for candidate in candidates):
        return list(candidates)
    return [*candidates, newest]


def _held(
    position: Position | None,
    expected: datetime,
    still_open: Collection[OpenTransaction],
    warnings: tuple[str, ...],
) -> Ceiling:
    starts = [transaction.started for transaction in still_open if transaction.started]
    seconds = max(0.0, (expected - min(starts)).total_seconds()) if starts else 0.0
    return Ceiling(position, held_back_seconds=seconds, held_back_by=_named(still_open), warnings=warnings)


def _held_ids(
    position: Position | None,
    clock: datetime,
    blockers: Collection[OpenTransaction],
    waiting: tuple[Candidate, ...],
) -> Ceiling:
    held = _held(position, clock, blockers, ())
    since = min(candidate.seen_at for candidate in waiting) if waiting else clock
    seconds = held.held_back_seconds or max(0.0, (clock - since).total_seconds())
    return replace(held, held_back_seconds=seconds, candidates=waiting)


def _named(transactions: Collection[OpenTransaction]) -> str | None:
    """The oldest one in words; one without a start counts as the oldest."""
    if not transactions:
        return None
    oldest = min(transactions, key=lambda t: (t.started is not None, t.started or _ANY_MOMENT))
    others = len(transactions) - 1
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return oldest.description + more
