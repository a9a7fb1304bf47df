"""Values as databases write them, read strictly: what is not exactly right is refused, never bent."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
_PLAIN_DATE = re.compile(_DATE, re.ASCII)
_PLAIN_TIME = re.compile(_TIME, re.ASCII)
_TIMESTAMP = re.compile(f"{_DATE}[ T]{_TIME}", re.ASCII)
_INSTANT = re.compile(rf"{_DATE}[ T]{_TIME}\+00(?::?00)?", re.ASCII)


def date_of(text: str) -> date:
    year, month, day = _groups(_PLAIN_DATE, text)
    return date(int(year), int(month), int(day))


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
