"""Values that their type cannot hold, where somebody has decided what becomes of them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from tests.servers import Server
from tests.sources.readers.reading import login, run, whole
from tidegate.arrow import arrow_schema
from tidegate.core.errors import LossyValue, SourceError
from tidegate.core.lossy import LossyPolicy, OnLossy, fit
from tidegate.sources.contract import Read, Reader, Relation, Source
from tidegate.sources.opening import open_source
from tidegate.sources.readers.mysql import MySQLReader
from tidegate.sources.readers.postgresql import PostgreSQLReader
from tidegate.sources.rows import MySQLWire, PostgreSQLWire, RowReader

MYSQL_DATES = """
CREATE TABLE x (id int PRIMARY KEY, d date NOT NULL, t datetime(3), i timestamp(6) NULL, fine date);
INSERT INTO x VALUES
    (1, '2024-02-29', '2024-02-29 12:00:00.5', '2024-02-29 12:00:00.5', '2024-01-01'),
    (2, '0000-00-00', '0000-00-00', '0000-00-00', '2024-01-02'),
    (3, '2024-00-15', '2024-01-00 01:00:00', NULL, NULL),
    (4, '2024-01-00', NULL, '2024-02-29 12:00:01', '2024-01-04'),
    (5, '2023-02-31', '2023-02-31 10:00:00', NULL, '2024-01-05')
"""
POSTGRES_VALUES = """
CREATE TABLE x (id int PRIMARY KEY, d date NOT NULL, t timestamp(3), i timestamptz, c time, n numeric(12,2),
    w numeric(3,5));
INSERT INTO x VALUES
    (1, '2024-02-29', '2024-02-29 12:00:00.5', '2024-02-29 12:00:00.5+02', '12:00', 1.25, 0.00123),
    (2, 'infinity', 'infinity', 'infinity', '24:00', 'NaN', 'NaN'),
    (3, '-infinity', '-infinity', '-infinity', NULL, NULL, NULL),
    (4, '0044-03-15 BC', '294276-12-31', '294276-12-31', '23:59:59.999999', 0, 0)
