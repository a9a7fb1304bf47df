"""Reads one table with several readers, one after the other in one process, chunk by chunk into Arrow.

Run by the Python of an environment that has all of them. Arguments: the server as JSON, the number of rows,
the rows of a chunk, how often. Rows are dropped as they come: only reading is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from tidegate.core.positions import Position
from tidegate.core.windows import Window
from tidegate.sources.opening import open_source
from tidegate.sources.sql import SqlSource

TABLE = "orders"
KEY = "id"
ROWS_AT_ONCE = 16_384
DECIMALS = {"amount": 2, "tax": 4}

Chunks = list[tuple[int, int]]
Reader = Callable[[Chunks], Iterable[pa.RecordBatch]]


def selects(columns: Iterable[str], chunks: Chunks) -> Iterator[str]:
    for low, high in chunks:
        yield f"SELECT {', '.join(columns)} FROM {TABLE} WHERE {KEY} > {low} AND {KEY} <= {high}"


def tidegate(source: SqlSource) -> Reader:
    relation = source.table(TABLE)
    columns = relation.schema.names

    def read(chunks: Chunks) -> Iterator[pa.RecordBatch]:
        with source.reader().kept() as reader:
            for low, high in chunks:
                window = Window(Position.of(low), Position.of(high))
                part = source.chunk(relation, columns, window, positions=(KEY,), order=(KEY,))
                yield from reader.read(part, batch_rows=ROWS_AT_ONCE)

    return read


def connectorx(url: str, columns: Iterable[str], **options: str) -> Reader:
    import connectorx as cx

    def read(chunks: Chunks) -> Iterator[pa.RecordBatch]:
        for sql in selects(columns, chunks):
            yield from cx.read_sql(url, sql, return_type="arrow_stream", batch_size=ROWS_AT_ONCE, **options)

    return read


def adbc(url: str, columns: Iterable[str]) -> Reader:
    from adbc_driver_postgresql import dbapi

    def read(chunks: Chunks) -> Iterator[pa.RecordBatch]:
        with dbapi.connect(url) as connection, connection.cursor() as cursor:
            for sql in selects(columns, chunks):
                cursor.execute(sql)
                yield from cursor.fetch_record_batch()

    return read


def scanner(kind: str, address: str, columns: Iterable[str]) -> Reader:
    import duckdb

    package = f"duckdb_extension_{kind}_scanner"
    [folder] = find_spec(package).submodule_search_locations  # type: ignore[union-attr,misc]
    extension = Path(folder) / "extensions" / f"v{duckdb.__version__}" / f"{kind}_scanner.duckdb_extension"
    database = duckdb.connect(config={"threads": 1, "allow_unsigned_extensions": True})
    database.execute(f"LOAD '{extension}'")
    database.execute(f"ATTACH '{address}' AS source (TYPE {kind}, READ_ONLY)")

    def read(chunks: Chunks) -> Iterator[pa.RecordBatch]:
        for sql in selects(columns, chunks):
            yield from database.execute(f"FROM {kind}_query('source', '{sql}')").to_arrow_reader(ROWS_AT_ONCE)

    return read


def of_mysql(server: SimpleNamespace, source: SqlSource) -> dict[str, Reader]:
    names = source.table(TABLE).schema.names
    login = f"{server.user}:{server.password}@{server.host}:{server.port}/{server.database}"
    url = f"mysql://{login}?ssl-mode=DISABLED&prefer_socket=false"
    where = f"host={server.host} port={server.port} db={server.database}"
    address = f"{where} user={server.user} passwd={server.password}"
    as_text = [f"CAST({name} AS CHAR) AS {name}" if name in DECIMALS else name for name in names]
    return {
        "tidegate": tidegate(source),
        "connectorx": connectorx(url, names, protocol="binary"),
        "connectorx-text-protocol": connectorx(url, names, protocol="text"),
        "connectorx-decimals-as-text": connectorx(url, as_text, protocol="binary"),
        "duckdb-scanner": scanner("mysql", address, names),
    }


def of_postgresql(server: SimpleNamespace, source: SqlSource) -> dict[str, Reader]:
    names = source.table(TABLE).schema.names
    where = f"{server.host}:{server.port}/{server.database}"
    url = f"postgresql://{server.user}:{server.password}@{where}"
    address = f"host={server.host} port={server.port} dbname={server.database} user={server.user}"
    address += f" password={server.password}"
    scaled = [
        f"({name} * {10 ** DECIMALS[name]})::bigint AS {name}" if name in DECIMALS else name for name in names
    ]
    return {
        "tidegate": tidegate(source),
        "duckdb-scanner": scanner("postgres", address, names),
        "duckdb-scanner-scaled-integers": scanner("postgres", address, scaled),
        "connectorx": connectorx(url, names),
        "adbc": adbc(url, names),
    }


READERS = {"mysql": of_mysql, "postgresql": of_postgresql}


def cut(rows: int, chunk: int) -> Chunks:
    """Ids run from 1 to the number of rows."""
    return [(low, min(low + chunk, rows)) for low in range(0, rows, chunk)]


def rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def main(server: str, rows: str, chunk: str, rounds: str) -> None:
    described = SimpleNamespace(**json.loads(server))
    source: Any = open_source(SimpleNamespace(**described.config))
    readers = READERS[described.kind](described, source)
    chunks = cut(int(rows), int(chunk))
    for read in readers.values():
        for _ in read(chunks[:1]):  # what only the first read costs is not compared
            pass
    for number in range(1, int(rounds) + 1):
        for name in rotated(list(readers), number):
            print(f"@begin {number}/{name}", flush=True)
            arrived = sum(batch.num_rows for batch in readers[name](chunks))
            print(f"@end {number}/{name}", flush=True)
            if arrived != int(rows):
                sys.exit(f"{name} read {arrived} rows of {rows}")
    source.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
