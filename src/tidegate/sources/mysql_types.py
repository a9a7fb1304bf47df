"""MySQL's and MariaDB's declarations, as the table of types wants them."""

from __future__ import annotations

import re
from dataclasses import replace

from tidegate.core import mappings
from tidegate.core.mappings import Declared
from tidegate.core.types import Column, DataType

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
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
_SHOWN = 80
"""Characters of a text that cannot be sent."""


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
    """The condition that a text cannot be sent as it is stored, without ever being NULL.

    For what its character set has no character for, the server sends a question mark, or in some sets U+FFFD,
    without a word. Those that were question marks before are told by their number.
    """
    sent = _unicode(name)
    octets = f"CAST({sent} AS BINARY)"
    marks = f"CHAR_LENGTH(REPLACE({name}, '?', '')) <> CHAR_LENGTH(REPLACE({sent}, '?', ''))"
    # Most texts have no question mark at all, and to look for one costs less than to count them.
    return (
        f"COALESCE({_too_long(name)} OR INSTR({octets}, '?') > 0 AND {marks} "
        f"OR INSTR({octets}, X'EFBFBD') > 0, 0)"
    )


def halved(name: str) -> str:
    """The condition that a text in Unicode holds half a character, such as U+D83D, without ever being NULL.

    To the server it is a character like any other; no UTF-8 has it, and UTF-16 has a question mark instead.
    """
    octets = f"CAST({_unicode(name)} AS BINARY)"
    marks = f"CHAR_LENGTH(REPLACE({without_halves(name)}, '?', '')) <> CHAR_LENGTH(REPLACE({name}, '?', ''))"
    # All halves begin with this byte in UTF-8, as does some of the Korean alphabet.
    return f"COALESCE(INSTR({octets}, X'ED') > 0 AND {marks}, 0)"


def without_halves(name: str) -> str:
    """The text with question marks for halves of characters."""
    return _unicode(f"CONVERT({name} USING utf16)")


def may_be_halved(column: Column) -> bool:
    word = re.split(r"[ (]", column.native.lower(), maxsplit=1)[0]  # of `text /*M!100301 COMPRESSED*/`, too
    return word in _TEXTS and not column.charset


def with_sign(name: str) -> str:
    """A text behind a sign that says whether it is what is stored; if not, only its beginning."""
    return _signed(name, unmapped(name))


def with_sign_of_halves(name: str) -> str:
    """The same for a text in Unicode, where only halves of characters cannot be sent."""
    return _signed(name, f"{halved(name)} OR {_too_long(name)}")


def _signed(name: str, wrong: str) -> str:
    shown = f"CONCAT('!', LEFT({without_halves(name)}, {_SHOWN}))"
    return f"CASE WHEN {wrong} THEN {shown} ELSE CONCAT('=', {_unicode(name)}) END"


def _too_long(name: str) -> str:
    """The condition that a text with a sign before it would be NULL: beyond max_allowed_packet."""
    return f"{name} IS NOT NULL AND CONCAT('=', {_unicode(name)}) IS NULL"


def _unicode(name: str) -> str:
    return f"CONVERT({name} USING utf8mb4)"
