"""Hours in which a source is to be left alone, by the clock of a place.

`Mon-Fri 08:00-18:00` is days, a beginning and an end, and belongs to the zone whose clock shows them. A span
that ends before it begins ends on the next day; its days are those on which it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EVERY_DAY = frozenset(range(7))
_WRITTEN = re.compile(
    r"(?:(?P<days>[a-z, -]+?)\s+)?(?P<start>\d\d?:\d\d(?::\d\d)?)\s*-\s*(?P<end>\d\d?:\d\d(?::\d\d)?)",
    re.IGNORECASE,
)
_DAY = 24 * 60 * 60
_MOST_JOINED = 30
"""Spans that follow each other without a gap; more would be all the time."""


@dataclass(frozen=True, slots=True)
class Blackout:
    days: frozenset[int]
    """Monday is 0."""
    start: int
    """Seconds after midnight."""
    end: int
    zone: str

    @classmethod
    def written(cls, text: str, zone: str) -> Blackout:
        """Raises `ValueError` for what is no span."""
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            raise ValueError("expected hours such as 08:00-18:00 or Mon-Fri 08:00-18:00")
        start, end = _seconds(found["start"]), _seconds(found["end"])
        if start in (end, _DAY):
            raise ValueError("expected hours that begin and end at different times")
        return cls(_days(found["days"]), start, end, zone)

    def spans(self, around: datetime) -> Iterator[tuple[datetime, datetime]]:
        """When it begins and ends, from the day before a moment to a week after it, in UTC."""
        here = around.astimezone(ZoneInfo(self.zone)).date()
        for offset in range(-2, 9):
            day = here + timedelta(days=offset)
            if day.weekday() in self.days:
                later = timedelta(days=1 if self.end <= self.start else 0)
                yield min(self._at(day, self.start)), max(self._at(day + later, self.end))

    def _at(self, day: date, seconds: int) -> tuple[datetime, datetime]:
        """When the clock on the wall shows it: in the hour that is repeated when it is set back, twice."""
        days, rest = divmod(seconds, _DAY)
        reading = time(rest // 3600, rest // 60 % 60, rest % 60)
        whole = datetime.combine(day + timedelta(days=days), reading, ZoneInfo(self.zone))
        return whole.astimezone(UTC), whole.replace(fold=1).astimezone(UTC)


def blacked_out_until(blackouts: Iterable[Blackout], now: datetime) -> datetime | None:
    """When work may begin again; None if it may now."""
    spans = sorted(span for blackout in blackouts for span in blackout.spans(now))
    until = now
    for _ in range(_MOST_JOINED):
        later = max((end for start, end in spans if start <= until < end), default=None)
        if later is None:
            break
        until = later
    return until if until > now else None


def next_blackout(blackouts: Iterable[Blackout], now: datetime) -> datetime | None:
    """When work has to stop; `now` if it may not go on."""
    listed = tuple(blackouts)
    if blacked_out_until(listed, now) is not None:
        return now
    return min((start for item in listed for start, _ in item.spans(now) if start > now), default=None)


def _seconds(text: str) -> int:
    hours, minutes, seconds = (int(part) for part in f"{text}:00".split(":")[:3])
    total = (hours * 60 + minutes) * 60 + seconds
    if max(minutes, seconds) > 59 or total > _DAY:  # noqa: PLR2004 - no hour has more
        raise ValueError(f"`{text}` is no time of day")
    return total


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return _EVERY_DAY
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = _day(first), _day(last or first)
        days.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return frozenset(days)


def _day(text: str) -> int:
    short = text.strip().lower()[:3]
    if short not in _DAYS:
        raise ValueError(f"`{text.strip()}` is no day: they are Mon, Tue, Wed, Thu, Fri, Sat and Sun")
    return _DAYS.index(short)
