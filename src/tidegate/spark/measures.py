"""What a rule compares a column by: what its values are, which is not always what they travel as.

A number that no type of a target holds travels as text, and as a text 100 lies before 20.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from operator import ge, le
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.types import Column, Kind

Broken = Callable[[pa.Array], pa.BooleanArray]
"""Which values of a column break a rule; a missing one breaks none."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITY = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_CLOCK = re.compile(r"(-?)(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?", re.ASCII)
_NUMBERS = re.compile(
    r"((tiny|small|medium|big)?int(eger)?|numeric|decimal|float|double( precision)?|real)\b(?!.*\[\]).*"
)
_TIMES = re.compile(r"time(\(\d\))?( without time zone)?")
_WITHOUT_ORDER = re.compile(r".*(\[\]|range)|(interval|money|inet[46]?|cidr|time.*with time zone)\b.*")


def _number(text: str) -> Decimal | None:
    """None: it is none, NaN among them."""
    return Decimal(text) if _NUMBER.fullmatch(text) or _INFINITY.fullmatch(text) else None


def _seconds(text: str) -> Decimal | None:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    sign, hours, minutes, seconds = found.groups()
    whole = int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds or 0)
    return -whole if sign else whole


@dataclass(frozen=True)
class Measure:
    """How a column's values, and the values that a rule names, are made comparable."""

    kind: pa.DataType
    read: Callable[[str], Decimal | None] | None = None
    """Reads a value from its text; None: it travels as what it is."""

    @classmethod
    def of(cls, column: Column, kind: pa.DataType) -> Measure:
        """Raises `ValueError` for values that are text and have no order as such."""
        native = column.native.lower()
        if column.type.kind is not Kind.TEXT or not native:
            return cls(kind)
        if _NUMBERS.fullmatch(native):
            return cls(kind, _number)
        if _TIMES.fullmatch(native):
            return cls(kind, _seconds)
        if _WITHOUT_ORDER.fullmatch(native):
            raise ValueError(f"values of {column.native} travel as text, which has another order")
        return cls(kind)

    def below(self, low: str) -> Broken:
        return self._beyond(low, ge, pc.greater_equal)

    def above(self, high: str) -> Broken:
        return self._beyond(high, le, pc.less_equal)

    def _beyond(
        self, end: str, holds: Callable[[Any, Any], bool], holds_all: Callable[[Any, Any], Any]
    ) -> Broken:
        """What is not on this side of the end breaks the rule: NaN is on neither side of any."""
        read = self.read
        if read is None:
            scalar = pa.array([end], pa.string()).cast(self.kind)[0]
            return lambda values: pc.invert(holds_all(values, scalar))
        wanted = self._demanded(end)
        return _each(lambda text: (found := read(text)) is None or not holds(found, wanted))

    def not_among(self, allowed: tuple[str, ...]) -> Broken:
        read = self.read
        if read is None:
            known = pa.array(allowed, pa.string()).cast(self.kind)
            return lambda values: pc.and_(pc.is_valid(values), pc.invert(pc.is_in(values, value_set=known)))
        wanted = {self._demanded(text) for text in allowed}
        return _each(lambda text: read(text) not in wanted)

    def _demanded(self, text: str) -> Decimal:
        found = self.read(text) if self.read else None
        if found is None:
            raise pa.ArrowInvalid(f"`{text}` is not one")
        return found


def _each(breaks: Callable[[str], bool]) -> Broken:
    def judged(values: pa.Array) -> pa.BooleanArray:
        texts = values.to_pylist()
        return pa.array([None if text is None else breaks(text) for text in texts], pa.bool_())

    return judged
