"""What SQLite's declared types are to Tidegate.

A value in SQLite has a type of its own, whatever its column declares. The declaration is taken at its word,
and a value that does not keep it is an error when it is read:

- `DATETIME` and `TIMESTAMP` are wall-clock readings, written `YYYY-MM-DD HH:MM:SS[.ffffff]`, with a space or
  a `T`; `DATE` is `YYYY-MM-DD`. They compare as text, so a column that serves as a cursor has to be written
  in one form throughout. Epoch numbers in such a column are refused rather than guessed at.
- `BOOLEAN` is 0 or 1. `DECIMAL(p, s)` and `NUMERIC(p, s)` are exact; without sizes they are text.
- Everything else goes by SQLite's own affinity.
"""

from __future__ import annotations

import re

from tidegate.core.types import DataType, Kind
from tidegate.sources.types import decimal_type

_SIZES = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_MOST_SECOND_DIGITS = 6


def data_type(declared: str) -> DataType:
    word = declared.upper()
    if "BOOL" in word:
        return DataType(Kind.BOOL)
    if "DATETIME" in word or "TIMESTAMP" in word:
        return DataType(Kind.TIMESTAMP, precision=_MOST_SECOND_DIGITS)
    if word.startswith("DATE"):
        return DataType(Kind.DATE)
    if word.startswith("JSON"):
        return DataType(Kind.JSON)
    return _by_affinity(word)


def has_numeric_affinity(declared: str) -> bool:
    word = declared.upper()
    named = ("INT", "CHAR", "CLOB", "TEXT", "BLOB", "REAL", "FLOA", "DOUB")
    return bool(word) and not any(part in word for part in named)


def _by_affinity(word: str) -> DataType:
    if "INT" in word:
        return DataType(Kind.INT64)
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return DataType(Kind.TEXT)
    if "BLOB" in word:
        return DataType(Kind.BYTES)
    if any(part in word for part in ("REAL", "FLOA", "DOUB")):
        return DataType(Kind.FLOAT64)
    sizes = _SIZES.search(word)
    return decimal_type(int(sizes[1]), int(sizes[2] or 0)) if sizes else DataType(Kind.TEXT)
