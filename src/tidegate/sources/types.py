"""What the type mappings of all databases share."""

from __future__ import annotations

from tidegate.core.types import DataType, Kind

MOST_DIGITS = 38
"""What a decimal can have in Arrow. Wider ones travel as text."""


def decimal_type(precision: int, scale: int) -> DataType:
    """The decimal that holds what was declared, if there is one, else text.

    PostgreSQL knows scales beyond the precision (0.00123) and below zero (12300).
    """
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits > MOST_DIGITS:
        return DataType(Kind.TEXT)
    return DataType(Kind.DECIMAL, precision=digits, scale=max(scale, 0))
