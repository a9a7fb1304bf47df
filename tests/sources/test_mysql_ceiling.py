"""The commit-safe ceiling on MariaDB."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.servers import Server
from tests.sources.conftest import Opened
from tests.sources.readers.reading import wait_until
from tests.sources.writing import IMPATIENT, PATIENT, meanwhile, run, soon, writer
from tidegate.core.ceiling import Ceiling
from tidegate.core.positions import Position
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.sources.contract import Source
from tidegate.sources.mysql_watch import EARLIEST_MOMENT

BY_TIME = Cursor(timestamp="updated_at")
HYBRID = Cursor(timestamp="updated_at", id="id")
BY_ID = Cursor(id="id")


@pytest.fixture
def shop(mariadb_database: Server) -> Server:
    return with_orders(mariadb_database)


def with_orders(database: Server) -> Server:
    database.execute(
        "CREATE TABLE orders (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, "
        "updated_at datetime(6) NOT NULL DEFAULT current_timestamp(6), note text, KEY (updated_at))"
    )
    return database


def add(server: Server, *, seconds_ago: int = 0) -> Position:
    """Commit one row, and say where it stands."""
    with closing(server.connect(autocommit=True)) as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO orders (updated_at) VALUES (now(6) - INTERVAL %s SECOND)", [seconds_ago])
        cursor.execute("SELECT updated_at, id FROM orders WHERE id = LAST_INSERT_ID()")
        return Position(cursor.fetchone())


@contextmanager
def polling(server: Server, interval: float) -> Iterator[None]:
    """A monitoring tool that reads the list of transactions all the time."""
    stop = threading.Event()

    def poll() -> None:
        with closing(server.connect(autocommit=True)) as connection:
            while not stop.is_set():
                run(connection, "SELECT count(*) FROM information_schema.innodb_trx")
                time.sleep(interval)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def freeze(source: Source, cursor: Cursor = HYBRID, settings: CeilingSettings = IMPATIENT) -> Position | None:
    return source.freeze(source.table("orders"), cursor, settings).position


@pytest.fixture
def scheduler(mariadb: Server) -> Iterator[None]:
    mariadb.execute("SET GLOBAL event_scheduler = ON")
    yield
    mariadb.execute("SET GLOBAL event_scheduler = OFF")


SLOW = "INSERT INTO orders (updated_at, note) SELECT now(6), 'slow' FROM (SELECT get_lock('held', 600)) s"


@contextmanager
def waiting(shop: Server, statement: str, sign: str, release: Callable[[], None]) -> Iterator[None]:
    """A statement that waits for as long as the block lasts, which the sign in the process list tells."""
    waits = f"SELECT 1 FROM information_schema.processlist WHERE {sign} AND id <> connection_id()"
    with meanwhile(shop, statement):
        try:
            wait_until(lambda: bool(shop.execute(waits)), 120)
            yield
        finally:
            release()
            wait_until(lambda: not shop.execute(waits), 120)


@contextmanager
def held_up(shop: Server, statement: str = SLOW, form: str = "{}") -> Iterator[Callable[[], None]]:
    """A statement that has its timestamp, and that the engine does not see before the block is over, or
    what the block is given is called."""
    with closing(shop.connect(autocommit=True)) as holder:
        run(holder, "SELECT get_lock('held', 0)")

        def release() -> None:
            run(holder, "DO release_lock('held')")

        with waiting(shop, form.format(statement), "state = 'User lock'", release):
            yield release


def test_with_nobody_writing_the_ceiling_is_the_largest_row(shop: Server, opened: Opened) -> None:
    add(shop)
    last = add(shop)
    source = opened(shop)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.held_back_by, ceiling.warnings) == (last, None, ())


def test_an_empty_table_has_no_ceiling(shop: Server, opened: Opened) -> None:
    for cursor in (BY_TIME, HYBRID, BY_ID):
        assert freeze(opened(shop), cursor) is None


def test_a_transaction_that_stays_open_lowers_the_ceiling_below_its_start(
    shop: Server, opened: Opened
) -> None:
    before = add(shop, seconds_ago=5)
    source = opened(shop)
    with writer(shop) as late:
        run(late, "INSERT INTO orders (note) VALUES ('late')")
        last = add(shop)
        ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
        assert ceiling.position == before
        assert ceiling.held_back_by is not None
        assert f"of {shop.user}@127.0.0.1, idle in transaction" in ceiling.held_back_by
        assert 0 < ceiling.held_back_seconds < 600
        late.commit()
    assert freeze(opened(shop)) == last


def test_a_transaction_that_ends_in_time_is_waited_for(shop: Server, opened: Opened) -> None:
    with writer(shop) as late:
        run(late, "INSERT INTO orders (note) VALUES ('slow')")
        last = add(shop)
        source = opened(shop)
        with soon(late.commit):
            ceiling = source.freeze(source.table("orders"), HYBRID, PATIENT)
        assert (ceiling.position, ceiling.held_back_by) == (last, None)
        assert shop.execute("SELECT count(*) FROM orders WHERE note = 'slow'") == [(1,)]


def test_an_update_that_waits_for_a_lock_holds_the_ceiling_at_its_old_timestamp(
    shop: Server, opened: Opened
) -> None:
    before = add(shop, seconds_ago=5)
    shop.execute("CREATE OR REPLACE USER holder IDENTIFIED BY 'secret'")
    shop.execute(f"GRANT ALL ON {shop.database}.* TO holder")
    but_for_the_holder = replace(IMPATIENT, ignore=("holder",))
    with writer(shop.logged_in_as("holder", "secret")) as holder:
        run(holder, "SELECT * FROM orders WHERE id = 1 FOR UPDATE")
        update = "UPDATE orders SET updated_at = now(6) WHERE id = 1"
        with waiting(shop, update, "info LIKE 'UPDATE orders%'", holder.rollback):
            last = add(shop)
            assert freeze(opened(shop), settings=but_for_the_holder) == before
    assert freeze(opened(shop)) == last


def test_a_statement_the_engine_has_not_seen_yet_holds_the_ceiling(shop: Server, opened: Opened) -> None:
    before = add(shop, seconds_ago=5)
    with held_up(shop) as release:
        assert shop.execute("SELECT count(*) FROM information_schema.innodb_trx") == [(0,)]
        add(shop)
        source = opened(shop)
        held = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
        assert held.position == before
        assert "statement" in (held.held_back_by or "")
        with soon(release):
            assert freeze(opened(shop), settings=PATIENT) != before
        assert shop.execute("SELECT count(*) FROM orders WHERE note = 'slow'") == [(1,)]


@pytest.mark.parametrize(
    "form",
    [
        "SET STATEMENT max_statement_time = 600 FOR {}",
        "CREATE EVENT slow ON SCHEDULE AT CURRENT_TIMESTAMP DO {}",
    ],
    ids=["with settings of its own", "of the server's scheduler"],
)
def test_whatever_a_statement_looks_like_it_holds_the_ceiling(
    shop: Server, opened: Opened, scheduler: None, form: str
) -> None:
    del scheduler
    before = add(shop, seconds_ago=5)
    with held_up(shop, form=form):
        add(shop)
        assert freeze(opened(shop)) == before


def test_a_select_that_waits_for_a_table_may_be_about_to_write(shop: Server, opened: Opened) -> None:
    before = add(shop, seconds_ago=5)
    shop.execute("CREATE TABLE counted (n int)")
    shop.execute(
        "CREATE FUNCTION placed() RETURNS int MODIFIES SQL DATA "
        "BEGIN INSERT INTO orders (note) VALUES ('slow'); INSERT INTO counted VALUES (1); RETURN 1; END"
    )
    shop.execute("CREATE OR REPLACE USER holder IDENTIFIED BY 'secret'")
    shop.execute(f"GRANT ALL ON {shop.database}.* TO holder")
    with writer(shop.logged_in_as("holder", "secret")) as holder:
        run(holder, "LOCK TABLES counted WRITE")
        waits = "state = 'Waiting for table metadata lock'"
        with waiting(shop, "SELECT placed()", waits, lambda: run(holder, "UNLOCK TABLES")):
            last = add(shop)
            assert freeze(opened(shop), settings=replace(IMPATIENT, ignore=("holder",))) == before
    assert freeze(opened(shop)) == last


def test_a_first_statement_that_waited_before_the_engine_saw_it_is_not_overtaken(
    shop: Server, opened: Opened
) -> None:
    """The list says that the transaction began after its row was stamped."""
    before = add(shop, seconds_ago=5)
    with closing(shop.connect()) as late, closing(shop.connect(autocommit=True)) as holder:
        run(holder, "SELECT get_lock('held', 0)")
        slow = threading.Thread(target=run, args=(late, SLOW))
        slow.start()
        waits = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
        wait_until(lambda: bool(shop.execute(waits)), 120)
        overtaking = add(shop)
        time.sleep(2.5)
        run(holder, "DO release_lock('held')")
        slow.join()
        last = add(shop)
        assert freeze(opened(shop)) == before, f"the row stands before {overtaking}"
        late.rollback()
    assert freeze(opened(shop)) == last


def test_a_prepared_transaction_keeps_the_ceiling_where_it_was(shop: Server, opened: Opened) -> None:
    add(shop)
    with closing(shop.connect(autocommit=True)) as late:
        run(late, "XA START 'x'", "INSERT INTO orders VALUES ()", "XA END 'x'", "XA PREPARE 'x'")
    add(shop)
    source = opened(shop)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert ceiling.position is None
    assert ceiling.held_back_by is not None
    assert "prepared transaction" in ceiling.held_back_by
    shop.execute("XA COMMIT 'x'")
    assert freeze(opened(shop)) is not None


def test_an_id_that_gets_prepared_still_holds_the_candidates_that_saw_it_open(
    shop: Server, opened: Opened
) -> None:
    source = opened(shop)
    orders = source.table("orders")
    with closing(shop.connect(autocommit=True)) as late:
        run(late, "XA START 'x'", "INSERT INTO orders VALUES ()", "XA END 'x'")
        add(shop)
        first = source.freeze(orders, BY_ID, IMPATIENT)
        assert (first.position, len(first.candidates)) == (None, 1)
        run(late, "XA PREPARE 'x'")
    second = source.freeze(orders, BY_ID, IMPATIENT, first.candidates)
    assert second.position is None
    shop.execute("XA COMMIT 'x'")
    assert source.freeze(orders, BY_ID, IMPATIENT, second.candidates).position == Position.of(2)


def test_ids_move_on_although_transactions_always_overlap(shop: Server, opened: Opened) -> None:
    source = opened(shop)
    orders = source.table("orders")
    with writer(shop) as one, writer(shop) as two:
        run(one, "INSERT INTO orders VALUES ()")
        add(shop)
        first = source.freeze(orders, BY_ID, IMPATIENT)
        assert first.position is None
        run(two, "INSERT INTO orders VALUES ()")
        add(shop)
        one.commit()
        second = source.freeze(orders, BY_ID, IMPATIENT, first.candidates)
        assert second.position == Position.of(2)
        assert second.held_back_by is not None
        run(one, "INSERT INTO orders VALUES ()")
        add(shop)
        two.commit()
        third = source.freeze(orders, BY_ID, IMPATIENT, second.candidates)
        assert third.position == Position.of(4)
        one.commit()
    assert source.freeze(orders, BY_ID, IMPATIENT, third.candidates).position == Position.of(6)


def test_a_transaction_is_the_same_before_and_after_its_first_write(shop: Server, opened: Opened) -> None:
    add(shop)
    source = opened(shop)
    orders = source.table("orders")
    with writer(shop) as late:
        run(late, "SELECT * FROM orders")
        first = source.freeze(orders, BY_ID, IMPATIENT)
        run(late, "INSERT INTO orders VALUES ()")
        add(shop)
        second = source.freeze(orders, BY_ID, IMPATIENT, first.candidates)
        assert (first.position, second.position) == (None, None)
        late.commit()
    assert source.freeze(orders, BY_ID, IMPATIENT, second.candidates).position == Position.of(3)


def test_a_transaction_that_cannot_write_holds_nothing_back(shop: Server, opened: Opened) -> None:
    last = add(shop)
    with writer(shop) as reading:
        run(reading, "START TRANSACTION READ ONLY", "SELECT * FROM orders")
        for cursor, expected in ((HYBRID, last), (BY_ID, Position.of(1))):
            assert freeze(opened(shop), cursor) == expected


def test_users_that_never_write_can_be_ignored(shop: Server, opened: Opened) -> None:
    last = add(shop)
    shop.execute("CREATE OR REPLACE USER reporting IDENTIFIED BY 'secret'")
    shop.execute("GRANT SELECT ON *.* TO reporting")
    with writer(shop.logged_in_as("reporting", "secret")) as reading:
        run(reading, "SELECT * FROM orders")
        assert freeze(opened(shop)) is None
        assert freeze(opened(shop), settings=replace(IMPATIENT, ignore=("reporting",))) == last


def test_without_the_privilege_rows_are_left_until_they_are_old_and_read_again(
    shop: Server, opened: Opened
) -> None:
    shop.execute("CREATE OR REPLACE USER poor IDENTIFIED BY 'secret'")
    shop.execute(f"GRANT SELECT ON {shop.database}.* TO poor")
    shop.execute("INSERT INTO orders (updated_at) VALUES (now(6) - INTERVAL 61 SECOND)")
    add(shop)
    source = opened(shop.logged_in_as("poor", "secret"))
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert ceiling.position is not None
    assert ceiling.position.values[1] == 1
    assert ceiling.lookback == timedelta(seconds=60)
    [warning] = ceiling.warnings
    assert "GRANT PROCESS ON *.* TO 'poor'@'%'" in warning


def test_without_the_privilege_an_id_is_safe_when_it_is_old_enough(shop: Server, opened: Opened) -> None:
    shop.execute("CREATE OR REPLACE USER poor IDENTIFIED BY 'secret'")
    shop.execute(f"GRANT SELECT ON {shop.database}.* TO poor")
    source = opened(shop.logged_in_as("poor", "secret"))
    settings = replace(IMPATIENT, fallback_lag=timedelta(seconds=1))
    add(shop)
    first = source.freeze(source.table("orders"), BY_ID, settings)
    assert first.position is None
    time.sleep(1.1)
    add(shop)
    second = source.freeze(source.table("orders"), BY_ID, settings, first.candidates)
    assert second.position == Position.of(1)
    assert "GRANT PROCESS" in second.warnings[0]


def test_a_list_that_another_program_keeps_from_being_renewed_is_not_believed(
    shop: Server, opened: Opened
) -> None:
    add(shop)
    found: list[Ceiling] = []
    with polling(shop, 0.01), writer(shop) as late:
        time.sleep(0.3)
        run(late, "INSERT INTO orders VALUES ()")
        add(shop)
        source = opened(shop)
        # On a busy machine the other program may pause for long enough that the list is true for once.
        while not any(ceiling.lookback for ceiling in found) and len(found) < 20:
            found.append(source.freeze(source.table("orders"), HYBRID, IMPATIENT))
    assert [ceiling.position for ceiling in found] == [None] * len(found), (
        "the open transaction was overlooked"
    )
    assert found[-1].lookback == timedelta(seconds=60)
    assert "innodb_trx" in found[-1].warnings[0]


def test_several_who_watch_at_once_do_not_blind_each_other(shop: Server, opened: Opened) -> None:
    add(shop, seconds_ago=5)
    found: list[Ceiling] = []

    def look() -> None:
        source = opened(shop)
        found.append(source.freeze(source.table("orders"), HYBRID, IMPATIENT))

    with polling(shop, 0.15), writer(shop) as late:
        run(late, "INSERT INTO orders VALUES ()")
        add(shop)
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(ceiling.lookback, ceiling.position is not None) for ceiling in found] == [
        (timedelta(0), True)
    ] * 4
    assert all(ceiling.held_back_by for ceiling in found)


def test_a_server_east_of_utc_holds_the_ceiling_back_like_any_other(
    mariadb_east_database: Server, opened: Opened
) -> None:
    shop = with_orders(mariadb_east_database)
    tokyo = Cursor(timestamp="updated_at", id="id", zone="Asia/Tokyo")
    before = add(shop, seconds_ago=5)
    with writer(shop) as late:
        run(late, "INSERT INTO orders VALUES ()")
        last = add(shop)
        source = opened(shop)
        ceiling = source.freeze(source.table("orders"), tokyo, IMPATIENT)
        assert ceiling.position == before
        assert 0 < ceiling.held_back_seconds < 600
        late.rollback()
    assert freeze(opened(shop), tokyo) == last


def test_a_start_in_the_hour_that_comes_twice_is_taken_to_be_in_the_first(mariadb_berlin: Server) -> None:
    def earliest(reading: str) -> datetime:
        expression = EARLIEST_MOMENT.format(reading=f"TIMESTAMP'{reading}'")
        [(epoch,)] = mariadb_berlin.execute(f"SELECT {expression}")
        return datetime.fromtimestamp(float(epoch), UTC)

    assert earliest("2026-10-25 02:30:00") == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert earliest("2026-10-25 01:59:59") == datetime(2026, 10, 24, 23, 59, 59, tzinfo=UTC)
    assert earliest("2026-10-25 03:00:00") == datetime(2026, 10, 25, 2, 0, tzinfo=UTC)
    assert earliest("2026-06-01 12:00:00") == datetime(2026, 6, 1, 10, 0, tzinfo=UTC)


def test_rows_from_the_future_stay_for_later_and_are_mentioned(shop: Server, opened: Opened) -> None:
    last = add(shop)
    shop.execute("INSERT INTO orders (updated_at) VALUES (now() + INTERVAL 1 YEAR)")
    source = opened(shop)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert ceiling.position == last
    assert "future" in ceiling.warnings[0]


def test_where_nothing_is_new_nobody_is_waited_for(shop: Server, opened: Opened) -> None:
    last = add(shop)
    source = opened(shop)
    with writer(shop) as late:
        run(late, "INSERT INTO orders VALUES ()")
        for_ever = replace(PATIENT, max_wait=timedelta(hours=1))
        ceiling = source.freeze(source.table("orders"), HYBRID, for_ever, after=last)
        assert (ceiling.position, ceiling.held_back_by) == (last, None)
        by_id = source.freeze(source.table("orders"), BY_ID, for_ever, after=Position.of(last.values[1]))
        assert by_id.position == Position.of(last.values[1])


@pytest.mark.parametrize(
    ("column", "age", "ripe"),
    [
        ("date", "0 DAY", False),
        ("date", "1 DAY", True),
        ("datetime", "-9 MINUTE", False),
        ("datetime", "2 SECOND", True),
        ("timestamp(3)", "-9 MINUTE", False),
        ("timestamp(3)", "2000 MICROSECOND", True),
    ],
)
def test_a_unit_of_time_that_has_not_passed_is_left_for_later(
    column: str,
    age: str,
    ripe: bool,  # noqa: FBT001
    mariadb_database: Server,
    opened: Opened,
) -> None:
    mariadb_database.execute(f"CREATE TABLE orders (id int PRIMARY KEY, at {column} NOT NULL)")
    mariadb_database.execute(
        "INSERT INTO orders VALUES (1, utc_timestamp(6) - INTERVAL 9 DAY), "
        f"(2, utc_timestamp(6) - INTERVAL {age})"
    )
    source = opened(mariadb_database)
    ceiling = source.freeze(source.table("orders"), Cursor("at", "id"), IMPATIENT)
    assert ceiling.position is not None
    assert ceiling.position.values[1] == (2 if ripe else 1)


def test_the_clock_alone_is_a_moment_below_every_open_transaction(shop: Server, opened: Opened) -> None:
    source = opened(shop)
    orders = source.table("orders")
    free = source.freeze(orders, Cursor(), IMPATIENT).position
    assert free is not None
    with writer(shop) as late:
        run(late, "INSERT INTO orders VALUES ()")
        [(before,)] = shop.execute("SELECT now(6)")
        held = source.freeze(orders, Cursor(), IMPATIENT)
        assert held.held_back_by
        assert held.position is not None
        assert held.position < Position.of(before.replace(tzinfo=UTC))


def test_a_server_whose_default_isolation_is_lower_is_watched_all_the_same(
    shop: Server, opened: Opened
) -> None:
    last = add(shop)
    shop.execute("SET GLOBAL tx_isolation = 'READ-COMMITTED'")
    try:
        source = opened(shop)
        ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    finally:
        shop.execute("SET GLOBAL tx_isolation = 'REPEATABLE-READ'")
    assert (ceiling.position, ceiling.warnings) == (last, ())


def test_closing_a_source_twice_is_harmless(shop: Server, opened: Opened) -> None:
    source = opened(shop)
    freeze(source)
    source.close()
    source.close()
    assert freeze(source) is None


def test_connections_the_server_has_closed_are_opened_again(shop: Server, opened: Opened) -> None:
    last = add(shop)
    source = opened(shop)
    assert freeze(source) == last
    for (session,) in shop.execute(
        "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()",
        [shop.database],
    ):
        shop.execute(f"KILL CONNECTION {session}")
    assert freeze(source) == last
