"""Spark's Python workers as Tidegate starts them, which believe every decimal that DuckDB's scanner brings.

It makes 0 of PostgreSQL's NaN. Beside them, one sees what looking for NaN costs a whole copy.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from typing import Any

from tidegate.sources.readers import postgresql


class _Trusting(postgresql._NaN):  # noqa: SLF001 - to take this one thing away is its purpose
    """Looks at no decimal, and asks for none."""

    def __init__(self, read: Any, _: Iterable[Any], zeros: set[tuple[str, str]]) -> None:
        super().__init__(read, (), zeros)


if __name__ == "__main__":
    postgresql._NaN = _Trusting  # type: ignore[misc]  # noqa: SLF001
    runpy.run_module("tidegate.spark.daemon", run_name="__main__")
