"""A window in SQL for databases that find no index range in a comparison of rows.

Nothing here decides which end belongs to a window; it only says the same in a form that an optimiser turns
into ranges of an index, also when the window begins inside a hot second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tidegate.core.positions import Position, Value
from tidegate.core.windows import Literal, Window

EVERYTHING = "1 = 1"
NOTHING = "1 = 0"


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
