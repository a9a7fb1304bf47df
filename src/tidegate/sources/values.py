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
"""After so many years the calendar begins again. Python's begins with the year 1, databases' with 0."""
_DAY_SECONDS = 86_400
_INSTANT = re.compile(rf"{_DATE}[ T]{_TIME}\+00(?::?00)?", re.ASCII)


def date_of(text: str) -> date:
    year, month, day = _groups(_PLAIN_DATE, text)
    return date(int(year), int(month), int(day))


def days_of(text: str) -> int:
    """The same as days from 1970, which also the year 0 has."""
    return _days(*map(int, _groups(_PLAIN_DATE, text)))


def microseconds_of(text: str) -> int:
    """A wall-clock reading as microseconds from 1970, which also the year 0 has."""
    *parts, fraction = _groups(_TIMESTAMP, text)
    year, month, day, hour, minute, second = map(int, parts)
    clock = time(hour, minute, second)
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
    return (_days(year, month, day) * _DAY_SECONDS + seconds) * 1_000_000 + _microseconds(fraction)


def _days(year: int, month: int, day: int) -> int:
    if year:
        return date(year, month, day).toordinal() - _DAYS_TO_1970
    return date(year + _CYCLE_YEARS, month, day).toordinal() - _CYCLE_DAYS - _DAYS_TO_1970


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
