"""A window as a condition in SQL, in the forms that databases turn into ranges of an index.

Which form it takes is a matter of the optimiser: one form that is a range for one database walks over the
whole table in another. All of them say the same: after `low`, up to and including `high`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tidegate.core.positions import Position, Value
from tidegate.core.windows import Window

Literal = Callable[[Value], str]
"""How a dialect writes a value into SQL."""

EVERYTHING = "1 = 1"
NOTHING = "1 = 0"


def row_values(window: Window, columns: Sequence[str], literal: Literal) -> str:
    """SQL for a database that turns `(a, b) > (x, y)` into one index range."""
    parts = []
    if window.low is not None:
        parts.append(_row_value(columns, ">", window.low, literal))
    if window.high is not None:
        parts.append(_row_value(columns, "<=", window.high, literal))
    return " AND ".join(parts) or EVERYTHING


def _row_value(columns: Sequence[str], operator: str, position: Position, literal: Literal) -> str:
    named = columns[: len(position.values)]
    if len(named) == 1:
        return f"{named[0]} {operator} {literal(position.values[0])}"
    values = ", ".join(literal(value) for value in position.values)
    return f"({', '.join(named)}) {operator} ({values})"


def nested(window: Window, columns: Sequence[str], literal: Literal) -> str:
    """Compared column by column, for an optimiser that sorts such conditions into ranges by itself.

    The equality beside each inner comparison makes it a range of the next index column: without it a jump
    inside a hot second walks over the whole second. An equality *outside* the brackets would do so too: it
    tempts MariaDB to look up the second by it, and to filter the rest.
    """
    parts = []
    if window.low is not None:
        parts.append(_compared(columns, (">", ">"), window.low.values, literal))
    if window.high is not None:
        parts.append(_compared(columns, ("<", "<="), window.high.values, literal))
    return " AND ".join(parts) or EVERYTHING


def fixed(window: Window, columns: Sequence[str], literal: Literal) -> str:
    """Compared column by column, with equalities where both ends agree.

    For an optimiser that ranges over one column, behind columns that are held equal.
    """
    lows = window.low.values if window.low else ()
    highs = window.high.values if window.high else ()
    same = _shared(lows, highs)
    if same and same == len(lows):
        return NOTHING  # a low that ends here stands behind all rows that agree with it
    parts = [f"{columns[i]} = {literal(value)}" for i, value in enumerate(lows[:same])]
    if lows[same:]:
        parts.append(_compared(columns[same:], (">", ">"), lows[same:], literal))
    if highs[same:]:
        parts.append(_compared(columns[same:], ("<", "<="), highs[same:], literal))
    return " AND ".join(parts) or EVERYTHING


def steps(window: Window) -> tuple[Window, ...]:
    """What lies behind the window's low end, in order: the rest of its last column, of the one before, …

    Each step is a range over one column behind columns that are held equal. The high end is left open.
    """
    if window.low is None:
        return (Window(None, None),)
    values = window.low.values
    ends = [Position(values[:size]) for size in range(len(values), 0, -1)]
    inner = [Window(low, high) for low, high in pairwise(ends)]
    return (*inner, Window(ends[-1], None))


def _shared(lows: Sequence[Value], highs: Sequence[Value]) -> int:
    """On how many leading columns the ends agree. The database may know more values to be equal."""
    count = 0
    for low, high in zip(lows, highs, strict=False):
        if low != high:
            break
        count += 1
    return count


def _compared(
    columns: Sequence[str], operators: tuple[str, str], values: Sequence[Value], literal: Literal
) -> str:
    strict, last = operators
    value = literal(values[0])
    if len(values) == 1:
        return f"{columns[0]} {last} {value}"
    inner = _compared(columns[1:], operators, values[1:], literal)
    # The first comparison is redundant; it bounds the index where the brackets are only a filter.
    return (
        f"{columns[0]} {strict}= {value} AND "
        f"({columns[0]} {strict} {value} OR ({columns[0]} = {value} AND {inner}))"
    )
