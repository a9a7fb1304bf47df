"""The commit-safe ceiling on PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, timedelta

import pytest

from tests.servers import Server, wait_until_replayed
from tests.sources.conftest import Opened
from tests.sources.writing import IMPATIENT, PATIENT, run, soon, writer
from tidegate.core.positions import Position
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.reach.login import APPLICATION_NAME
from tidegate.sources.contract import Source

HYBRID = Cursor(timestamp="updated_at", id="id")
BY_ID = Cursor(id="id")


@pytest.fixture
def shop(postgres_database: Server) -> Server:
    postgres_database.execute(
        "CREATE TABLE orders (id bigserial PRIMARY KEY, "
        "updated_at timestamptz NOT NULL DEFAULT now(), note text)"
    )
    postgres_database.execute("CREATE INDEX ON orders (updated_at)")
    return postgres_database


def add(server: Server, *, seconds_ago: float = 0) -> Position:
    """Commit one row, and say where it stands."""
    [(moment, number)] = server.execute(
        "INSERT INTO orders (updated_at) VALUES (now() - make_interval(secs => %s)) RETURNING updated_at, id",
        [seconds_ago],
    )
    return Position.of(moment.astimezone(UTC), number)


def freeze(source: Source, cursor: Cursor = HYBRID, settings: CeilingSettings = IMPATIENT) -> Position | None:
    return source.freeze(source.table("orders"), cursor, settings).position


@pytest.fixture
def poor(shop: Server) -> Server:
    """A user who may read the table and nothing else."""
    role = f"poor_{shop.database}"
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    shop.execute(f"GRANT SELECT ON orders TO {role}")
    return shop.logged_in_as(role, "secret")


def test_with_nobody_writing_the_ceiling_is_the_largest_row(shop: Server, opened: Opened) -> None:
    add(shop)
    last = add(shop)
    source = opened(shop)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.held_back_by, ceiling.warnings) == (last, None, ())


def test_a_transaction_that_has_not_written_yet_lowers_the_ceiling_below_its_start(
    shop: Server, opened: Opened
) -> None:
    before = add(shop, seconds_ago=1)
    with writer(shop) as late:
        run(late, "SELECT 1")  # its now() is fixed from here on
        last = add(shop)
        source = opened(shop)
        ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
        assert ceiling.position == before
        assert ceiling.held_back_by is not None
        assert f"of {shop.user}@127.0.0.1" in ceiling.held_back_by
        assert ceiling.held_back_by.endswith("idle in transaction")
        assert 0 < ceiling.held_back_seconds < 600
        run(late, "INSERT INTO orders (note) VALUES ('old timestamp')")
        late.commit()
    [(moment,)] = shop.execute("SELECT updated_at FROM orders WHERE note IS NOT NULL")
    assert before < Position.of(moment.astimezone(UTC)) < last
    assert freeze(opened(shop)) == last


def test_a_transaction_that_ends_in_time_is_waited_for(shop: Server, opened: Opened) -> None:
    with writer(shop) as late:
        run(late, "SELECT 1")
        last = add(shop)
        source = opened(shop)
        with soon(lambda: run(late, "INSERT INTO orders (note) VALUES ('slow')", "COMMIT")):
            ceiling = source.freeze(source.table("orders"), HYBRID, PATIENT)
        assert (ceiling.position, ceiling.held_back_by) == (last, None)
        assert shop.execute("SELECT count(*) FROM orders WHERE note = 'slow'") == [(1,)]


def test_transactions_of_other_databases_hold_nothing_back(
    shop: Server, postgres: Server, opened: Opened
) -> None:
    last = add(shop)
    with writer(postgres) as elsewhere:
        run(elsewhere, "SELECT 1")
        assert freeze(opened(shop)) == last


@pytest.mark.parametrize(
    ("application", "ignored"), [(APPLICATION_NAME, ()), ("report", ("report",)), ("report", ("tide",))]
)
def test_our_own_readers_and_those_who_never_write_hold_nothing_back(
    application: str, ignored: tuple[str, ...], shop: Server, opened: Opened
) -> None:
    with writer(shop) as reading:
        run(reading, f"SET application_name = '{application}'")
        last = add(shop)
        assert freeze(opened(shop), settings=replace(IMPATIENT, ignore=ignored)) == last


def test_a_prepared_transaction_keeps_the_ceiling_where_it_was(shop: Server, opened: Opened) -> None:
    add(shop)
    with closing(shop.connect(autocommit=True)) as late:
        run(late, "BEGIN", "INSERT INTO orders DEFAULT VALUES", "PREPARE TRANSACTION 'x'")
    add(shop)
    source = opened(shop)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert ceiling.position is None
    assert ceiling.held_back_by is not None
    assert ceiling.held_back_by.startswith(f"prepared transaction `x` of {shop.user}")
    shop.execute("COMMIT PREPARED 'x'")
    assert freeze(opened(shop)) is not None


def test_an_id_that_gets_prepared_still_holds_the_candidates_that_saw_it_open(
    shop: Server, opened: Opened
) -> None:
    source = opened(shop)
    orders = source.table("orders")
    with closing(shop.connect(autocommit=True)) as late:
        run(late, "BEGIN", "INSERT INTO orders DEFAULT VALUES")
        add(shop)
        first = source.freeze(orders, BY_ID, IMPATIENT)
        assert (first.position, len(first.candidates)) == (None, 1)
        run(late, "PREPARE TRANSACTION 'x'")
    second = source.freeze(orders, BY_ID, IMPATIENT, first.candidates)
    assert second.position is None
    shop.execute("COMMIT PREPARED 'x'")
    assert source.freeze(orders, BY_ID, IMPATIENT, second.candidates).position == Position.of(2)


def test_ids_move_on_although_transactions_always_overlap(shop: Server, opened: Opened) -> None:
    source = opened(shop)
    orders = source.table("orders")
    with writer(shop) as one, writer(shop) as two:
        run(one, "INSERT INTO orders DEFAULT VALUES")
        add(shop)
        first = source.freeze(orders, BY_ID, IMPATIENT)
        assert first.position is None
        run(two, "INSERT INTO orders DEFAULT VALUES")
        add(shop)
        one.commit()
        second = source.freeze(orders, BY_ID, IMPATIENT, first.candidates)
        assert second.position == Position.of(2)
        assert second.held_back_by is not None
        run(one, "INSERT INTO orders DEFAULT VALUES")
        add(shop)
        two.commit()
        third = source.freeze(orders, BY_ID, IMPATIENT, second.candidates)
        assert third.position == Position.of(4)
        one.commit()
    assert source.freeze(orders, BY_ID, IMPATIENT, third.candidates).position == Position.of(6)


def test_without_the_privilege_rows_are_left_until_they_are_old_and_read_again(
    shop: Server, poor: Server, opened: Opened
) -> None:
    old = add(shop, seconds_ago=61)
    add(shop)
    source = opened(poor)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.lookback) == (old, timedelta(seconds=60))
    [warning] = ceiling.warnings
    assert f'GRANT pg_read_all_stats TO "{poor.user}"' in warning


def test_with_the_grant_that_is_named_the_view_is_trusted(shop: Server, poor: Server, opened: Opened) -> None:
    last = add(shop)
    shop.execute(f"GRANT pg_read_all_stats TO {poor.user}")
    source = opened(poor)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.lookback, ceiling.warnings) == (last, timedelta(0), ())


def test_a_connection_that_hides_what_it_does_is_not_overlooked(
    shop: Server, poor: Server, opened: Opened
) -> None:
    add(shop)
    shop.execute(f"ALTER ROLE {poor.user} SET track_activities = off")
    with writer(poor) as hidden:
        run(hidden, "SELECT 1")
        source = opened(shop)
        ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
        assert (ceiling.position, ceiling.lookback) == (None, timedelta(seconds=60))
        assert "track_activities" in ceiling.warnings[0]


@pytest.fixture
def standby(shop: Server, postgres_standby: Server) -> Server:
    wait_until_replayed(shop, postgres_standby)
    return postgres_standby.using(shop.database)


def test_a_standby_with_its_primary_holds_back_what_is_open_on_the_primary(
    shop: Server, standby: Server, opened: Opened
) -> None:
    before = add(shop, seconds_ago=1)
    source = opened(standby, shop)
    orders = source.table("orders")
    with writer(shop) as late:
        run(late, "SELECT 1")
        last = add(shop)
        wait_until_replayed(shop, standby)
        held = source.freeze(orders, HYBRID, IMPATIENT)
        assert (held.position, held.lookback) == (before, timedelta(0))
        assert "idle in transaction" in (held.held_back_by or "")
        late.rollback()
    assert source.freeze(orders, HYBRID, IMPATIENT).position == last


def test_a_standby_with_its_primary_has_replayed_what_ended_while_it_was_waited_for(
    shop: Server, standby: Server, opened: Opened
) -> None:
    source = opened(standby, shop)
    orders = source.table("orders")
    with writer(shop) as late:
        run(late, "SELECT 1")
        last = add(shop)
        wait_until_replayed(shop, standby)
        with soon(lambda: run(late, "INSERT INTO orders (note) VALUES ('slow')", "COMMIT")):
            assert source.freeze(orders, HYBRID, PATIENT).position == last
        assert standby.execute("SELECT count(*) FROM orders WHERE note = 'slow'") == [(1,)]


def test_a_standby_without_its_primary_says_what_is_missing(
    shop: Server, standby: Server, opened: Opened
) -> None:
    old = add(shop, seconds_ago=61)
    add(shop)
    wait_until_replayed(shop, standby)
    source = opened(standby)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.lookback) == (old, timedelta(seconds=60))
    assert "ceiling.primary" in ceiling.warnings[0]


def test_a_standby_that_cannot_keep_up_is_not_trusted(shop: Server, standby: Server, opened: Opened) -> None:
    add(shop)
    wait_until_replayed(shop, standby)
    source = opened(standby, shop)
    orders = source.table("orders")
    standby.execute("SELECT pg_wal_replay_pause()")
    try:
        add(shop)
        ceiling = source.freeze(orders, HYBRID, IMPATIENT)
    finally:
        standby.execute("SELECT pg_wal_replay_resume()")
    assert ceiling.lookback == timedelta(seconds=60)
    assert "not up to date" in ceiling.warnings[0]


def test_a_sequence_that_hands_out_ids_out_of_order_is_mentioned(shop: Server, opened: Opened) -> None:
    add(shop)
    source = opened(shop)
    orders = source.table("orders")
    assert source.freeze(orders, BY_ID, IMPATIENT).warnings == ()
    shop.execute("ALTER SEQUENCE orders_id_seq CACHE 20")
    [warning] = source.freeze(orders, BY_ID, IMPATIENT).warnings
    assert "20 ids" in warning
    assert source.freeze(orders, BY_ID, replace(IMPATIENT, lookback_ids=100)).warnings == ()


def test_identity_columns_are_looked_at_like_serial_ones(postgres_database: Server, opened: Opened) -> None:
    postgres_database.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 7), note text)"
    )
    postgres_database.execute("INSERT INTO orders (note) VALUES ('x')")
    source = opened(postgres_database)
    [warning] = source.freeze(source.table("orders"), BY_ID, IMPATIENT).warnings
    assert "7 ids" in warning


@pytest.fixture
def far(shop: Server) -> Server:
    """With a table that lies on another server."""
    shop.execute("CREATE EXTENSION postgres_fdw")
    shop.execute(
        "CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw "
        f"OPTIONS (host '{shop.host}', port '{shop.port}', dbname '{shop.database}')"
    )
    shop.execute(
        f"CREATE USER MAPPING FOR {shop.user} SERVER here "
        f"OPTIONS (user '{shop.user}', password '{shop.password}')"
    )
    shop.execute(
        "CREATE FOREIGN TABLE away (id bigint, updated_at timestamptz) "
        "SERVER here OPTIONS (table_name 'orders')"
    )
    return shop


PARTED = "CREATE TABLE parted (id bigint, updated_at timestamptz) PARTITION BY RANGE (id)"
AWAY = "`away` is a foreign table"
ELSEWHERE: dict[str, tuple[list[str], str, str]] = {
    "a table on another server": ([], "away", AWAY),
    "a view of a view of it": (
        [
            "CREATE VIEW near AS TABLE away",
            "CREATE VIEW seen AS SELECT n.* FROM orders JOIN near n USING (id)",
        ],
        "seen",
        AWAY,
    ),
    "a table with such a part": (
        [
            PARTED,
            "CREATE TABLE near PARTITION OF parted FOR VALUES FROM (1) TO (2)",
            (
                "CREATE FOREIGN TABLE far PARTITION OF parted FOR VALUES FROM (2) TO (3) "
                "SERVER here OPTIONS (table_name 'orders')"
            ),
        ],
        "parted",
        "`far` is a foreign table",
    ),
    "a SELECT from it": ([], "SELECT * FROM Away AS a", AWAY),
    "a picture of an hour ago": (
        ["CREATE MATERIALIZED VIEW picture AS SELECT id, updated_at FROM orders"],
        "picture",
        "`picture` is a materialized view",
    ),
}


@pytest.mark.parametrize(("made", "read", "words"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_what_is_not_stamped_by_whom_this_server_shows_is_not_trusted(
    far: Server, opened: Opened, made: list[str], read: str, words: str
) -> None:
    add(far)
    for statement in made:
        far.execute(statement)
    source = opened(far)
    relation = source.query("read", read) if " " in read else source.table(read)
    ceiling = source.freeze(relation, HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.lookback) == (None, timedelta(seconds=60))
    assert words in ceiling.warnings[-1]


def test_a_part_that_replication_fills_is_not_trusted(shop: Server, opened: Opened) -> None:
    shop.execute(PARTED)
    shop.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (1) TO (2)")
    shop.execute("INSERT INTO parted VALUES (1, now())")
    name = f"to_{shop.database}"
    # As if it had once been connected to a publisher, which would have told the tables.
    shop.execute(
        f"CREATE SUBSCRIPTION {name} CONNECTION 'dbname=nowhere' PUBLICATION p "
        "WITH (connect = false, slot_name = NONE)"
    )
    try:
        shop.execute(
            "SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel "
            f"SELECT oid, 'part'::regclass, 'r', NULL FROM pg_subscription WHERE subname = '{name}'"
        )
        source = opened(shop)
        ceiling = source.freeze(source.table("parted"), HYBRID, IMPATIENT)
    finally:
        shop.execute(f"DROP SUBSCRIPTION {name}")
    assert ceiling.position is None
    assert "`part` is filled by logical replication" in ceiling.warnings[-1]


def test_views_and_parts_of_this_server_are_trusted(shop: Server, opened: Opened) -> None:
    shop.execute(PARTED)
    shop.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (1000)")
    shop.execute("CREATE VIEW near AS SELECT o.id, o.updated_at FROM orders o LEFT JOIN parted USING (id)")
    last = add(shop)
    source = opened(shop)
    ceiling = source.freeze(source.table("near"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.warnings) == (last, ())


@pytest.mark.parametrize("column", ["timestamp(0)", "timestamptz(3)", "timestamp", "date"])
def test_every_kind_of_timestamp_can_be_a_ceiling(
    column: str, postgres_database: Server, opened: Opened
) -> None:
    postgres_database.execute(f"CREATE TABLE orders (id int PRIMARY KEY, at {column} NOT NULL)")
    postgres_database.execute(
        "INSERT INTO orders VALUES (1, now() - interval '9 days'), (2, now() - interval '2 days'), "
        "(3, now() + interval '2 days'), (4, 'infinity')"
    )
    source = opened(postgres_database)
    ceiling = source.freeze(source.table("orders"), Cursor("at", "id"), IMPATIENT)
    assert ceiling.position is not None
    assert ceiling.position.values[1] == 2
    assert "future" in ceiling.warnings[0]


def test_a_zoneless_column_is_read_in_its_own_zone(postgres_database: Server, opened: Opened) -> None:
    """At five in the afternoon in New York, a row of an hour ago in UTC would be four hours in the future."""
    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamp NOT NULL)")
    postgres_database.execute(
        "INSERT INTO orders VALUES (1, (now() AT TIME ZONE 'America/New_York') - interval '2 seconds'), "
        "(2, (now() AT TIME ZONE 'UTC') - interval '2 seconds')"
    )
    source = opened(postgres_database)
    orders = source.table("orders")
    new_york = source.freeze(orders, Cursor("at", "id", zone="America/New_York"), IMPATIENT)
    utc = source.freeze(orders, Cursor("at", "id"), IMPATIENT)
    assert new_york.position is not None
    assert utc.position is not None
    assert (new_york.position.values[1], utc.position.values[1]) == (1, 2)


def test_connections_the_server_has_closed_are_opened_again(shop: Server, opened: Opened) -> None:
    last = add(shop)
    source = opened(shop)
    assert freeze(source) == last
    shop.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert freeze(source) == last
