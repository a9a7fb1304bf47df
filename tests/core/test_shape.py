"""Values read from outside are held to the shape their data class declares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from tidegate.core.positions import Position
from tidegate.core.shape import demand_shape


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    rows: int


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    flag: bool = False
    colour: Colour = Colour.RED
    at: datetime | None = None
    place: Position | None = None
    inner: Inner = Inner(1)
    many: tuple[Inner, ...] = ()
    pair: tuple[str, Any] = ("x", None)
    data: dict[str, Any] | None = None


MOMENT = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        Outer(),
        Outer(at=MOMENT, place=Position.of(-5, "x"), many=(Inner(0), Inner(7)), pair=("a", [1]), data={}),
    ],
)
def test_what_has_its_shape_passes(value: Outer) -> None:
    demand_shape(value, Outer)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": 7}, "name is int, not str"),
        ({"name": None}, "name is NoneType"),
        ({"flag": 1}, "flag is int, not bool"),
        ({"colour": "red"}, "colour is str, not Colour"),
        ({"at": MOMENT.replace(tzinfo=None)}, "at has no time zone"),
        ({"at": "2025-01-01"}, "at is str, not datetime"),
        ({"place": 5}, "place is int, not Position"),
        ({"inner": Inner(-1)}, "inner.rows is negative: -1"),
        ({"inner": Inner(rows=True)}, "inner.rows is bool, not int"),
        ({"inner": Inner(1.0)}, "inner.rows is float, not int"),  # type: ignore[arg-type]
        ({"inner": {"rows": 1}}, "inner is dict, not Inner"),
        ({"many": [Inner(1)]}, "many is list"),
        ({"many": (Inner(1), Inner(-2))}, "many[1].rows is negative"),
        ({"pair": ("x",)}, "pair is tuple"),
        ({"pair": (1, 2)}, "pair[0] is int, not str"),
        ({"data": []}, "data is list, not dict"),
    ],
)
def test_what_has_another_shape_is_refused_and_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        demand_shape(Outer(**changed), Outer)
    assert str(raised.value).startswith(words)


def test_a_path_says_where_the_value_was_found() -> None:
    with pytest.raises(ValueError, match=r"lease\.rows is negative"):
        demand_shape(Inner(-1), Inner, "lease")
