"""A window in SQL holds exactly the rows of the window."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.positions import Position
from tidegate.core.predicates import Literal, fixed, nested, steps
from tidegate.core.windows import Window

Form = Callable[[Window, Sequence[str], Literal], str]

COLUMNS = ("a", "b", "c")
VALUES = range(3)
ROWS = list(product(VALUES, repeat=3))
positions = st.none() | st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(
    lambda values: Position(tuple(values))
)


@pytest.fixture(scope="module")
def table() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a int, b int, c int)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
        yield connection


def window(low: Position | None, high: Position | None) -> Window:
    if low is not None and high is not None and high.compare(low) == -1:
        low, high = high, low
    return Window(low, high)


def found(table: sqlite3.Connection, condition: str) -> list[tuple[int, ...]]:
    return table.execute(f"SELECT a, b, c FROM t WHERE {condition} ORDER BY a, b, c").fetchall()


def inside(window: Window) -> list[tuple[int, ...]]:
    return [row for row in ROWS if Position(row) in window]


@pytest.mark.parametrize("form", [nested, fixed])
@given(low=positions, high=positions)
def test_a_condition_holds_the_rows_of_its_window(
    form: Form,
    table: sqlite3.Connection,
    low: Position | None,
    high: Position | None,
) -> None:
    part = window(low, high)
    assert found(table, form(part, COLUMNS, str)) == inside(part)


@given(low=positions, high=positions)
def test_steps_follow_each_other_and_make_up_the_window(
    table: sqlite3.Connection, low: Position | None, high: Position | None
) -> None:
    part = window(low, high)
    end = fixed(Window(None, part.high), COLUMNS, str)
    rows = [row for step in steps(part) for row in found(table, f"{fixed(step, COLUMNS, str)} AND {end}")]
    assert rows == inside(part)
