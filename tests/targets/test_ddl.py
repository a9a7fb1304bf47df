"""DDL as it is planned, before anything is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.targets import duckdb, postgresql
from tidegate.targets.ddl import Dialect, TableName, TablePlan, TargetColumn, plan_table
from tidegate.testing.targets import ORDERS, orders, schema_of

EVERYTHING = Schema(
    tuple(
        Column(kind.value, DataType(kind, 12, 2) if kind is Kind.DECIMAL else DataType(kind)) for kind in Kind
    )
)


def created(dialect: Dialect, schema: Schema, mode: WriteMode = WriteMode.APPEND) -> str:
    [statement] = plan_table(orders(mode), schema, (), dialect).statements('"s"."t"', dialect)
    return statement


def test_a_table_of_everything_in_postgresql() -> None:
    assert created(postgresql.DIALECT, EVERYTHING) == (
        'CREATE TABLE "s"."t" ("bool" boolean, "int8" smallint, "int16" smallint, "int32" integer, '
        '"int64" bigint, "uint8" smallint, "uint16" integer, "uint32" bigint, "uint64" numeric(20,0), '
        '"float32" real, "float64" double precision, "decimal" numeric(12,2), "text" text, "bytes" bytea, '
        '"date" date, "time" time without time zone, "timestamp" timestamp without time zone, '
        '"instant" timestamp with time zone, "json" json, "uuid" uuid)'
    )


def test_a_table_of_everything_in_duckdb() -> None:
    assert created(duckdb.DIALECT, EVERYTHING) == (
        'CREATE TABLE "s"."t" ("bool" BOOLEAN, "int8" TINYINT, "int16" SMALLINT, "int32" INTEGER, '
        '"int64" BIGINT, "uint8" UTINYINT, "uint16" USMALLINT, "uint32" UINTEGER, "uint64" UBIGINT, '
        '"float32" FLOAT, "float64" DOUBLE, "decimal" DECIMAL(12,2), "text" VARCHAR, "bytes" BLOB, '
        '"date" DATE, "time" TIME, "timestamp" TIMESTAMP, "instant" TIMESTAMP WITH TIME ZONE, '
        '"json" JSON, "uuid" UUID)'
    )


def test_a_table_to_merge_into() -> None:
    assert created(postgresql.DIALECT, ORDERS, WriteMode.MERGE) == (
        'CREATE TABLE "s"."t" ("id" bigint NOT NULL, "at" bigint, "note" text, "_tidegate_run" bigint, '
        'PRIMARY KEY ("id"))'
    )
    assert created(duckdb.DIALECT, ORDERS, WriteMode.MERGE) == (
        'CREATE TABLE "s"."t" ("id" BIGINT NOT NULL, "at" BIGINT, "note" VARCHAR, "_tidegate_run" BIGINT)'
    )


def test_a_table_that_has_grown() -> None:
    existing = [
        TargetColumn("id", "integer", DataType(Kind.INT32)),
        TargetColumn("note", "text", DataType(Kind.TEXT)),
    ]
    plan = plan_table(orders(), ORDERS, existing, postgresql.DIALECT)
    assert plan.statements('"s"."t"', postgresql.DIALECT) == [
        'ALTER TABLE "s"."t" ADD COLUMN "at" bigint',
        'ALTER TABLE "s"."t" ALTER COLUMN "id" TYPE bigint',
    ]
    assert plan.words("t", postgresql.DIALECT) == [
        "add column at to t",
        "widen id of t from integer to bigint",
    ]


def test_a_table_that_is_ready_needs_nothing() -> None:
    existing = [TargetColumn(column.name, "whatever", column.type) for column in reversed(ORDERS.columns)]
    assert plan_table(orders(), ORDERS, existing, postgresql.DIALECT) == TablePlan()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (schema_of(at=Kind.INT64), "column id is needed to merge"),
        (schema_of(id=Kind.INT64), "column at is needed to merge"),
        (schema_of(id=Kind.INT64, at=Kind.INT64, _tidegate_run=Kind.INT64), "needs for itself"),
    ],
)
def test_what_cannot_be_merged_is_said_beforehand(schema: Schema, problem: str) -> None:
    with pytest.raises(IncompatibleTable, match=problem):
        plan_table(orders(WriteMode.MERGE), schema, (), postgresql.DIALECT)


def test_two_columns_of_one_name_are_refused() -> None:
    doubled = Schema((ORDERS.columns[0], *ORDERS.columns))
    with pytest.raises(IncompatibleTable, match="there are two columns id"):
        plan_table(orders(), doubled, (), postgresql.DIALECT)


def test_a_merge_without_a_key_is_refused() -> None:
    with pytest.raises(IncompatibleTable, match="none is known"):
        plan_table(orders(WriteMode.MERGE, key=()), ORDERS, (), postgresql.DIALECT)


def test_a_table_is_found_in_its_schema() -> None:
    assert TableName.parse("orders", "public") == TableName("public", "orders")
    assert TableName.parse("raw.orders", "public") == TableName("raw", "orders")
    assert TableName.parse("raw.orders.2025", "public") == TableName("raw", "orders.2025")


@pytest.mark.parametrize("text", ["", ".orders", "raw."])
def test_half_a_name_is_refused(text: str) -> None:
    with pytest.raises(TargetError, match="is not the name of a table"):
        TableName.parse(text, "public")


@pytest.mark.parametrize("dialect", [postgresql.DIALECT, duckdb.DIALECT], ids=["postgresql", "duckdb"])
@pytest.mark.parametrize(
    "kind", [DataType(Kind.DATE), DataType(Kind.TIMESTAMP, 6), DataType(Kind.DECIMAL, 9, 2)]
)
def test_a_column_becomes_text_and_takes_what_was_staged_before(dialect: Dialect, kind: DataType) -> None:
    text = DataType(Kind.TEXT)
    there = [TargetColumn("v", dialect.native(kind), kind)]
    plan = plan_table(replace(orders(), texts=("v",)), schema_of(v=text), there, dialect)
    assert [step.after for step in plan.widen] == [text]
    with pytest.raises(IncompatibleTable, match="column v: the rows bring text"):
        plan_table(orders(), schema_of(v=text), there, dialect)  # nobody has decided so
    there = [TargetColumn("v", dialect.native(text), text)]
    assert plan_table(orders(), schema_of(v=kind), there, dialect).ready


def test_a_target_that_does_not_write_text_keeps_its_types() -> None:
    strict = replace(postgresql.DIALECT, writes_text=False)
    there = [TargetColumn("v", "date", DataType(Kind.DATE))]
    with pytest.raises(IncompatibleTable, match="column v: the rows bring text"):
        plan_table(orders(), schema_of(v=Kind.TEXT), there, strict)


@pytest.mark.parametrize("dialect", [postgresql.DIALECT, duckdb.DIALECT], ids=["postgresql", "duckdb"])
def test_numbers_do_not_become_text_by_themselves(dialect: Dialect) -> None:
    there = [TargetColumn("v", "bigint", DataType(Kind.INT64))]
    with pytest.raises(IncompatibleTable):
        plan_table(orders(), schema_of(v=Kind.TEXT), there, dialect)
