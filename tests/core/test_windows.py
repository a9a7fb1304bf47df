"""Windows: half-open, tiled by their chunks, and the same in SQL as in Python."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.generated import any_windows, id_windows, ids, ordered_pair
from tidegate.core.positions import Position, Value
from tidegate.core.predicates import fixed, nested, row_values
from tidegate.core.windows import (
    Window,
    cut,
    merge,
    subtract,
    tiles,
)

LINE = [Position.of(number) for number in range(-22, 23)]
"""Every position that the windows here can tell apart, and a few beyond."""


def inside(windows: Iterable[Window]) -> list[list[bool]]:
    return [[position in window for position in LINE] for window in windows]


def covered(windows: Iterable[Window]) -> list[int]:
    """How many of the windows hold each position."""
    return [sum(column) for column in zip(*inside(windows), strict=True)] or [0] * len(LINE)


@given(any_windows)
def test_a_window_is_the_same_after_a_round_trip_through_json(window: Window) -> None:
    assert Window.from_json(json.loads(json.dumps(window.to_json()))) == window


def test_the_low_end_is_outside_and_the_high_end_inside() -> None:
    window = Window(Position.of(1), Position.of(3))
    assert [number for number in range(6) if Position.of(number) in window] == [2, 3]


def test_a_window_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="cannot end"):
        Window(Position.of(3), Position.of(1))


@given(id_windows)
def test_a_window_is_empty_exactly_when_it_holds_nothing(window: Window) -> None:
    assert window.empty == (not any(inside([window])[0]))


# --- Chunks ------------------------------------------------------------------


@given(id_windows, st.lists(ids))
def test_chunks_tile_their_window(window: Window, cuts: list[Position]) -> None:
    inner = sorted({c for c in cuts if c in window and c != window.high}, key=lambda c: c.values)
    chunks = cut(window, inner)
    assert [chunk.number for chunk in chunks] == list(range(1, len(inner) + 2))
    parts = [chunk.window for chunk in chunks]
    assert tiles(window, parts)
    assert covered(parts) == covered([window])


@given(st.lists(st.text(max_size=3).map(Position.of), min_size=2, max_size=6))
def test_chunks_tile_whatever_the_databases_order_may_be(ends: list[Position]) -> None:
    window = Window(ends[0], ends[-1])
    assert tiles(window, [chunk.window for chunk in cut(window, ends[1:-1])])


@given(id_windows, st.lists(id_windows, max_size=5))
def test_windows_tile_exactly_when_they_cover_in_order_without_gap_or_overlap(
    window: Window, parts: list[Window]
) -> None:
    if not tiles(window, parts):
        return
    assert covered(parts) == covered([window])
    assert sum(part.low is None for part in parts) == (window.low is None)


@given(id_windows, st.lists(ids, min_size=1, max_size=5), st.data())
def test_a_missing_repeated_or_exchanged_chunk_is_noticed(
    window: Window, cuts: list[Position], data: st.DataObject
) -> None:
    inner = sorted({c for c in cuts if c in window and c != window.high}, key=lambda c: c.values)
    parts = [chunk.window for chunk in cut(window, inner)]
    assume(len(parts) > 1 and not any(part.empty for part in parts))
    place = data.draw(st.integers(0, len(parts) - 1))
    assert not tiles(window, parts[:place] + parts[place + 1 :])
    assert not tiles(window, [*parts[: place + 1], *parts[place:]])
    assert not tiles(window, [*parts[1:], parts[0]])


def test_nothing_tiles_no_window() -> None:
    assert not tiles(Window(None, None), [])
    assert not tiles(Window(None, None), [Window(None, None), Window(None, None)])


# --- Sets of windows ---------------------------------------------------------


@given(id_windows, st.lists(id_windows, max_size=6))
def test_subtracting_leaves_what_no_other_window_reaches(window: Window, holes: list[Window]) -> None:
    rest = subtract(window, holes)
    expected = [
        count and not any(position in hole for hole in holes)
        for position, count in zip(LINE, covered([window]), strict=True)
    ]
    assert covered(rest) == expected
    assert rest == sorted(rest, key=lambda part: part.low.values if part.low else (-99,))


@given(st.lists(id_windows, max_size=6))
def test_merging_keeps_the_ranges_and_joins_what_touches(windows: list[Window]) -> None:
    merged = merge(windows)
    assert covered(merged) == [bool(count) for count in covered(windows)]
    assert merge(merged) == merged
    assert merge(reversed(windows)) == merged
    for left, right in pairwise(merged):
        assert left.high is not None
        assert right.low is not None
        assert left.high < right.low


# --- SQL ---------------------------------------------------------------------

Predicate = Callable[[Window, Sequence[str], Callable[[Value], str]], str]

rows = st.integers(1, 3).flatmap(
    lambda width: st.tuples(
        st.just(width),
        st.lists(st.tuples(*[st.integers(0, 3)] * width), min_size=1, max_size=30),
        st.builds(ordered_pair, st.none() | prefixes(width), st.none() | prefixes(width)),
    )
)
"""Tables of one to three columns with many ties, and a window over them."""


def prefixes(width: int) -> st.SearchStrategy[Position]:
    """Positions that name all columns or only the first ones."""
    return st.lists(st.integers(-1, 4), min_size=1, max_size=width).map(lambda found: Position(tuple(found)))


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


@pytest.mark.parametrize("predicate", [row_values, nested, fixed])
@given(data=rows)
def test_a_predicate_finds_exactly_the_rows_inside_the_window(
    sqlite: sqlite3.Connection,
    predicate: Predicate,
    data: tuple[int, list[tuple[int, ...]], Window],
) -> None:
    width, table, window = data
    columns = [f'"{name}"' for name in "abc"[:width]]
    values = ", ".join(f"({', '.join(map(str, row))})" for row in table)
    where = predicate(window, columns, str)
    found = sqlite.execute(
        f"WITH t({', '.join(columns)}) AS (VALUES {values}) SELECT * FROM t WHERE {where}"
    ).fetchall()
    assert sorted(found) == sorted(row for row in table if Position(row) in window)


def test_a_window_inside_one_hot_second_reads_a_range_of_the_next_column() -> None:
    window = Window(Position.of(7, 10), Position.of(7, 20))
    assert fixed(window, ["t", "id"], str) == "t = 7 AND id > 10 AND id <= 20"


def test_an_open_window_is_a_predicate_that_is_always_true() -> None:
    for predicate in (row_values, nested, fixed):
        assert predicate(Window(None, None), ["id"], str) == "1 = 1"
