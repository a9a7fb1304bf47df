"""Positions: typed, ordered where Python can know the order, and the same after a round trip."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.generated import positions, wall_clock_readings
from tidegate.core.positions import Position

pairs = st.tuples(wall_clock_readings, st.integers(-3, 3)).map(Position)


@given(positions)
def test_a_position_is_the_same_after_a_round_trip_through_json(position: Position) -> None:
    back = Position.from_json(json.loads(json.dumps(position.to_json())))
    assert back == position
    assert [type(value) for value in back.values] == [type(value) for value in position.values]
    assert back.compare(position) == 0


@given(positions)
def test_a_position_travels_to_executors_and_back(position: Position) -> None:
    assert pickle.loads(pickle.dumps(position)) == position


@given(pairs, pairs, pairs)
def test_positions_are_ordered_like_their_values(one: Position, two: Position, three: Position) -> None:
    assert (one < two) == (one.values < two.values)
    assert (one <= two) == (one.values <= two.values)
    if one < two < three:
        assert one < three


@given(wall_clock_readings, st.integers(), st.integers())
def test_a_position_that_names_fewer_columns_stands_behind_all_it_agrees_with(
    moment: datetime, number: int, other: int
) -> None:
    assert Position.of(moment, number) < Position.of(moment)
    assert Position.of(moment, number) < Position.of(moment, other) or number >= other
    later = moment.replace(year=moment.year % 9998 + 1)
    assert (Position.of(moment) < Position.of(later, number)) == (moment < later)


@pytest.mark.parametrize("values", [("a", "b"), (b"a", b"b"), ((1, "a"), (1, "b"))])
def test_text_and_bytes_know_equality_only(values: tuple[object, object]) -> None:
    one, other = (Position(value if isinstance(value, tuple) else (value,)) for value in values)
    assert one.compare(one) == 0
    assert one.compare(other) is None
    with pytest.raises(TypeError, match="ordered by the database alone"):
        _ = one < other


def test_a_leading_column_decides_before_text_comes_into_it() -> None:
    assert Position.of(1, "b") < Position.of(2, "a")


@pytest.mark.parametrize(
    "value",
    [
        True,
        1.5,
        None,
        Decimal("NaN"),
        Decimal("Infinity"),
        datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_values_without_a_clear_place_in_an_order_are_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Position.of(value)  # type: ignore[arg-type]


def test_a_position_has_at_least_one_value() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Position(())


def test_instants_and_wall_clock_readings_never_compare() -> None:
    instant = Position.of(datetime(2025, 1, 1, tzinfo=UTC))
    reading = Position.of(datetime(2025, 1, 1))  # noqa: DTZ001 - a reading has no zone
    assert instant != reading
    with pytest.raises(TypeError):
        _ = instant < reading


def test_a_position_shows_what_a_database_would() -> None:
    moment = datetime(2025, 1, 1, 12, 30, tzinfo=UTC)
    assert str(Position.of(moment, 7)) == "2025-01-01 12:30:00Z / 7"
    assert str(Position.of(moment.replace(tzinfo=None))) == "2025-01-01 12:30:00"
    assert str(Position.of(date(2025, 1, 1), b"\x01\xff", Decimal("1.50"))) == "2025-01-01 / 0x01ff / 1.50"


@pytest.mark.parametrize("data", ["12", {"instant": "x"}, [], [None], [1.5], [True], [{"x": 1}], [{}], None])
def test_what_is_no_position_is_refused(data: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Position.from_json(data)  # type: ignore[arg-type]
