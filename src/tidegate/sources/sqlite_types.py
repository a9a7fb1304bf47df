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

from tidegate.core import mappings
from tidegate.core.mappings import Declared
from tidegate.core.types import DataType

_SIZES = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_MOST_SECOND_DIGITS = 6


def data_type(declared: str) -> DataType:
    word = declared.upper()
    sizes = _SIZES.search(word)
    precision, scale = (int(sizes[1]), int(sizes[2] or 0)) if sizes else (None, None)
    return mappings.data_type(
        "sqlite", Declared(word, precision=precision, scale=scale, digits=_MOST_SECOND_DIGITS)
    )


def has_numeric_affinity(declared: str) -> bool:
    word = declared.upper()
    named = ("INT", "CHAR", "CLOB", "TEXT", "BLOB", "REAL", "FLOA", "DOUB")
    return bool(word) and not any(part in word for part in named)
