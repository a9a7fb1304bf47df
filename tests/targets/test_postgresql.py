"""PostgreSQL as a target."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import Server, closed_port
from tests.targets.proxy import Break, breaking
from tidegate.core.errors import ConnectError, IncompatibleTable, OutcomeUnknown, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.reach.login import Login, login_of
from tidegate.targets.contract import FENCES, LEDGER, Target
from tidegate.targets.postgresql import PostgresTarget, declared_type
from tidegate.testing.targets import ORDERS, Stage, TargetContract, orders, read_rows, schema_of


def target_in(server: Server, **changes: Any) -> PostgresTarget:
    parts = {field.name: changes.pop(field.name) for field in fields(Login) if field.name in changes}
    return PostgresTarget(replace(login_of(server.config), **parts), **changes)


@pytest.fixture
def database(postgres_database: Server) -> Server:
    return postgres_database


@pytest.fixture
def target(database: Server) -> PostgresTarget:
    return target_in(database)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


class TestContract(TargetContract):
    connection: psycopg.Connection[tuple[Any, ...]]

    @pytest.fixture
    def target(self, database: Server) -> Iterator[Target]:
        with closing(database.connect(autocommit=True)) as connection:
            assert isinstance(connection, psycopg.Connection)
            self.connection = connection
            yield target_in(database)

    def count_beside(self, target: Target, name: str) -> int:
        assert isinstance(target, PostgresTarget)
        [(count,)] = self.connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchall()
        return int(count)


# --- replacing ------------------------------------------------------------------


def snapshot(target: PostgresTarget, stage: Stage, *ids: int, run: int) -> None:
    table = orders(WriteMode.REPLACE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(n, run, "x") for n in ids], run=run)], generation=1, fence=1)


def oid(database: Server) -> object:
    return database.execute("SELECT 'orders'::regclass::oid")


def test_a_replaced_table_keeps_grants_indexes_and_their_names(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    role = f"reader_{database.database}"
    database.execute(f'CREATE ROLE "{role}"')
    try:
        snapshot(target, stage, 1, run=1)
        database.execute("ALTER TABLE orders ADD PRIMARY KEY (id), ADD CHECK (id > 0)")
        database.execute("CREATE INDEX by_note ON orders (note) WHERE note <> ''")
        database.execute("COMMENT ON COLUMN orders.note IS 'said by people'")
        database.execute(f'GRANT SELECT, UPDATE ON orders TO "{role}" WITH GRANT OPTION')
        database.execute("GRANT SELECT ON orders TO PUBLIC")
        facts = [
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'orders' ORDER BY 1",
            "SELECT conname FROM pg_constraint WHERE conrelid = 'orders'::regclass ORDER BY 1",
            "SELECT aclexplode(relacl)::text FROM pg_class WHERE relname = 'orders' ORDER BY 1",
            "SELECT col_description('orders'::regclass, 3)",
        ]
        before, table = [database.execute(fact) for fact in facts], oid(database)
        for run in (2, 3):
            snapshot(target, stage, 1, 2, run=run)
        assert oid(database) != table
        assert [database.execute(fact) for fact in facts] == before
        assert database.execute("SELECT count(*) FROM orders") == [(2,)]
    finally:
        database.execute(f'DROP OWNED BY "{role}"')
        database.execute(f'DROP ROLE "{role}"')


def test_a_default_privilege_that_was_revoked_stays_revoked(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    database.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
    snapshot(target, stage, 1, run=1)
    database.execute("REVOKE ALL ON orders FROM PUBLIC")
    snapshot(target, stage, 2, run=2)
    grantees = "SELECT grantee FROM information_schema.table_privileges WHERE table_name = 'orders'"
    assert ("PUBLIC",) not in database.execute(grantees)


@pytest.mark.parametrize(
    "bond",
    [
        "CREATE VIEW bond AS SELECT id FROM orders",
        "CREATE MATERIALIZED VIEW bond AS SELECT id FROM orders",
        "CREATE FUNCTION bond() RETURNS SETOF orders LANGUAGE sql AS 'SELECT * FROM orders'",
        "CREATE TABLE bond () INHERITS (orders)",
        "CREATE RULE bond AS ON UPDATE TO orders DO ALSO NOTHING",
        "CREATE PUBLICATION bond FOR TABLE orders WITH (publish = 'insert')",
        "ALTER TABLE orders SET (fillfactor = 70)",
        "ALTER TABLE orders ADD COLUMN bond serial",
        "ALTER TABLE orders ADD COLUMN bond bigint GENERATED ALWAYS AS IDENTITY",
        "GRANT SELECT (id) ON orders TO PUBLIC",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    ],
)
def test_a_table_that_others_hold_on_to_is_not_swapped_but_refilled(
    target: PostgresTarget, database: Server, stage: Stage, bond: str
) -> None:
    snapshot(target, stage, 1, run=1)
    database.execute(bond)
    table = oid(database)
    snapshot(target, stage, 2, 3, run=2)
    assert oid(database) == table
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]


def test_a_view_shows_the_new_rows(target: PostgresTarget, database: Server, stage: Stage) -> None:
    snapshot(target, stage, 1, run=1)
    database.execute("CREATE VIEW seen AS SELECT id FROM orders")
    snapshot(target, stage, 2, 3, run=2)
    assert database.execute("SELECT id FROM seen ORDER BY id") == [(2,), (3,)]


def test_a_reader_with_an_old_snapshot_does_not_find_the_new_table_empty(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    snapshot(target, stage, 1, run=1)
    with closing(database.connect()) as reader, closing(reader.cursor()) as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT 1 FROM pg_class LIMIT 1")
        snapshot(target, stage, 2, 3, run=2)
        cursor.execute("SELECT count(*) FROM orders")
        assert cursor.fetchall() == [(2,)]


def test_a_long_reader_is_not_waited_for(database: Server, stage: Stage) -> None:
    target = target_in(database, swap_wait=0.2)
    snapshot(target, stage, 1, run=1)
    with closing(database.connect()) as reader, closing(reader.cursor()) as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        snapshot(target, stage, 2, 3, run=2)
        cursor.execute("SELECT count(*) FROM orders")
        assert cursor.fetchall() == [(2,)]
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]
    tables = database.execute("SELECT relname FROM pg_class WHERE relname LIKE '\\_tidegate\\_new%'")
    assert tables == []


def test_a_partitioned_table_can_be_replaced(target: PostgresTarget, database: Server, stage: Stage) -> None:
    database.execute("CREATE TABLE orders (id bigint, at bigint, note text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE orders_2 PARTITION OF orders DEFAULT")
    snapshot(target, stage, 1, 20, run=1)
    snapshot(target, stage, 2, 30, run=2)
    assert database.execute("SELECT id FROM orders_1") == [(2,)]
    assert database.execute("SELECT id FROM orders_2") == [(30,)]


# --- tables that somebody else made --------------------------------------------------


def test_a_table_without_a_unique_index_is_merged_into(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    database.execute("CREATE TABLE orders (note text, id bigint, at bigint)")
    database.execute("INSERT INTO orders VALUES ('theirs', 1, 1), ('older', 2, NULL)")
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    target.load(
        table, [stage.segment(ORDERS, [(1, 1, "ours"), (2, 1, "ours"), (3, 1, "new")])], generation=1, fence=1
    )
    assert read_rows(target, "orders", ["id", "note"]) == [("1", "ours"), ("2", "ours"), ("3", "new")]


def test_a_table_made_for_merging_has_its_key_as_primary_key(
    target: PostgresTarget, database: Server
) -> None:
    target.prepare(orders(WriteMode.MERGE), ORDERS)
    definition = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass"
    assert database.execute(definition) == [("PRIMARY KEY (id)",)]


def test_columns_that_look_after_themselves_are_left_alone(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint, at bigint, note text, number serial NOT NULL, "
        "kept text NOT NULL DEFAULT 'default', twice bigint GENERATED ALWAYS AS (id * 2) STORED)"
    )
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(5, 1, "a")])], generation=1, fence=1)
    database.execute("UPDATE orders SET kept = 'by hand'")
    target.load(table, [stage.segment(ORDERS, [(5, 2, "b")], run=2)], generation=1, fence=1)
    expected = [("b", "1", "by hand", "10")]
    assert read_rows(target, "orders", ["note", "number", "kept", "twice"]) == expected


def test_a_column_that_must_be_filled_and_is_not_brought_is_refused(
    target: PostgresTarget, database: Server
) -> None:
    database.execute("CREATE TABLE orders (id bigint, at bigint, note text, owner text NOT NULL)")
    with pytest.raises(
        IncompatibleTable, match="owner: the rows do not have it, the table has text NOT NULL"
    ):
        target.prepare(orders(), ORDERS)


@pytest.mark.parametrize(
    ("native", "kind", "after"),
    [
        ("varchar(5)", DataType(Kind.TEXT), "text"),
        ("varchar(5)", DataType(Kind.TEXT, length=9), "text"),
        ("varchar(9)", DataType(Kind.TEXT, length=9), "character varying(9)"),
        ("timestamp(0)", DataType(Kind.TIMESTAMP), "timestamp without time zone"),
        ("timestamp(3)", DataType(Kind.TIMESTAMP, precision=3), "timestamp(3) without time zone"),
        ("timestamptz(3)", DataType(Kind.INSTANT), "timestamp with time zone"),
        ("time(0)", DataType(Kind.TIME), "time without time zone"),
        ("numeric", DataType(Kind.DECIMAL, 38, 10), "numeric"),
        ("numeric", DataType(Kind.UINT64), "numeric"),
        ("numeric(10,2)", DataType(Kind.INT64), "numeric(21,2)"),
        ("jsonb", DataType(Kind.JSON), "jsonb"),
        ("text", DataType(Kind.UUID), "text"),
    ],
)
def test_a_column_becomes_what_the_rows_need(
    target: PostgresTarget, database: Server, native: str, kind: DataType, after: str
) -> None:
    database.execute(f"CREATE TABLE orders (v {native})")
    target.prepare(orders(), schema_of(v=kind))
    shown = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'orders'::regclass AND attnum = 1"
    )
    assert database.execute(shown) == [(after,)]


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        ("timestamptz", Kind.TIMESTAMP),
        ("timestamp", Kind.INSTANT),
        ("char(9)", Kind.TEXT),
        ("text", Kind.INT32),
        ("integer", Kind.BOOL),
        ("integer", Kind.FLOAT64),
        ("double precision", Kind.INT64),
        ("uuid", Kind.TEXT),
        ("integer[]", Kind.INT32),
        ("interval", Kind.TIME),
    ],
)
def test_a_column_that_would_bend_values_is_refused(
    target: PostgresTarget, database: Server, native: str, kind: Kind
) -> None:
    database.execute(f"CREATE TABLE orders (v {native})")
    with pytest.raises(IncompatibleTable, match=f"column v: the rows bring {kind}"):
        target.prepare(orders(), schema_of(v=kind))


def test_a_widening_that_a_view_forbids_is_explained_and_nothing_is_changed(
    target: PostgresTarget, database: Server
) -> None:
    database.execute("CREATE TABLE orders (id integer)")
    database.execute("CREATE VIEW seen AS SELECT id FROM orders")
    with pytest.raises(IncompatibleTable, match=r"need bigint, the table has integer; .* view"):
        target.prepare(orders(), schema_of(id=Kind.INT64, extra=Kind.TEXT))
    columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0"
    assert database.execute(columns) == [(1,)]


def test_a_view_is_not_loaded_into(target: PostgresTarget, database: Server) -> None:
    database.execute("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(IncompatibleTable, match="a view of that name"):
        target.prepare(orders(), ORDERS)


@pytest.mark.parametrize("longest", [63, 64])
def test_names_longer_than_postgresql_keeps_are_refused(target: PostgresTarget, longest: int) -> None:
    schema = Schema((Column("é" * (longest // 2) + "x" * (longest % 2), DataType(Kind.TEXT)),))
    if longest == 63:
        target.prepare(orders(), schema)
        assert target.action(orders(), schema) == "append to orders"
        return
    with pytest.raises(IncompatibleTable, match="longer than 63 bytes"):
        target.prepare(orders(), schema)
    with pytest.raises(IncompatibleTable, match="longer than 63 bytes"):
        target.action(orders(name="n" * longest), ORDERS)


# --- errors --------------------------------------------------------------------------


def test_a_wrong_password_is_said_in_words_and_not_shown(database: Server) -> None:
    with pytest.raises(ConnectError) as caught:
        target_in(database, password="s3cret-but-wrong").count("orders")
    assert "password authentication failed" in str(caught.value)
    assert "check the target's username and password" in str(caught.value)
    assert "s3cret" not in f"{caught.value!s} {caught.value!r} {target_in(database).database!r}"
    assert caught.value.exit_code == 5


def test_a_missing_database_is_said_in_words(database: Server) -> None:
    with pytest.raises(ConnectError, match='database "nowhere" does not exist'):
        target_in(database, database="nowhere").count("orders")


def test_an_unreachable_server_is_said_in_words(database: Server) -> None:
    with closed_port() as port, pytest.raises(ConnectError, match="Connection refused") as caught:
        target_in(database, port=port).count("orders")
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_missing_right_is_said_in_words(database: Server, target: PostgresTarget, stage: Stage) -> None:
    role = f"poor_{database.database}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'poor'")
    try:
        poor = target_in(database, username=role, password="poor")
        with pytest.raises(TargetError, match="permission denied"):
            poor.prepare(orders(), ORDERS)
        target.prepare(orders(), ORDERS)
        with pytest.raises(TargetError, match=f"grant {role} what is missing"):
            poor.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    finally:
        database.execute(f"DROP ROLE {role}")


def test_a_role_with_just_the_needed_rights_can_load(
    database: Server, target: PostgresTarget, stage: Stage
) -> None:
    role = f"writer_{database.database}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'w'")
    try:
        writer = target_in(database, username=role, password="w")
        for mode in WriteMode:
            table = orders(mode, name=f"t_{mode}")
            target.prepare(table, ORDERS)
            database.execute(
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table.name}, {LEDGER}, {FENCES} TO {role}"
            )
            writer.prepare(table, ORDERS)
            assert writer.load(table, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1
    finally:
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


def test_a_character_that_postgresql_cannot_store_stops_the_load(
    target: PostgresTarget, stage: Stage
) -> None:
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "fine")]), stage.segment(ORDERS, [(2, 2, "nul \x00 inside")])]
    with pytest.raises(TargetError, match="cannot store this character"):
        target.load(orders(), staged, generation=1, fence=1)
    assert target.count("orders") == 0


def test_a_refused_value_names_its_column_and_does_not_show_the_row(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    database.execute("CREATE TABLE orders (id bigint, at bigint NOT NULL, note text CHECK (note <> 'bad'))")
    target.prepare(orders(), ORDERS)
    with pytest.raises(TargetError, match="null value in column"):
        target.load(orders(), [stage.segment(ORDERS, [(1, None, "a")])], generation=1, fence=1)
    with pytest.raises(TargetError, match="violates check constraint"):
        target.load(orders(), [stage.segment(ORDERS, [(1, 1, "bad")])], generation=1, fence=1)


def test_a_table_in_use_is_waited_for_only_so_long(database: Server, stage: Stage) -> None:
    target = target_in(database, lock_wait=0.3)
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")])]
    with closing(database.connect()) as other, closing(other.cursor()) as cursor:
        cursor.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TargetError, match=r"using the table for more than 0.3 s"):
            target.load(orders(), staged, generation=1, fence=1)
    assert target.load(orders(), staged, generation=1, fence=1) == 1


def test_a_server_that_ends_the_session_while_rows_travel_loads_nothing(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")])]
    with closing(database.connect()) as other, closing(other.cursor()) as cursor:
        cursor.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")  # holds the load up in its middle
        killer = threading.Thread(target=_end_waiting_session, args=(database,))
        killer.start()
        with pytest.raises(ConnectError, match="terminating connection"):
            target.load(orders(), staged, generation=1, fence=1)
        killer.join()
    assert target.loaded(orders().stream, 1, [staged[0].segment.key]) == frozenset()
    assert target.load(orders(), staged, generation=1, fence=1) == 1


def _end_waiting_session(database: Server) -> None:
    deadline = time.monotonic() + 120
    ended: list[Any] = []
    while not ended and time.monotonic() < deadline:
        time.sleep(0.05)
        ended = database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidegate' "
            "AND wait_event_type = 'Lock' AND datname = current_database()"
        )


@pytest.mark.parametrize("when", Break)
@pytest.mark.parametrize("mode", WriteMode)
def test_a_lost_answer_to_the_commit_is_an_unknown_outcome_that_the_ledger_resolves(
    target: PostgresTarget, database: Server, stage: Stage, mode: WriteMode, when: Break
) -> None:
    table = orders(mode)
    target.prepare(table, ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a"), (2, 2, "b")])]
    keys = [staged[0].segment.key]
    with breaking((database.host, database.port), b"COMMIT\x00", when) as proxy:
        shaky = target_in(database, port=proxy.port)
        with pytest.raises(OutcomeUnknown, match="the answer to the commit was lost"):
            shaky.load(table, staged, generation=1, fence=1)
    landed = when is Break.AFTER
    assert target.load(table, staged, generation=1, fence=1) == (0 if landed else 2)
    assert target.loaded(table.stream, 1, keys) == frozenset(keys)
    assert target.count("orders") == 2


def test_commits_are_on_disk_before_they_are_answered(
    target: PostgresTarget, database: Server, stage: Stage
) -> None:
    database.execute(f"ALTER DATABASE {database.database} SET synchronous_commit = off")
    database.execute(
        "CREATE TABLE orders (id bigint, at bigint, note text, "
        "how text DEFAULT current_setting('synchronous_commit'))"
    )
    target.prepare(orders(), ORDERS)
    target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    assert database.execute("SELECT how FROM orders") == [("on",)]


def test_a_strict_default_isolation_does_not_hide_what_another_loader_did(
    database: Server, stage: Stage
) -> None:
    database.execute(f"ALTER DATABASE {database.database} SET default_transaction_isolation = 'serializable'")
    target = target_in(database)
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(n, n, "x") for n in range(100)])]
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(target.load(orders(), staged, generation=1, fence=1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 0, 0, 100]


@pytest.mark.parametrize(
    ("native", "declared"),
    [
        ("numeric(12,2)", DataType(Kind.DECIMAL, 12, 2)),
        ("numeric", DataType(Kind.DECIMAL)),
        ("character varying(7)", DataType(Kind.TEXT, length=7)),
        ("timestamp(3) without time zone", DataType(Kind.TIMESTAMP, precision=3)),
        ("timestamp with time zone", DataType(Kind.INSTANT)),
        ("time(0) without time zone", DataType(Kind.TIME, precision=0)),
        ("character(3)", None),
        ("money", None),
        ("bigint[]", None),
    ],
)
def test_native_types_are_understood(native: str, declared: DataType | None) -> None:
    assert declared_type(native) == declared
