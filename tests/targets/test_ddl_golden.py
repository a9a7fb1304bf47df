"""The DDL of whole lives of tables, word for word, in files that a reviewer can read.

After a change that is meant, `python -m tests.targets.test_ddl_golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.core.names import name_columns, named_schema
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.sync.naming import named_table
from tidegate.targets import duckdb, postgresql, redshift
from tidegate.targets.contract import TargetTable
from tidegate.targets.ddl import Dialect, TargetColumn, plan_table
from tidegate.testing.targets import orders, schema_of

DIALECTS = {
    "duckdb": duckdb.DIALECT,
    "postgresql": postgresql.DIALECT,
    "redshift": redshift.DIALECT,
}
GOLDEN = Path(__file__).parent / "golden"

EVERYTHING = Schema(
    tuple(
        Column(kind.value, DataType(kind, 12, 2) if kind is Kind.DECIMAL else DataType(kind)) for kind in Kind
    )
)
ODD = ("id", "select", "Name", "name", "with space", 'a "quote"', "xmin", "_tidegate_run", "é" * 40, "2nd")
BEFORE = schema_of("id", id=Kind.INT32, at=Kind.TIMESTAMP, price=DataType(Kind.DECIMAL, 9, 2), gone=Kind.TEXT)
AFTER = schema_of(
    "id",
    id=Kind.INT64,
    at=Kind.TIMESTAMP,
    price=DataType(Kind.DECIMAL, 12, 4),
    more=Kind.JSON,
    most=Kind.UUID,
)


def life(name: str) -> str:
    dialect = DIALECTS[name]
    odd = Schema(tuple(Column(column, DataType(Kind.TEXT)) for column in ODD), ("id",))
    names = name_columns(ODD, dialect.names)
    parts = {
        "a table of every kind": _made(orders(), EVERYTHING, dialect),
        "a table to merge into": _made(orders(WriteMode.MERGE), BEFORE, dialect),
        "the same, when the source has gained and lost columns, and widened some": _grown(name),
        "a table of odd names": _made(
            named_table(orders(WriteMode.MERGE, cursor=()), names), named_schema(odd, names), dialect
        ),
    }
    return "\n\n".join(f"-- {title}\n{text}" for title, text in parts.items()) + "\n"


def _made(table: TargetTable, schema: Schema, dialect: Dialect) -> str:
    return _lines(plan_table(table, schema, (), dialect).statements('"s"."t"', dialect))


def _grown(name: str) -> str:
    dialect = DIALECTS[name]
    natives = [(column, dialect.native(column.type)) for column in BEFORE.columns]
    existing = [TargetColumn(column.name, native, column.type) for column, native in natives]
    plan = plan_table(orders(WriteMode.MERGE), AFTER, existing, dialect)
    words = ", ".join(plan.words("t", dialect))
    statements = plan.statements('"s"."t"', dialect)
    return f"-- {words}\n{_lines(statements)}"


def _lines(statements: list[str]) -> str:
    return "\n".join(f"{statement};".replace(', "', ',\n    "') for statement in statements)


@pytest.mark.parametrize("name", DIALECTS)
def test_ddl_is_as_it_was(name: str) -> None:
    assert life(name) == (GOLDEN / f"{name}.sql").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in DIALECTS:
        (GOLDEN / f"{each}.sql").write_text(life(each), encoding="utf-8")
