"""The SQL that merges, run where texts that differ only in the blanks at their ends are equal.

So Redshift compares every VARCHAR. PostgreSQL has a type of its own that does: `bpchar`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.servers import Cursor, Server
from tidegate.targets.merging import Merging, doubled, newest

COLUMNS = ("k", "v", "_tidegate_run")


@pytest.fixture
def sql(postgres_database: Server) -> Iterator[Cursor]:
    """A session with a table of two rows, and a batch of three, no two of which have the same key."""
    with closing(postgres_database.connect(autocommit=True)) as connection:
        cursor = connection.cursor()
        for table in ("there", "batch"):
            cursor.execute(f"CREATE TABLE {table} (k bpchar, v integer, _tidegate_run bigint)")
        cursor.execute("INSERT INTO there VALUES ('a', 1, 1), (NULL, 2, 1)")
        cursor.execute("INSERT INTO batch VALUES ('a ', 3, 2), ('a', 4, 2), ('', 5, 2)")
        yield cursor


def found(sql: Cursor, query: str) -> list[tuple[object, ...]]:
    sql.execute(query)
    return [tuple(row) for row in sql.fetchall()]


def test_keys_that_differ_in_blanks_alone_are_no_versions_of_one_row(sql: Cursor) -> None:
    assert found(sql, "SELECT count(DISTINCT k) FROM batch") == [(2,)]  # what equality alone would make of it
    assert found(sql, doubled("batch", ["k"], ["k"])) == [(0,)]
    best = newest("batch", COLUMNS, ["k"], [], ["k"])
    assert found(sql, f"SELECT v FROM ({best}) AS best ORDER BY v") == [(3,), (4,), (5,)]


@pytest.mark.parametrize("sparse", [[], ["k"]])
def test_a_row_gives_way_to_its_own_key_and_to_no_longer_one(sql: Cursor, sparse: list[str]) -> None:
    if sparse:
        sql.execute("INSERT INTO batch VALUES (NULL, 6, 2)")
    merging = Merging("there", "batch", COLUMNS, ["k"], sparse_key=sparse, tells_nulls=False, padded=["k"])
    sql.execute(merging.update())
    sql.execute(merging.insert())
    assert found(sql, "SELECT octet_length(k), v FROM there ORDER BY v") == [
        *([] if sparse else [(None, 2)]),
        (2, 3),
        (1, 4),
        (0, 5),
        *([(None, 6)] if sparse else []),
    ]
