"""The commit-safe ceiling on a replica of MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.servers import Server, fresh_database
from tests.sources.conftest import Opened
from tests.sources.readers.reading import wait_until
from tests.sources.replicated import mariadb_pair, wait_until_applied
from tests.sources.test_mysql_ceiling import HYBRID, add, with_orders
from tests.sources.writing import IMPATIENT, PATIENT, run, soon, writer
from tidegate.reach.login import login_of
from tidegate.sources.strain import MySQLPulse


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    with mariadb_pair() as servers:
        yield servers


@pytest.fixture
def shop(pair: tuple[Server, Server]) -> Iterator[Server]:
    with fresh_database(pair[0]) as database:
        yield with_orders(database)


@pytest.fixture
def replica(pair: tuple[Server, Server], shop: Server) -> Server:
    wait_until_applied(shop, pair[1])
    return pair[1].using(shop.database)


def test_a_replica_without_its_primary_says_what_is_missing(
    shop: Server, replica: Server, opened: Opened
) -> None:
    old = add(shop, seconds_ago=61)
    add(shop)
    wait_until_applied(shop, replica)
    source = opened(replica)
    ceiling = source.freeze(source.table("orders"), HYBRID, IMPATIENT)
    assert (ceiling.position, ceiling.lookback) == (old, timedelta(seconds=60))
    assert "ceiling.primary" in ceiling.warnings[0]


def test_a_replica_with_its_primary_holds_back_what_is_open_on_the_primary(
    shop: Server, replica: Server, opened: Opened
) -> None:
    before = add(shop, seconds_ago=5)
    source = opened(replica, shop)
    orders = source.table("orders")
    with writer(shop) as late:
        run(late, "INSERT INTO orders VALUES ()")
        last = add(shop)
        wait_until_applied(shop, replica)
        held = source.freeze(orders, HYBRID, IMPATIENT)
        assert (held.position, held.lookback) == (before, timedelta(0))
        assert "idle in transaction" in (held.held_back_by or "")
        late.rollback()
    assert source.freeze(orders, HYBRID, IMPATIENT).position == last


def test_a_replica_with_its_primary_has_applied_what_ended_while_it_was_waited_for(
    shop: Server, replica: Server, opened: Opened
) -> None:
    source = opened(replica, shop)
    orders = source.table("orders")
    with writer(shop) as late:
        run(late, "INSERT INTO orders (note) VALUES ('slow')")
        last = add(shop)
        wait_until_applied(shop, replica)
        with soon(late.commit):
            assert source.freeze(orders, HYBRID, PATIENT).position == last
        assert replica.execute("SELECT count(*) FROM orders WHERE note = 'slow'") == [(1,)]


def test_a_replica_that_cannot_keep_up_is_not_trusted(shop: Server, replica: Server, opened: Opened) -> None:
    add(shop)
    wait_until_applied(shop, replica)
    source = opened(replica, shop)
    orders = source.table("orders")
    replica.execute("STOP SLAVE SQL_THREAD")
    try:
        add(shop)
        ceiling = source.freeze(orders, HYBRID, IMPATIENT)
    finally:
        replica.execute("START SLAVE SQL_THREAD")
    assert ceiling.lookback == timedelta(seconds=60)
    assert "not up to date" in ceiling.warnings[0]


def test_a_replica_says_how_far_it_is_behind(shop: Server, replica: Server) -> None:
    pulse = MySQLPulse(login_of(replica.config))
    wait_until(lambda: pulse.strain().lag == 0)
    delayed(replica, seconds=30)
    try:
        add(shop)
        wait_until(lambda: (pulse.strain().lag or 0) >= 1)
    finally:
        delayed(replica, seconds=0)
    wait_until(lambda: pulse.strain().lag == 0)


def delayed(replica: Server, *, seconds: int) -> None:
    """Let a replica follow its primary at a distance."""
    replica.execute("STOP SLAVE")
    replica.execute(f"CHANGE MASTER TO MASTER_DELAY = {seconds}")
    replica.execute("START SLAVE")
