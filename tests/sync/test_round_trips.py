"""Every type into every target, and back out in words: the target says what the source says."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import servers
from tests.servers import S3Server, Server
from tests.sources.readers.reading import run
from tests.sources.readers.test_mysql import VALUES as MYSQL_VALUES
from tests.sources.readers.test_postgresql import VALUES as POSTGRES_VALUES
from tests.sources.readers.test_postgresql import WRITTEN as POSTGRES_WRITTEN
from tests.sync.travelling import Delta, DuckDb, Journey, Lite, Postgres, Redshift, Served, Warehouse
from tidegate.core.errors import IncompatibleTable, LossyValue
from tidegate.core.lossy import LossyPolicy, OnLossy
from tidegate.core.mappings import SOURCES, source_type
from tidegate.testing.redshift import RedshiftLocal

TARGETS = ("duckdb", "postgresql", "redshift", "delta")
WITHOUT_NUL = ("postgresql", "redshift")
BEYOND: dict[str, tuple[str, ...]] = {
    "duckdb": (),
    "postgresql": ("\\0",),
    "redshift": ("\\0", "'é', 100000", "'😀', 300000", "5874897"),
    "delta": (),
}
"""What is not sent to a target, by parts of the literals."""
LOOSE_JSON = {"mysql": r"""'"C:\\d"'""", "postgresql": r"""'"\ud83d"'"""}
STRICT_JSON = {"mysql": ("duckdb", "postgresql"), "postgresql": ("duckdb",)}
KEEPING_TYPES = ("delta", "redshift")

MYSQL_MORE: dict[str, tuple[str, ...]] = {
    "int GENERATED ALWAYS AS (id * 2) STORED": (),
    "int INVISIBLE": ("5",),
    "multipolygon": ("ST_GeomFromText('MULTIPOLYGON(((0 0,1 0,1 1,0 0)))', 4326)",),
    "geometry": ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,-1e300 1))')",),
    "varchar(99)": (
        *("'e\\u0301 combining'", "'\\'\"\\\\,\\n\\t'", "'NULL'", "'\\\\N'", "'a\\n\\\\.\\nb\\r'"),
        "_utf8mb4 X'EFBBBFE280A8'",
    ),
    "varchar(9) CHARACTER SET sjis": ("'日本ｱ?'",),
    "enum('é','日') CHARACTER SET ujis": ("'日'",),
    "char(5) CHARACTER SET utf16": ("'é😀'",),
}
POSTGRES_MORE: dict[str, tuple[str, ...]] = {
    "date": ("'0044-03-15 BC'", "'5874897-12-31'", "'4714-11-24 BC'"),
    "timestamp": ("'0044-03-15 12:00:00.5 BC'", "'294246-12-31 23:59:59.999999'"),
    "timestamptz": ("'0044-03-15 12:00:00+00 BC'",),
    "text": ("'e\u0301 combining'", "E'\\'\"\\\\,\\n\\t'", "'NULL'", "'\\N'"),
    "text[][]": ('\'{{a,NULL},{"","b,c"}}\'',),
    "double precision": ("'NaN'", "'-0'", "2.2250738585072014e-308", "4.9e-324"),
    "numeric(38,-5)": ("1e42",),
    "tstzrange": ("'[-infinity,infinity]'",),
    "arrays_of_text": ("'{\"a\\n\\\\.\",NULL}'",),
    "bytea[]": ("ARRAY['\\x00ff'::bytea, NULL]",),
    "int8multirange": ("'{[1,5),[7,9)}'",),
    "price": ("1.25",),
    "hstore": ("'a=>1, \"b c\"=>NULL'",),
    "citext": ("'Ab'",),
    "tsquery": ("'fat & rat'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
}


@pytest.fixture(params=TARGETS)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    if request.param == "duckdb":
        yield DuckDb(tmp_path / "warehouse.duckdb")
    elif request.param == "delta":
        yield Delta(tmp_path / "lake")
    else:
        with servers.fresh_database(request.getfixturevalue("postgres")) as database:
            if request.param == "postgresql":
                yield Postgres(database)
            else:
                bucket = request.getfixturevalue("fresh_bucket")
                yield Redshift(request.getfixturevalue("redshift"), database, bucket)


@pytest.fixture
def mysql(mariadb_database: Server) -> Served:
    return Served(mariadb_database, "mysql")


@pytest.fixture
def postgresql(postgres_database: Server) -> Served:
    run(
        postgres_database,
        "CREATE TYPE mood AS ENUM ('so so')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE DOMAIN arrays_of_text AS text[]",
        "CREATE EXTENSION hstore",
        "CREATE EXTENSION citext",
    )
    return Served(postgres_database, "postgresql")


def fill(origin: Served, columns: list[tuple[str, tuple[str, ...]]]) -> None:
    """A table with a column for each type; values run out at different rows, and then there is NULL."""
    longest = max(len(literals) for _, literals in columns) + 1
    declared = ", ".join(f"c{number} {native}" for number, (native, _) in enumerate(columns))
    setting = ["SET sql_mode = '', time_zone = '+00:00'"] if origin.kind == "mysql" else []
    run(origin.server, *setting, f"CREATE TABLE x (id int PRIMARY KEY, {declared})")
    given_ = [(number, literals) for number, (_, literals) in enumerate(columns) if literals]
    names = ", ".join(["id", *(f"c{number}" for number, _ in given_)])
    for row in range(longest):
        values = ", ".join(literals[row] if row < len(literals) else "NULL" for _, literals in given_)
        run(origin.server, *setting, f"INSERT INTO x ({names}) VALUES ({row}, {values})")


def taken_by(warehouse: Warehouse, columns: list[Any]) -> list[Any]:
    """Without the values that the table of types says a target cannot hold."""
    beyond = BEYOND[warehouse.kind]
    return [
        (native, tuple(text for text in found if not any(sign in text for sign in beyond)))
        for native, found in columns
    ]


def literals_of(values: list[tuple[str, Any]], more: dict[str, tuple[str, ...]]) -> list[Any]:
    return [(native, tuple(literals)) for native, literals in (*values, *more.items())]


def test_every_type_of_mysql_arrives_as_mysql_says_it(
    mysql: Served, warehouse: Warehouse, tmp_path: Path
) -> None:
    fill(mysql, taken_by(warehouse, literals_of(MYSQL_VALUES, MYSQL_MORE)))

    Journey(mysql, warehouse, tmp_path).demand_same()


def test_every_type_of_postgresql_arrives_as_postgresql_says_it(
    postgresql: Served, warehouse: Warehouse, tmp_path: Path
) -> None:
    columns = literals_of([*POSTGRES_VALUES, *POSTGRES_WRITTEN], POSTGRES_MORE)
    fill(postgresql, taken_by(warehouse, columns))

    Journey(postgresql, warehouse, tmp_path).demand_same()


LITE: dict[str, tuple[Any, ...]] = {
    "BOOLEAN": (0, 1),
    "INTEGER": (-(2**63), 2**63 - 1, 0),
    "REAL": (0.1, -1.7976931348623157e308, 5e-324, 7),
    "DECIMAL(10,2)": (12345678.25, "-0.05", 7),
    "NUMERIC": (0.5, 7, "seven"),
    "TEXT": ("", "e\u0301😀\n'\"\\", "NULL"),
    "VARCHAR(9)": ("ab  ",),
    "BLOB": (b"", b"\0\xff"),
    "DATE": ("0001-01-01", "9999-12-31"),
    "DATETIME": ("2024-02-29 23:59:59", "0001-01-01 00:00:00.000001"),
    "JSON": ('{"b": 1.10, "a": [], "b": "é"}',),
}


def test_every_type_of_sqlite_arrives_as_sqlite_says_it(warehouse: Warehouse, tmp_path: Path) -> None:
    origin = Lite(tmp_path / "lite.db")
    declared = ", ".join(f"c{number} {native}" for number, native in enumerate(LITE))
    longest = max(map(len, LITE.values())) + 1
    filled = [(*values, *[None] * (longest - len(values))) for values in LITE.values()]
    with closing(sqlite3.connect(origin.path)) as connection, connection:
        connection.execute(f"CREATE TABLE x (id INTEGER PRIMARY KEY, {declared})")
        marks = ", ".join("?" * (len(LITE) + 1))
        connection.executemany(f"INSERT INTO x VALUES ({marks})", zip(range(longest), *filled, strict=True))

    Journey(origin, warehouse, tmp_path).demand_same()


def test_no_row_of_the_table_is_left_out() -> None:
    """Every type that the table of types names is among those that travel, but for extensions' own."""
    mysql = {native.split("(")[0].split()[0] for native, _ in literals_of(MYSQL_VALUES, MYSQL_MORE)}
    travelled = {source_type("mysql", name) for name in mysql | {"bit(1)"}}
    newer = "VECTOR"  # than the server
    assert {row.shown for row in SOURCES["mysql"] if row not in travelled} == {"anything else", newer}


