"""Figures as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta

_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3600.0, 86400.0
_KILO = 1000.0


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 row`, `300,000 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(number: int) -> str:
    """Bytes, in powers of a thousand as disks are sold: `12.3 MB`."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < _KILO:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KILO
    return f"{value:.1f} TB"


def span(duration: timedelta | float) -> str:
    """A length of time in its two largest units: `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds < _MINUTE:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < _HOUR:
        return _two(seconds, _MINUTE, "min", _SECOND, "s")
    if seconds < _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "min")
    return _two(seconds, _DAY, "d", _HOUR, "h")


def _two(seconds: float, large: float, large_unit: str, small: float, small_unit: str) -> str:
    whole, rest = divmod(seconds, large)
    return f"{whole:,.0f} {large_unit} {rest // small:.0f} {small_unit}"


def moment(at: datetime | None) -> str:
    """A moment to the second, in UTC: `2025-08-01 12:30:00Z`."""
    if at is None:
        return "–"
    return f"{at:%Y-%m-%d %H:%M:%S}{'Z' if at.tzinfo else ''}"
