"""Values as databases write them, read strictly: what is not exactly right is refused, never bent."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal

_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
_PLAIN_DATE = re.compile(_DATE, re.ASCII)
_PLAIN_TIME = re.compile(_TIME, re.ASCII)
_TIMESTAMP = re.compile(f"{_DATE}[ T]{_TIME}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years the calendar begins again. Python's ends with the year 9999, and begins with 1."""
_DAY_SECONDS = 86_400
_ERA_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?", re.ASCII)
_ERA_TIMESTAMP = re.compile(rf"(\d{{4,}})-(\d\d)-(\d\d) {_TIME}(?:\+00)?( BC)?", re.ASCII)
_INSTANT = re.compile(rf"{_DATE}[ T]{_TIME}\+00(?::?00)?", re.ASCII)


def date_of(text: str) -> date:
    year, month, day = _groups(_PLAIN_DATE, text)
    return date(int(year), int(month), int(day))


def days_of(text: str) -> int:
    """The same as days from 1970, which also the year 0 has."""
    return _days(*map(int, _groups(_PLAIN_DATE, text)))


def microseconds_of(text: str) -> int:
    """A wall-clock reading as microseconds from 1970, which also the year 0 has."""
    year, month, day, *clock = _groups(_TIMESTAMP, text)
    return _since_1970(_days(int(year), int(month), int(day)), *clock)


def era_days_of(text: str) -> int:
    """Days from 1970, of any date that PostgreSQL has."""
    year, month, day, era = _groups(_ERA_DATE, text)
    return _days(_counted(year, era), int(month), int(day))


def era_microseconds_of(text: str) -> int:
    """Microseconds from 1970, of any timestamp that PostgreSQL has; an instant is written in UTC."""
    year, month, day, *clock, era = _groups(_ERA_TIMESTAMP, text)
    return _since_1970(_days(_counted(year, era), int(month), int(day)), *clock)


def _counted(year: str, era: str) -> int:
    """Before the year 1 is the year 0, which people call the first before Christ."""
    return 1 - int(year) if era else int(year)


def _since_1970(days: int, hour: str, minute: str, second: str, fraction: str) -> int:
    clock = time(int(hour), int(minute), int(second))
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
    return (days * _DAY_SECONDS + seconds) * 1_000_000 + _microseconds(fraction)


def _days(year: int, month: int, day: int) -> int:
    cycles = (year - 1) // _CYCLE_YEARS
    within = date(year - cycles * _CYCLE_YEARS, month, day).toordinal()
    return within + cycles * _CYCLE_DAYS - _DAYS_TO_1970


def decimal_of(text: str) -> Decimal:
    """A number in plain digits: Python would also read `1_000`, and digits of any script."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number: {text!r}")
    return Decimal(text)


def time_of(text: str) -> time:
    hour, minute, second, fraction = _groups(_PLAIN_TIME, text)
    return time(int(hour), int(minute), int(second), _microseconds(fraction))


def timestamp_of(text: str) -> datetime:
    """A wall-clock reading: `2026-01-31 23:59:59.123456`, with a space or a T between date and time."""
    return _moment(_groups(_TIMESTAMP, text))


def instant_of(text: str) -> datetime:
    """A moment as a session in UTC writes it: `2026-01-31 23:59:59.123456+00`."""
    return _moment(_groups(_INSTANT, text)).replace(tzinfo=UTC)


def written(moment: datetime) -> str:
    """A moment in the form all databases read, without its zone."""
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _moment(groups: tuple[str, ...]) -> datetime:
    *parts, fraction = groups
    year, month, day, hour, minute, second = map(int, parts)
    return datetime(year, month, day, hour, minute, second, _microseconds(fraction))  # noqa: DTZ001 - zoneless


def _microseconds(fraction: str) -> int:
    return int(fraction.ljust(6, "0"))


def _groups(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"not in the expected form: {text!r}")
    return found.groups(default="")
