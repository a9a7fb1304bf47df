"""The one table of types, and the page that is made from it.

After a change that is meant, `python -m tests.core.test_mappings` writes the page anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.arrow import arrow_type
from tidegate.core.mappings import (
    CARRIED,
    MOST_DIGITS,
    SOURCES,
    TARGETS,
    Declared,
    Sizes,
    SourceType,
    TargetType,
    data_type,
    decimal_type,
    limits,
    native_type,
    source_type,
    unfit,
)
from tidegate.core.types import DataType, Kind

PAGE = Path(__file__).parents[2] / "docs/reference/types.md"
TITLES = {"mysql": "MySQL and MariaDB", "postgresql": "PostgreSQL", "sqlite": "SQLite"}
TARGET_TITLES = {"duckdb": "DuckDB", "postgresql": "PostgreSQL", "redshift": "Redshift", "delta": "Delta"}

INTRODUCTION = """# Types

What each type of a source's columns is on the way, as Arrow and Parquet have it, and what it becomes at each
target. This page is made from the table that the code itself goes by (`tidegate.core.mappings`).

What is true of a whole type is decided by the type: a column that no type of the target can hold travels as
text, in the words of its own database, and is text at the target. Nothing is lost by that, and it is never
an error. *Single values* that their type cannot hold, here under "values that do not fit", are a matter of
[`on_lossy`](../how-to/values-that-do-not-fit.md): they stop the table, unless you decide otherwise.
"""
TEXTS = {
    "mysql": "Generated and invisible columns are columns like any other.",
    "postgresql": "A domain is what it is made from. Types that extensions and users define travel as text.",
    "sqlite": "In SQLite a value has a type of its own, whatever its column declares: the declaration is "
    "taken at its word, and a value that does not keep it does not fit. A column without a declaration goes "
    "by the values of its first rows. In a column that `on_lossy` carries as text, numbers are written with "
    "all their digits, and blobs as `X'0A'`.",
}
LIMITS = """## Values that a target cannot hold

These fit their type on the way, and a target refuses them. `on_lossy` decides on them too, before they are
staged.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for source, rows in SOURCES.items():
        parts.append(f"## {TITLES[source]}\n\n{TEXTS[source]}\n")
        head = ["type", "Arrow", *TARGET_TITLES.values(), "values that do not fit", "remarks"]
        parts.append(_table(head, [line for row in rows for line in _lines(row)]))
    parts += [LIMITS, _table(["target", "type", "what it cannot hold"], list(_limits()))]
    parts += ["## Remarks on the targets' types\n", _table(["target", "type", "remark"], list(_remarks()))]
    return "\n".join(parts)


def _lines(row: SourceType) -> Iterator[list[str]]:
    yield _line(row.shown, row.kind, row)
    if row.unsigned is not None:
        yield _line(f"{row.shown} UNSIGNED", row.unsigned, row)


def _line(shown: str, kind: Kind, row: SourceType) -> list[str]:
    carried = CARRIED[kind]
    types = [carried.arrow, *(carried.at(target).native for target in TARGETS)]
    shapes = [f"`{_shown(each, row.sizes)}`" for each in types]
    return [shown, *shapes, row.unfit, row.note]


def _shown(native: str, sizes: Sizes = Sizes.LENGTH) -> str:
    size = "4n" if sizes is Sizes.LENGTH else "65535"
    return native.format(precision="p", scale="s", bytes=size)


def _limits() -> Iterator[list[str]]:
    for target, native, held in _types():
        if str(held.limits):
            yield [target, native, str(held.limits)]


def _remarks() -> Iterator[list[str]]:
    for target, native, held in _types():
        if held.note:
            yield [target, native, held.note]


def _types() -> Iterator[tuple[str, str, TargetType]]:
    for target, title in TARGET_TITLES.items():
        for kind, carried in CARRIED.items():
            held = carried.at(target)
            yield title, f"`{_shown(held.native)}` ({kind.value})", held


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_kind_is_carried_everywhere() -> None:
    assert set(CARRIED) == set(Kind)
    for kind in Kind:
        declared = DataType(kind, 12, 2) if kind is Kind.DECIMAL else DataType(kind)
        for target in TARGETS:
            assert native_type(target, declared)
            assert isinstance(arrow_type(declared, target), pa.DataType)


@pytest.mark.parametrize("target", ["redshift", "delta"])
def test_no_file_for_a_target_without_them_holds_unsigned_numbers_or_times(target: str) -> None:
    for kind in Kind:
        found = arrow_type(DataType(kind, 12, 2), target)
        assert not pa.types.is_unsigned_integer(found)
        assert not pa.types.is_time(found)


def test_what_a_target_loads_holds_all_that_the_kind_holds() -> None:
    for kind in Kind:
        if kind.value.startswith(("int", "uint")):
            ends = _ends(arrow_type(DataType(kind)))
            for target in TARGETS:
                pa.array(ends, arrow_type(DataType(kind), target))


def _ends(kind: pa.DataType) -> list[int]:
    bits = kind.bit_width
    return (
        [0, 2**bits - 1] if pa.types.is_unsigned_integer(kind) else [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    )


@pytest.mark.parametrize("source", SOURCES)
def test_any_name_of_a_type_has_a_row(source: str) -> None:
    assert source_type(source, "never\nheard of") is SOURCES[source][-1]
    assert all(re.compile(row.pattern) for row in SOURCES[source])


@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_a_decimal_keeps_its_digits_or_is_text(precision: int, scale: int) -> None:
    found = decimal_type(precision, scale)
    if found.kind is Kind.DECIMAL:
        assert found.precision is not None
        assert found.scale is not None
        assert found.precision <= MOST_DIGITS
        assert found.scale >= scale
        assert found.precision - found.scale >= precision - scale
    else:
        assert found == DataType(Kind.TEXT)


def test_a_length_in_characters_leaves_room_for_the_widest() -> None:
    assert native_type("redshift", DataType(Kind.TEXT, length=10)) == "VARCHAR(40)"
    assert native_type("redshift", DataType(Kind.TEXT, length=60_000)) == "VARCHAR(65535)"
    assert native_type("redshift", DataType(Kind.TEXT, length=0)) == "VARCHAR(1)"
    assert native_type("redshift", DataType(Kind.TEXT)) == "VARCHAR(65535)"


def test_which_values_may_not_fit_is_known_by_kind() -> None:
    assert "0000-00-00" in unfit("mysql", Kind.DATE)
    assert "infinity" in unfit("postgresql", Kind.INSTANT)
    assert unfit("mysql", Kind.DECIMAL) == unfit("postgresql", Kind.INT64) == ""
    assert limits("postgresql", Kind.TEXT).nul is False
    assert limits("duckdb", Kind.TEXT).nul is True


def test_sizes_are_kept_where_a_type_has_them() -> None:
    assert data_type("mysql", Declared("datetime", digits=3)) == DataType(Kind.TIMESTAMP, precision=3)
    assert data_type("mysql", Declared("bigint", unsigned=True)) == DataType(Kind.UINT64)
    assert data_type("postgresql", Declared("varchar", length=9)) == DataType(Kind.TEXT, length=9)
    assert data_type("postgresql", Declared("numeric")) == DataType(Kind.TEXT)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