"""


def arrived(
    source: Source, reader: Reader, policy: OnLossy, kind: str, relation: Relation | None = None
) -> tuple[dict[str, list[Any]], Counter[str]]:
    """The columns as text, in the order of the ids, and what was counted."""
    read = decided(source, policy, kind, relation)
    lost: Counter[str] = Counter()
    batches = list(reader.read(read, batch_rows=2, lost=lost))
    for batch in batches:
        assert batch.schema.equals(arrow_schema(read.columns))
    rows = sorted((row for batch in batches for row in _texts(batch)), key=lambda row: int(row["id"] or 0))
    return {column.name: [row[column.name] for row in rows] for column in read.columns}, lost


def decided(source: Source, policy: OnLossy, kind: str, relation: Relation | None = None) -> Read:
    read = whole(relation or source.table("x"))
    found = fit(read.columns, LossyPolicy(kind, "duckdb", policy), needed={"id"})
    return replace(read, columns=found.columns, nulled=found.nulled, as_written=found.as_written)


def _texts(batch: Any) -> list[dict[str, str | None]]:
    """Arrow's own words: Python's calendar is too short."""
    columns = {name: batch.column(name).cast("string").to_pylist() for name in batch.schema.names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def mysql_readers(server: Server) -> list[Reader]:
    return [MySQLReader(login(server)), RowReader(MySQLWire(login(server)))]


@pytest.fixture
def mysql(mariadb_database: Server, mariadb_source: Source) -> Source:
    relaxed = "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"
    run(mariadb_database, relaxed, *MYSQL_DATES.split(";\n"))
    return mariadb_source


@pytest.fixture
def postgresql(postgres_database: Server, postgres_source: Source) -> Source:
    run(postgres_database, POSTGRES_VALUES)
    return postgres_source


@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_zero_dates_of_mysql_become_null_and_are_counted(
    mysql: Source, mariadb_database: Server, number: int
) -> None:
    found, lost = arrived(mysql, mysql_readers(mariadb_database)[number], OnLossy.NULL, "mysql")

    assert found["d"] == ["2024-02-29", None, None, None, None]
    assert found["t"] == ["2024-02-29 12:00:00.500000", None, None, None, None]
    assert found["i"] == ["2024-02-29 12:00:00.500000Z", None, None, "2024-02-29 12:00:01.000000Z", None]
    assert found["fine"] == ["2024-01-01", "2024-01-02", None, "2024-01-04", "2024-01-05"]
    assert lost == {"d": 4, "t": 3, "i": 1}


@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_dates_of_mysql_are_carried_as_the_text_that_it_writes(
    mysql: Source, mariadb_database: Server, number: int
) -> None:
    found, lost = arrived(mysql, mysql_readers(mariadb_database)[number], OnLossy.TEXT, "mysql")

    names = ["d", "t", "i", "fine"]
    chosen = ", ".join(f"CAST({name} AS CHAR)" for name in names)
    written = mariadb_database.execute(f"SELECT {chosen} FROM x ORDER BY id")
    assert [found[name] for name in names] == [list(column) for column in zip(*written, strict=True)]
    assert "0000-00-00" in found["d"]
    assert not lost


@pytest.mark.parametrize("name", ["d", "t", "i"])
def test_an_impossible_date_of_mysql_stops_the_read_and_says_what_to_decide(
    mysql: Source, mariadb_database: Server, name: str
) -> None:
    read = replace(decided(mysql, OnLossy.ERROR, "mysql"), where="id IN (2, 5)")
    kept = tuple(column for column in read.columns if column.name in ("id", name))

    for reader in mysql_readers(mariadb_database):
        with pytest.raises(LossyValue, match=rf"column `{name}` holds .* where id = \d") as error:
            list(reader.read(replace(read, columns=kept), batch_rows=10))
        assert f"on_lossy: {{{name}: null}}" in str(error.value.hint)


def test_what_no_calendar_knows_of_postgresql_becomes_null_and_is_counted(
    postgresql: Source, postgres_database: Server
) -> None:
    for reader in (
        PostgreSQLReader(login(postgres_database)),
        RowReader(PostgreSQLWire(login(postgres_database))),
    ):
        found, lost = arrived(postgresql, reader, OnLossy.NULL, "postgresql")

        assert found["d"][:3] == ["2024-02-29", None, None]
        assert found["t"] == ["2024-02-29 12:00:00.500000", None, None, None]
        assert found["i"] == ["2024-02-29 10:00:00.500000Z", None, None, None]
        assert found["c"] == ["12:00:00.000000", None, None, "23:59:59.999999"]
        assert found["n"] == ["1.25", None, None, "0.00"]
        assert found["w"] == ["0.00123", None, None, "0.00000"]
        assert lost == {"d": 2, "t": 3, "i": 3, "c": 1, "n": 1, "w": 1}


def test_columns_of_postgresql_are_carried_as_the_text_that_it_writes(
    postgresql: Source, postgres_database: Server
) -> None:
    found, lost = arrived(postgresql, PostgreSQLReader(login(postgres_database)), OnLossy.TEXT, "postgresql")

    names = ["d", "t", "i", "c", "n", "w"]
    chosen = ", ".join(f"{name}::text" for name in names)
    written = postgres_database.execute(f"SELECT {chosen} FROM x ORDER BY id")
    assert [found[name] for name in names] == [list(column) for column in zip(*written, strict=True)]
    assert "infinity" in found["d"]
    assert not lost


@pytest.fixture
def any_bytes(postgres: Server) -> Iterator[Server]:
    """A database that takes any bytes for text."""
    name = f"any_bytes_{uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    yield postgres.using(name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_bytes_of_postgresql_that_are_no_utf8_are_decided_on(any_bytes: Server) -> None:
    texts = ["", "é", "日本", "\U0001f30a", "\uffff", "\x7f"]
    wrong = ["e9", "61c3", "c080", "eda080", "f4908080", "e282", "80"]
    values = [text.encode().hex() for text in texts] + wrong
    rows = ", ".join(
        f"({n}, convert_from('\\x{value}', 'SQL_ASCII'), convert_from('\\x22{value}22', 'SQL_ASCII')::json)"
        for n, value in enumerate(values)
    )
    run(any_bytes, "CREATE TABLE x (id int PRIMARY KEY, t text, j json)", "INSERT INTO x VALUES (99)")
    run(any_bytes, f"INSERT INTO x VALUES {rows}")
    reader = PostgreSQLReader(login(any_bytes))

    with closing(open_source(SimpleNamespace(**any_bytes.config))) as source:
        found, lost = arrived(source, reader, OnLossy.NULL, "postgresql")

        assert found["t"] == [*texts, *([None] * len(wrong)), None]
        assert lost == {"t": len(wrong), "j": len(wrong)}
        with pytest.raises(LossyValue, match=r"column `t` holds a\\303 where id = 7, which text cannot hold"):
            list(
                reader.read(
                    replace(decided(source, OnLossy.ERROR, "postgresql"), where="id = 7"), batch_rows=9
                )
            )


SQLITE: dict[str, list[tuple[Any, str | None]]] = {
    "a BOOLEAN": [(1, "true"), (7, None), ("yes", None)],
    "a INTEGER": [(5, "5"), ("five", None), (1.5, None), (b"\0", None)],
    "a REAL": [(0.1, "0.1"), ("x", None)],
    "a DECIMAL(5,2)": [(1.25, "1.25"), ("abc", None), (123456, None), ("1_00", None), ("１", None)],
    "a DATE": [("2024-02-29", "2024-02-29"), ("2024-02-30", None), (0, None), ("0000-02-29", "0000-02-29")],
    "a TIMESTAMP": [("2024-02-29 12:00:00", "2024-02-29 12:00:00.000000"), ("noon", None)],
    "a JSON": [('{"a": 1e999}', '{"a": 1e999}'), ("{", None), ("NaN", None), (5, None)],
    "a TEXT": [("é\0", "é\0"), (b"\xff", None)],
}


@pytest.mark.parametrize("declared", SQLITE)
def test_what_a_column_of_sqlite_did_not_declare_becomes_null_and_is_counted(
    tmp_path: Path, declared: str
) -> None:
    values = SQLITE[declared]
    with closing(lite(tmp_path, declared, [value for value, _ in values])) as source:
        found, lost = arrived(source, source.reader(), OnLossy.NULL, "sqlite")

    assert found["a"] == [text for _, text in values]
    assert lost == {"a": sum(text is None for _, text in values)}


@pytest.mark.parametrize("declared", ["a DATE", "a TEXT", "a", "a NUMERIC"])
def test_a_column_of_sqlite_is_carried_as_text_whatever_is_in_it(tmp_path: Path, declared: str) -> None:
    values = ["2024-02-29", 5, 0.1, b"\x0a\xff", None]
    with closing(lite(tmp_path, declared, values)) as source:
        found, lost = arrived(source, source.reader(), OnLossy.TEXT, "sqlite")

    assert found["a"] == ["2024-02-29", "5", "0.1", "X'0AFF'", None]
    assert not lost


@pytest.mark.parametrize("policy", OnLossy)
def test_a_text_of_sqlite_that_is_none_is_decided_on(tmp_path: Path, policy: OnLossy) -> None:
    with closing(lite(tmp_path, "a TEXT", ["é", None])) as source:
        with closing(sqlite3.connect(tmp_path / "lite.db")) as connection, connection:
            connection.execute("UPDATE x SET a = CAST(X'FF41' AS TEXT) WHERE id = 2")
        if policy is OnLossy.ERROR:
            with pytest.raises(LossyValue, match=r"column `a` holds .* where id = 2") as error:
                arrived(source, source.reader(), policy, "sqlite")
            assert "`text` to carry" in str(error.value.hint)
            return
        found, lost = arrived(source, source.reader(), policy, "sqlite")

    assert found["a"] == ["é", "X'FF41'" if policy is OnLossy.TEXT else None]
    assert lost == ({"a": 1} if policy is OnLossy.NULL else {})


@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_the_year_0_of_mysql_arrives(mariadb_database: Server, mariadb_source: Source, number: int) -> None:
    run(
        mariadb_database,
        "CREATE TABLE x (id int PRIMARY KEY, d date, t datetime(6))",
        "INSERT INTO x VALUES (1, '0000-01-01', '0000-12-31 23:59:59.999999')",
        "INSERT INTO x VALUES (2, '0001-01-01', '0000-02-28')",
    )
    reader = mysql_readers(mariadb_database)[number]
    found, _ = arrived(mariadb_source, reader, OnLossy.ERROR, "mysql")

    assert found["d"] == ["0000-01-01", "0001-01-01"]
    assert found["t"] == ["0000-12-31 23:59:59.999999", "0000-02-28 00:00:00.000000"]


HALF, HALVED = "EDA0BD", {"u": "utf8mb4", "v": "ucs2", "w": "utf32", "y": "utf8mb3"}
"""Half of an emoji, which MariaDB takes for a character in these character sets."""


@pytest.mark.parametrize("query", [None, "SELECT * FROM x"], ids=["table", "query"])
@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_halves_of_characters_are_decided_on(
    mariadb_database: Server, mariadb_source: Source, number: int, query: str | None
) -> None:
    columns = ", ".join(f"{name} varchar(20) CHARACTER SET {charset}" for name, charset in HALVED.items())
    half = ", ".join(f"CONVERT(_utf8mb4 X'61{HALF}3F' USING {charset})" for charset in HALVED.values())
    fine = "한국?é"
    run(
        mariadb_database,
        f"CREATE TABLE x (id int PRIMARY KEY, {columns}, j json, z text COMPRESSED)",
        f"INSERT INTO x VALUES (1, {', '.join([repr(fine)] * 4)}, '[\"{fine}\"]', '')",
        f"INSERT INTO x VALUES (2, {half}, CONVERT(X'22{HALF}22' USING utf8mb4), X'{HALF}')",
        "INSERT INTO x VALUES (3, 'a', 'b', 'c', 'd', NULL, NULL)",
    )
    relation = mariadb_source.query("q", query) if query else mariadb_source.table("x")
    reader = mysql_readers(mariadb_database)[number]

    found, lost = arrived(mariadb_source, reader, OnLossy.NULL, "mysql", relation)

    assert {name: found[name] for name in HALVED} == {
        name: [fine, None, letter] for name, letter in zip(HALVED, "abcd", strict=True)
    }
    assert lost == dict.fromkeys([*HALVED, "j", "z"], 1)
    read = decided(mariadb_source, OnLossy.ERROR, "mysql", relation)
    for name in (*HALVED, "j", "z"):
        kept = tuple(column for column in read.columns if column.name in ("id", name))
        with pytest.raises(LossyValue, match=rf"column `{name}` holds .*\?.* where id = 2, which") as error:
            list(reader.read(replace(read, columns=kept), batch_rows=10))
        assert "text` to carry" not in str(error.value.hint)


@pytest.fixture
def small_packets(mariadb_database: Server) -> Iterator[None]:
    """A server whose rows came from one that was set up for larger ones."""
    run(
        mariadb_database,
        "CREATE TABLE x (id int PRIMARY KEY, t mediumtext CHARACTER SET latin2, j json, "
        "u mediumtext COMPRESSED)",
        "INSERT INTO x VALUES (1, 'a', '[]', 'b'), (2, REPEAT('ł', 1000000), '[]', 'b')",
        "INSERT INTO x VALUES (3, NULL, CONCAT('[', REPEAT('1, ', 500000), '2]'), NULL)",
        "INSERT INTO x VALUES (4, NULL, NULL, REPEAT('한', 500000))",
    )
    [(usual,)] = mariadb_database.execute("SELECT @@GLOBAL.max_allowed_packet")
    run(mariadb_database, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    yield
    run(mariadb_database, f"SET GLOBAL max_allowed_packet = {usual}")


@pytest.mark.usefixtures("small_packets")
@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_what_is_larger_than_the_servers_packets_does_not_vanish(
    mariadb_database: Server, mariadb_source: Source, number: int
) -> None:
    """What a function makes longer than that is NULL."""
    reader = mysql_readers(mariadb_database)[number]
    lost: Counter[str] = Counter()
    small = replace(decided(mariadb_source, OnLossy.NULL, "mysql"), where="id < 3")

    [batch] = reader.read(small, batch_rows=9, lost=lost)

    assert (batch.column("t").to_pylist(), lost) == (["a", None], {"t": 1})
    with pytest.raises(LossyValue, match=r"column `t` holds .?!?ł+… where id = 2"):
        list(reader.read(replace(small, nulled=()), batch_rows=9))
    for name, row, length, policy in [
        ("j", 3, 1_500_003, OnLossy.ERROR),
        ("j", 3, 1_500_003, OnLossy.TEXT),
        ("u", 4, 500_000, OnLossy.ERROR),
    ]:
        large = replace(decided(mariadb_source, policy, "mysql"), where=f"id = {row}")
        if number:
            [batch] = reader.read(large, batch_rows=9)
            assert len(batch.column(name)[0].as_py()) == length
        else:
            with pytest.raises(SourceError, match="a row is larger than the server's max_allowed_packet"):
                list(reader.read(large, batch_rows=9))
    if number:  # which has to put a sign before it, to tell halves of characters
        nulled = replace(decided(mariadb_source, OnLossy.NULL, "mysql"), where="id = 4")
        [batch] = reader.read(nulled, batch_rows=9, lost=lost)
        assert (batch.column("u").to_pylist(), lost["u"]) == ([None], 1)


def lite(folder: Path, declared: str, values: list[Any]) -> Source:
    path = folder / "lite.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE x (id INTEGER PRIMARY KEY, {declared})")
        connection.executemany("INSERT INTO x (a) VALUES (?)", [(value,) for value in values])
    return open_source(SimpleNamespace(type="sqlite", path=str(path)))


CHARSETS: dict[str, tuple[str, str]] = {
    # What is written as `?` or as U+FFFD on the way, and what only looks so.
    "cp1251": ("98", "3fcfd03f"),
    "cp1257": ("4181", "41e0"),
    "ascii": ("61e962", "613f"),
    "sjis": ("81af", "93fa967b"),
    "gbk": ("a240", "d6d0"),
    "tis620": ("41db", "41a1"),
    "latin2": ("", "3fb1"),
    "utf16": ("", "d83dde00003f"),
    "latin1": ("", "3f81ff"),
    "swe7": ("", "5b7d3f"),
}


@pytest.fixture
def charsets(mariadb_database: Server) -> Server:
    """A table `x` with right bytes in its first row and, where there are any, wrong ones in its second."""
    columns = ", ".join(f"{name} varchar(9) CHARACTER SET {name}" for name in CHARSETS)
    wrong, right = (
        ", ".join(f"X'{pair[n]}'" if pair[n] else "NULL" for pair in CHARSETS.values()) for n in (0, 1)
    )
    run(
        mariadb_database,
        f"CREATE TABLE x (id int PRIMARY KEY, {columns})",
        f"INSERT INTO x VALUES (1, {right}), (2, {wrong})",
    )
    return mariadb_database


@pytest.mark.parametrize("query", [None, "SELECT * FROM x"], ids=["table", "query"])
@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_bytes_that_are_no_character_of_mysql_are_decided_on(
    charsets: Server, mariadb_source: Source, number: int, query: str | None
) -> None:
    relation = mariadb_source.query("q", query) if query else mariadb_source.table("x")
    reader = mysql_readers(charsets)[number]
    broken = [name for name, (unmapped, _) in CHARSETS.items() if unmapped]

    found, lost = arrived(mariadb_source, reader, OnLossy.NULL, "mysql", relation)

    [told] = charsets.execute(f"SELECT {', '.join(CHARSETS)} FROM x WHERE id = 1")
    assert [found[name] for name in CHARSETS] == [[text, None] for text in told]
    assert lost == dict.fromkeys(broken, 1)
    for name in broken:
        read = decided(mariadb_source, OnLossy.ERROR, "mysql", relation)
        kept = tuple(column for column in read.columns if column.name in ("id", name))
        with pytest.raises(
            LossyValue, match=rf"column `{name}` holds .* where id = 2, which text cannot hold"
        ):
            list(reader.read(replace(read, columns=kept), batch_rows=10))


@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_what_a_query_makes_of_such_bytes_is_decided_on(
    charsets: Server, mariadb_source: Source, number: int
) -> None:
    made = {
        "joined": "CONCAT(cp1251, '!')",
        "lower": "LOWER(cp1257)",
        "all": "GROUP_CONCAT(gbk)",
        "unicode": "CONVERT(cp1251 USING utf8mb4) COLLATE utf8mb4_uca1400_ai_ci",
    }
    columns = ", ".join(f"{sql} AS `{name}`" for name, sql in made.items())
    relation = mariadb_source.query("q", f"SELECT id, {columns} FROM x WHERE id = 2 GROUP BY id")

    found, lost = arrived(mariadb_source, mysql_readers(charsets)[number], OnLossy.NULL, "mysql", relation)

    assert [found[name] for name in made] == [[None], [None], [None], ["?"]]  # the last is the query's own
    assert lost == {"joined": 1, "lower": 1, "all": 1}


@pytest.mark.parametrize("number", [0, 1], ids=["fast", "plain"])
def test_json_in_a_character_set_of_its_own_is_decided_on(
    mariadb_database: Server, mariadb_source: Source, number: int
) -> None:
    run(
        mariadb_database,
        "CREATE TABLE x (id int PRIMARY KEY, j text CHARACTER SET cp1251 CHECK (json_valid(j)))",
        "SET check_constraint_checks = 0",
        """INSERT INTO x VALUES (1, '{"a": "я?"}'), (2, X'229822')""",
    )

    found, lost = arrived(mariadb_source, mysql_readers(mariadb_database)[number], OnLossy.NULL, "mysql")

    assert found["j"] == ['{"a": "я?"}', None]
    assert lost == {"j": 1}
    with pytest.raises(LossyValue, match=r"column `j` holds .* where id = 2"):
        arrived(mariadb_source, mysql_readers(mariadb_database)[number], OnLossy.ERROR, "mysql")
