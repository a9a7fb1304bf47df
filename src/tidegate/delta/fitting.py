"""Whether rows come out of a Delta table as they were put into it.

Spark casts what it writes to the types that the table has. Numbers that are too large for them are an error;
fractions that are cut off, digits that are rounded away and times that are lost are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.delta.log import kind_of

_WHOLE = ("byte", "short", "integer", "long")
_SURE: Mapping[str, tuple[str, ...]] = {
    "byte": ("float", "double"),
    "short": ("float", "double"),
    "integer": ("double",),
    "float": ("double",),
    "date": ("timestamp", "timestamp_ntz"),
}
"""Other types that hold every value of a type."""
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")


def unfitting(rows: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[str]:
    """What the table's columns would change silently. Both are schemas as Delta writes them down."""
    has = {item["name"].casefold(): item["type"] for item in table["fields"]}
    for item in rows["fields"]:
        name, kind = item["name"], item["type"]
        there = has.get(name.casefold(), kind)
        if not fits(kind, there):
            yield f"`{name}` is {kind_of(kind)}, and {kind_of(there)} there"


def fits(kind: Any, there: Any) -> bool:
    """Whether a column holds every value of a type, or says so where it does not."""
    if kind_of(kind) == kind_of(there) or kind == "void":
        return True
    if isinstance(kind, dict) or isinstance(there, dict):
        return False
    whole = kind in _WHOLE
    if there == "string" or there in _SURE.get(kind, ()) or (whole and there in _WHOLE):
        return True
    digits = _DECIMAL.fullmatch(there)
    of = 0 if whole else _scale(kind)
    return digits is not None and of is not None and of <= int(digits[1])


def _scale(kind: str) -> int | None:
    found = _DECIMAL.fullmatch(kind)
    return int(found[1]) if found else None