def test_a_text_with_nul_is_decided_on(mysql: Served, warehouse: Warehouse, tmp_path: Path) -> None:
    fill(mysql, [("varchar(9)", ("'a'", "'b\\0c'"))])
    journey = Journey(mysql, warehouse, tmp_path)

    if warehouse.kind not in WITHOUT_NUL:
        journey.demand_same()
        return
    with pytest.raises(LossyValue, match=r"column `c0` holds 'b\\x00c' where id = 1"):
        journey.go()
    null = replace(journey, policy=LossyPolicy(otherwise=OnLossy.NULL))
    job, receipt = null.go()

    assert null.warehouse.texts(job.columns)["c0"] == ["a", None, None]
    assert receipt.lossy == (("c0", 1),)


def test_a_text_that_is_too_long_for_redshift_is_decided_on(
    redshift: RedshiftLocal, fresh_bucket: S3Server, mysql: Served, postgres_database: Server, tmp_path: Path
) -> None:
    warehouse = Redshift(redshift, postgres_database, fresh_bucket)
    fill(mysql, [("mediumtext", ("REPEAT('é', 32767)", "REPEAT('é', 32768)"))])
    journey = Journey(mysql, warehouse, tmp_path)

    with pytest.raises(
        LossyValue, match=r"column `c0` holds 'é+… where id = 1, which its column at the target"
    ):
        journey.go()
    null = replace(journey, policy=LossyPolicy(columns={"c0": OnLossy.NULL}))
    job, receipt = null.go()

    assert warehouse.texts(job.columns)["c0"] == ["é" * 32767, None, None]
    assert receipt.lossy == (("c0", 1),)


