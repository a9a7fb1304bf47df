"""MySQL's and MariaDB's declarations, as the table of types wants them."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core import mappings
from tidegate.core.mappings import Declared
from tidegate.core.types import DataType

SPATIAL = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
WHOLE_CHARSETS = frozenset(
    {"utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32", "gb18030", "latin1", "binary"}
)
"""Character sets in which whatever can be stored is a character that Unicode has."""
_DEFAULT_DIGITS = 10


def data_type(declared: Declared) -> DataType:
    """By information_schema, or by the metadata of a result."""
    name = "bit(1)" if declared.name == "bit" and declared.precision == 1 else declared.name
    precision = declared.precision or _DEFAULT_DIGITS
    whole = replace(declared, name=name, precision=precision, digits=declared.digits or 0)
    return mappings.data_type("mysql", whole)


def partial_charset(charset: str | None) -> str:
    """A column's character set, if bytes in it may be no character; else nothing."""
    return charset if charset and charset not in WHOLE_CHARSETS else ""


def unmapped(name: str) -> str:
    """The condition that a text holds what its character set has no character for.

    The server sends a question mark in its place, or in some character sets U+FFFD, without a word. Those
    that were question marks before are told by their number.
    """
    sent = f"CONVERT({name} USING utf8mb4)"
    octets = f"CAST({sent} AS BINARY)"
    marks = f"CHAR_LENGTH(REPLACE({name}, '?', '')) <> CHAR_LENGTH(REPLACE({sent}, '?', ''))"
    # Most texts have no question mark at all, and to look for one costs less than to count them.
    return f"COALESCE(INSTR({octets}, '?') > 0 AND {marks} OR INSTR({octets}, X'EFBFBD') > 0, 0)"


def with_sign(name: str) -> str:
    """A text behind a sign that says whether it is what is stored."""
    return f"CONCAT(IF({unmapped(name)}, '!', '='), {name})"
