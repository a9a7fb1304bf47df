"""PostgreSQL's types and modifiers, as the table of types wants them."""

from __future__ import annotations

from tidegate.core import mappings
from tidegate.core.mappings import Declared
from tidegate.core.types import DataType

_HEADER = 4
"""Sizes are stored with the length of a value's header added."""
_MOST_SECOND_DIGITS = 6
_SCALE_BITS = 0x7FF
_SCALE_SIGN = 0x400


def data_type(name: str, modifier: int) -> DataType:
    """A type by its internal name and modifier, as `pg_attribute` holds them."""
    return mappings.data_type("postgresql", _declared(name, modifier))


def _declared(name: str, modifier: int) -> Declared:
    digits = _MOST_SECOND_DIGITS if modifier < 0 else modifier
    if modifier < _HEADER:
        return Declared(name, digits=digits)
    packed = modifier - _HEADER
    scale = ((packed & _SCALE_BITS) ^ _SCALE_SIGN) - _SCALE_SIGN
    return Declared(name, precision=(packed >> 16) & 0xFFFF, scale=scale, digits=digits, length=packed)