@pytest.mark.parametrize("source", ["mysql", "postgresql"])
def test_a_document_that_only_the_source_takes_is_decided_on(
    request: pytest.FixtureRequest, source: str, warehouse: Warehouse, tmp_path: Path
) -> None:
    origin: Served = request.getfixturevalue(source)
    fill(origin, [("json", ('\'{"a": "x"}\'', LOOSE_JSON[source]))])
    journey = Journey(origin, warehouse, tmp_path)

    if warehouse.kind not in STRICT_JSON[source]:
        journey.demand_same()
        return
    with pytest.raises(LossyValue, match=r"column `c0` holds .* where id = 1, which its column"):
        journey.go()
    null = replace(journey, policy=LossyPolicy(otherwise=OnLossy.NULL))
    job, receipt = null.go()
    assert warehouse.texts(job.columns)["c0"] == ['{"a": "x"}', None, None]
    assert receipt.lossy == (("c0", 1),)
    replace(null, policy=LossyPolicy(otherwise=OnLossy.TEXT)).demand_same()


@pytest.mark.parametrize("first", ["c0 date", "c0 datetime(6)", "c0 timestamp(6) NULL"])
def test_a_column_can_become_text_under_way(
    mysql: Served, warehouse: Warehouse, tmp_path: Path, first: str
) -> None:
    run(
        mysql.server,
        f"CREATE TABLE x (id int PRIMARY KEY, {first})",
        "INSERT INTO x VALUES (1, '2024-02-29')",
    )
    journey = Journey(mysql, warehouse, tmp_path)
    journey.go()
    run(mysql.server, "SET sql_mode = ''", "INSERT INTO x VALUES (2, '0000-00-00')")
    as_text = replace(journey, policy=LossyPolicy(columns={"c0": OnLossy.TEXT}))

    if warehouse.kind in KEEPING_TYPES:
        with pytest.raises(IncompatibleTable, match="column c0: the rows bring text"):
            as_text.go()
    else:
        as_text.demand_same()


# --- Rows that nobody thought of -----------------------------------------------

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_KINDS: dict[str, tuple[str, str, st.SearchStrategy[Any]]] = {
    "small": ("smallint", "smallint", st.integers(-(2**15), 2**15 - 1)),
    "large": ("bigint", "bigint", st.integers(-(2**63), 2**63 - 1)),
    "price": (
        "decimal(38,10)",
        "numeric(38,10)",
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-10")),
    ),
    "ratio": ("double", "double precision", st.floats(allow_nan=False, allow_infinity=False)),
    "name": ("varchar(200)", "varchar(200)", _TEXTS),
    "octets": ("varbinary(20)", "bytea", st.binary(max_size=20)),
    "born": ("date", "date", st.dates(date(1, 1, 1))),
    "seen": ("datetime(6)", "timestamp", st.datetimes(datetime(1, 1, 1))),  # noqa: DTZ001 - zoneless
}
ROWS = st.lists(st.tuples(*(st.none() | values for _, _, values in _KINDS.values())), min_size=1, max_size=8)


@pytest.mark.parametrize("source", ["mysql", "postgresql"])
def test_any_rows_arrive_as_they_are(
    request: pytest.FixtureRequest, source: str, warehouse: Warehouse, tmp_path: Path
) -> None:
    origin: Served = request.getfixturevalue(source)
    place = 0 if source == "mysql" else 1
    declared = ", ".join(f"{name} {kinds[place]}" for name, kinds in _KINDS.items())
    run(origin.server, f"CREATE TABLE x (id int PRIMARY KEY, {declared})")
    journey = Journey(origin, warehouse, tmp_path)

    with ExitStack() as stack:
        connection = stack.enter_context(closing(origin.server.connect(autocommit=True)))
        cursor = stack.enter_context(closing(connection.cursor()))
        insert = f"INSERT INTO x VALUES ({', '.join(['%s'] * (len(_KINDS) + 1))})"

        @settings(max_examples=6, suppress_health_check=list(HealthCheck))
        @given(ROWS)
        def trips(rows: list[tuple[Any, ...]]) -> None:
            cursor.execute("DELETE FROM x")
            for number, row in zip(count(), rows, strict=False):
                cursor.execute(insert, (number, *row))
            journey.demand_same()

        run_trips: Callable[[], None] = trips
        run_trips()
