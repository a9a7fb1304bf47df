"""What counts as a change of a table's columns, and which of them stop it."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.servers import Server
from tests.sources.readers.reading import run
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.sources.opening import open_source
from tidegate.sync.evolution import Evolution, compare
from tidegate.testing.targets import schema_of

RENAMED = (
    "if c is a renamed: `tidegate columns map c a` before the sync that brings it lets it go on where the "
    "old one ended"
)
DECIMAL = DataType(Kind.DECIMAL, 9, 2)


def typed(kind: DataType | Kind, *key: str) -> Schema:
    return schema_of(*key, v=kind)


def test_columns_come_and_go() -> None:
    found = compare(schema_of(a=Kind.TEXT, b=Kind.INT32), schema_of(b=Kind.INT32, c=Kind.TEXT))
    assert found.words == (
        "column c (text) is new",
        "column a is gone: it stays at the target and gets no more values",
        RENAMED,
    )
    assert found.stops(WriteMode.MERGE) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DataType(Kind.INT32), DataType(Kind.INT64)),
        (DataType(Kind.INT32), DataType(Kind.DECIMAL, 12, 2)),
        (DECIMAL, DataType(Kind.DECIMAL, 12, 4)),
        (DataType(Kind.TEXT, length=10), DataType(Kind.TEXT, length=20)),
        (DataType(Kind.FLOAT32), DataType(Kind.FLOAT64)),
        (DataType(Kind.TIMESTAMP, 0), DataType(Kind.TIMESTAMP, 6)),
    ],
)
def test_wider_is_fine_and_narrower_stops(before: DataType, after: DataType) -> None:
    wider, narrower = compare(typed(before), typed(after)), compare(typed(after), typed(before))
    assert (len(wider.wider), wider.stops(WriteMode.APPEND)) == (1, ())
    assert "is narrower" in narrower.words[0]
    assert len(narrower.stops(WriteMode.APPEND)) == 1


@pytest.mark.parametrize("after", [Kind.TEXT, Kind.DATE, Kind.FLOAT64])
def test_another_kind_stops(after: Kind) -> None:
    [reason] = compare(typed(Kind.INT32), typed(after)).stops(WriteMode.APPEND)
    assert reason == f"column v (int32 before, {after} now) holds another kind of value"


def test_another_key_stops_a_merge_alone() -> None:
    found = compare(typed(Kind.INT32, "v"), typed(Kind.INT32))
    assert found.words == ("the key is none now, it was v",)
    assert found.stops(WriteMode.APPEND) == ()
    assert found.stops(WriteMode.MERGE) == ("rows were merged by v and would be by none",)


@pytest.mark.parametrize("kind", [Kind.INT32, Kind.INT64, Kind.TEXT])
def test_a_renamed_column_that_is_mapped_is_the_same_column(kind: Kind) -> None:
    before, mapped = schema_of(a=Kind.INT32, b=Kind.TEXT), {"c": "a", "d": "b", "e": "nowhere"}
    found = compare(before, schema_of(c=kind, b=Kind.TEXT, d=Kind.TEXT, e=Kind.TEXT), mapped=mapped)
    assert found.words[:3] == (
        "column d (text) is new",
        "column e (text) is new",
        "column a is called c now, and goes on where it was",
    )
    assert (found.dropped, bool(found.stops(WriteMode.APPEND))) == ((), kind is Kind.TEXT)


def test_a_key_that_is_renamed_and_mapped_is_the_same_key() -> None:
    before, after = schema_of("a", a=Kind.INT32), schema_of("c", c=Kind.INT32)
    assert compare(before, after, mapped={"c": "a"}).stops(WriteMode.MERGE) == ()
    assert compare(before, after, mapped={"c": "a", "a": "x"}).stops(WriteMode.MERGE) != ()


@pytest.mark.parametrize("kind", [DataType(Kind.DATE), DataType(Kind.INSTANT, 6), DECIMAL])
def test_a_column_that_is_only_carried_otherwise_does_not_stop(kind: DataType) -> None:
    typed_, text = (Schema((Column("v", each, native="native"),)) for each in (kind, DataType(Kind.TEXT)))
    for before, after in ((typed_, text), (text, typed_)):
        found = compare(before, after)
        was, now = before.columns[0].type, after.columns[0].type
        assert found.words == (f"column v (native) travels as {now} now, and was {was}",)
        assert found.stops(WriteMode.MERGE) == ()


# Each column, before and after: what holds more, what holds less, and what is of another kind.
MYSQL_ALTERED = {
    "more": [
        *(("MEDIUMINT", "INT"), ("DECIMAL(50,5)", "DECIMAL(65,5)"), ("ENUM('a')", "ENUM('b','a')")),
        ("DECIMAL(38,2)", "DECIMAL(40,2)"),
    ],
    "less": [
        *(("INT", "MEDIUMINT"), ("INT UNSIGNED", "MEDIUMINT UNSIGNED"), ("BIT(9)", "BIT(3)")),
        *(("DECIMAL(65,30)", "DECIMAL(65,2)"), ("DECIMAL(9,2)", "DECIMAL(9,2) UNSIGNED")),
        *(("TIME(6)", "TIME"), ("ENUM('a','b')", "ENUM('a')"), ("VARBINARY(99)", "VARBINARY(9)")),
        *(("VARBINARY(4)", "BINARY(4)"), ("VARCHAR(4)", "CHAR(9)"), ("SET('a','b')", "SET('b','a')")),
    ],
    "other": [("VARCHAR(9)", "ENUM('a')"), ("POINT", "BLOB")],
    "none": [("INT(5)", "INT(11)"), ("DATETIME(6)", "DATETIME(6)"), ("BINARY(4)", "VARBINARY(4)")],
}
POSTGRES_ALTERED = {
    "more": [
        *(("numeric(50,5)", "numeric"), ("interval(0)", "interval"), ("varchar(5)[]", "varchar(9)[]")),
        *(("numeric(38,2)", "numeric(40,2)"), ("numeric", "text"), ("mood", "text")),
    ],
    "less": [
        *(("numeric(50,5)", "numeric(50,2)"), ("interval", "interval(0)"), ("timetz", "timetz(3)")),
        *(("bit varying", "bit varying(3)"), ("numeric[]", "numeric(9,2)[]")),
        *(("bit(5)", "bit(8)"), ("varchar(9)", "char(9)"), ("text", "name")),
    ],
    "other": [
        *(("interval", "text"), ("integer[]", "text[]"), ("text", "xml"), ("text", "mood")),
        *(("numeric(38,2)", "numeric(40,4)"), ("numeric(9,2)", "numeric")),
    ],
    "none": [("varchar", "text"), ("name", "text")],
}


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_a_type_that_becomes_another_one_is_seen_also_where_both_travel_alike(
    request: pytest.FixtureRequest, kind: str
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_database")
    altered = MYSQL_ALTERED if kind == "mariadb" else POSTGRES_ALTERED
    named = {f"{name}{n}": pair for name, pairs in altered.items() for n, pair in enumerate(pairs)}
    if kind == "postgres":
        run(server, "CREATE TYPE mood AS ENUM ('sad', 'ok')")

    found = altering(server, named)

    told = {"more": found.wider, "less": found.narrower, "other": found.other}
    for name, changes in told.items():
        assert [change.after.name for change in changes] == [
            column for column in named if column.startswith(name)
        ]
    assert len(found.stops(WriteMode.APPEND)) == len(altered["less"]) + len(altered["other"])


def test_labels_of_an_enum_that_are_added_or_renamed_are_seen(postgres_database: Server) -> None:
    run(
        postgres_database,
        "CREATE TYPE mood AS ENUM ('sad', 'it''s ok')",
        "CREATE DOMAIN feeling AS mood",
        "CREATE TABLE x (one mood, many mood[], own feeling)",
    )
    with closing(open_source(SimpleNamespace(**postgres_database.config))) as source:
        before = source.table("x").schema
    run(postgres_database, "ALTER TYPE mood ADD VALUE 'fine'")
    with closing(open_source(SimpleNamespace(**postgres_database.config))) as source:
        more = source.table("x").schema
    run(postgres_database, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    with closing(open_source(SimpleNamespace(**postgres_database.config))) as source:
        renamed = source.table("x").schema

    assert before.column("one").native == "enum('sad','it''s ok')"
    assert before.column("many").native == "enum('sad','it''s ok')[]"
    assert before.column("own").native == "enum('sad','it''s ok')"
    assert len({schema.fingerprint for schema in (before, more, renamed)}) == 3
    assert [c.after.name for c in compare(before, more, "postgresql").wider] == ["one", "many", "own"]
    assert [c.after.name for c in compare(more, renamed, "postgresql").narrower] == ["one", "many", "own"]


def test_a_column_that_finds_rows_never_becomes_text() -> None:
    before, after = (
        Schema((Column("v", kind, native=native),))
        for kind, native in (
            (DataType(Kind.DECIMAL, 38, 2), "numeric(38,2)"),
            (DataType(Kind.TEXT), "numeric(40,2)"),
        )
    )
    assert compare(before, after, "postgresql").words == (
        "column v (numeric(38,2) before, numeric(40,2) now) is wider, and travels as text now",
    )
    assert len(compare(before, after, "postgresql", fixed={"v"}).other) == 1


def altering(server: Server, columns: dict[str, tuple[str, str]]) -> Evolution:
    """What is told of a table whose columns are made with their first types, and get their second ones."""
    run(server, f"CREATE TABLE x ({', '.join(f'{name} {before}' for name, (before, _) in columns.items())})")
    with closing(open_source(SimpleNamespace(**server.config))) as source:
        before = source.table("x").schema
        how = "MODIFY {0} {1}" if server.kind == "mysql" else "ALTER {0} TYPE {1} USING {0}::text::{1}"
        run(server, *(f"ALTER TABLE x {how.format(name, to)}" for name, (_, to) in columns.items()))
        return compare(before, source.table("x", fresh=True).schema, server.kind)
