"""A user's own SELECT with `{low}` and `{high}` in it.

Where the pipeline names a cursor column, the placeholders only help the database to read less: they are
filled a little wider than the window, and the window itself is held by a condition around the SELECT, so
that a `<` written for a `<=` loses nothing. Without a cursor column the SELECT is taken at its word:
`> {low} AND <= {high}`, in the database's own time.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal

from tidegate.core.positions import Position, Value
from tidegate.core.strategies import Cursor
from tidegate.core.windows import Window
from tidegate.sources.contract import Source

_LOW, _HIGH = "{low}", "{high}"
_FIRST_MOMENT, _LAST_MOMENT = datetime(1, 1, 1), datetime(9999, 12, 31)  # noqa: DTZ001 - no zone is meant
_LARGEST_ID = 10**38
"""Further than any integer or decimal that a cursor can hold."""


def filled(source: Source, query: str, window: Window, cursor: Cursor) -> str:
    """The SELECT for one window; an open end reaches as far as the type does."""
    moment = cursor.timestamp is not None or cursor.id is None
    slack = 1 if cursor.columns else 0
    low = _widened(window.low, -slack) if window.low else (_FIRST_MOMENT if moment else -_LARGEST_ID)
    high = _widened(window.high, slack) if window.high else (_LAST_MOMENT if moment else _LARGEST_ID)
    return query.replace(_LOW, source.literal(low)).replace(_HIGH, source.literal(high))


def _widened(position: Position, by: int) -> Value:
    value = position.values[0]
    if isinstance(value, date):  # a datetime is a date too; one day covers every precision
        with suppress(OverflowError):  # the first and the last day there is need no more room
            return value + timedelta(days=by)
        return value
    return value + by if isinstance(value, int | Decimal) else value
