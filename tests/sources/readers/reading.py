"""What the tests of all readers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa

from tests.servers import Server
from tidegate.arrow import arrow_schema
from tidegate.reach.login import Login, Tls
from tidegate.sources.contract import Read, Reader, Relation, Source

EVERYTHING = "1 = 1"


def login(
    server: Server, *, user: str | None = None, password: str | None = None, tls: str = "prefer"
) -> Login:
    return Login(
        host=server.host,
        port=server.port,
        database=server.database,
        username=user or server.user,
        password=password or server.password,
        tls=Tls(tls),
    )


def whole(relation: Relation, where: str = EVERYTHING, *, positions: tuple[str, ...] = ("id",)) -> Read:
    return Read(relation.sql, relation.schema.columns, where, positions, unaltered=relation.unaltered)


def read_all(reader: Reader, read: Read, *, batch_rows: int = 1000) -> pa.Table:
    """All rows, after a look at every batch: its schema is the declared one, and it is not too large."""
    schema = arrow_schema(read.columns)
    batches = list(reader.read(read, batch_rows=batch_rows))
    for batch in batches:
        assert batch.schema.equals(schema, check_metadata=True)
        assert 0 < batch.num_rows <= batch_rows
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def column_of(source: Source, reader: Reader, table: str, name: str = "c") -> pa.ChunkedArray:
    """One column in the order of the ids."""
    read = whole(source.table(table))
    return read_all(reader, read).sort_by("id").column(name)


def run(server: Server, *statements: str) -> None:
    """Run statements in one session."""
    with closing(server.connect(autocommit=True)) as connection, closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
