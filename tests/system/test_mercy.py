"""A source is spared what it is to be spared, by all tasks and tables of a run together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import Connection, Server
from tests.sources.readers.reading import wait_until
from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID
from tests.system.syncing import Notes
from tidegate.core.errors import ConfigError, Interrupted, SourceError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.sync.pipeline import Scope


@contextmanager
def counting_connections(server: Server) -> Iterator[list[int]]:
    """How many connections to the server are open at this end; the number is the largest seen.

    The server lists some for longer: it takes its time to notice that one was closed.
    """
    before = _connections(server)
    most = [0]
    over = threading.Event()

    def count() -> None:
        while not over.wait(0.003):
            most[0] = max(most[0], len(_connections(server) - before))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _connections(server: Server) -> set[str]:
    """Our own ends of the connections that are established."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there, established = f":{server.port:04X}", "01"
    return {ours for _, ours, theirs, state, *_ in sockets if theirs.endswith(there) and state == established}


@dataclass
class Staged(Notes):
    """Remembers which segments were staged, and when their tasks had written them."""

    folder: Path = Path()
    segments: list[tuple[float, int]] = field(default_factory=list)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        super().staged(stream, receipt)
        assert receipt.segment is not None
        self.segments.append(((self.folder / receipt.segment.key).stat().st_mtime, receipt.rows))

    def demand_pace(self, rows_per_second: float, at_once: int) -> None:
        """From the first segment on, when so many rows were under way if the machine stood still before."""
        (first, _), *later = sorted(self.segments)
        seconds = later[-1][0] - first
        assert sum(rows for _, rows in later) <= rows_per_second * seconds + at_once, seconds


def place_of(build: Build, route: str, rows: int, **pipeline: Any) -> Place:
    place = build(route)
    place.shop.create()
    place.shop.insert(rows)
    place.configure({"orders": HYBRID}, **pipeline)
    return place


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-duckdb"])
def test_no_more_connections_than_allowed_and_no_more_rows_a_second(route: str, build: Build) -> None:
    place = build(route)
    place.shop.create()
    place.shop.insert(900)
    place.shop.execute(f"CREATE TABLE returns {'LIKE' if place.shop.kind == 'mysql' else 'AS TABLE'} orders")
    if place.shop.kind == "mysql":
        place.shop.execute("INSERT INTO returns SELECT * FROM orders")
    place.configure(
        {"orders": HYBRID, "returns": {**HYBRID, "keys": ["id"]}},
        processing={"strategy": "parallel", "batch_size": 50, "parallelism": 2},
        mercy={"max_connections": 10, "max_rows_per_second": 300},
    )
    place.notes = staged = Staged(folder=place.folder / "staging")
    assert place.shop.server is not None
    with counting_connections(place.shop.server) as most:
        result = place.sync(scope=Scope.EXTRACT)
    assert result.exit_code == 0, [str(table.error) for table in result.tables.values()]
    assert sum(table.rows_extracted for table in result.tables.values()) == 1800
    assert 2 <= most[0] <= 10
    staged.demand_pace(300, at_once=4 * 50)


def test_a_run_fits_into_the_connections_it_has(build: Build) -> None:
    place = place_of(
        build,
        "postgres-duckdb",
        300,
        processing={"strategy": "parallel", "batch_size": 50, "parallelism": 8},
        mercy={"max_connections": 4},
    )
    assert place.shop.server is not None
    with counting_connections(place.shop.server) as most:
        place.synced()
    assert 2 <= most[0] <= 4
    place.agree()
    place.configure({"orders": HYBRID}, mercy={"max_connections": 3})
    with pytest.raises(ConfigError, match=r"max_connections` is 3, and a run needs 4"):
        place.sync()


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-duckdb"])
def test_looking_how_the_source_is_takes_connections_too(route: str, build: Build) -> None:
    """The server itself refuses this user a connection more than the pipeline may have."""
    mercy = {"max_connections": 5, "max_running": 1000}
    options = {"processing": {"batch_size": 20, "parallelism": 8}, "mercy": mercy, "retries": {"max": 0}}
    place = place_of(build, route, 400)
    server = place.shop.server
    assert server is not None
    with _limited(server, 5) as few:
        place.sources = {"shop": few.config}
        place.configure({"orders": HYBRID}, **options)
        place.synced()
        place.agree()
    place.configure({"orders": HYBRID}, mercy={**mercy, "max_connections": 4})
    with pytest.raises(ConfigError, match=r"a run needs 5: .* and one to look how the source is"):
        place.sync()


@contextmanager
def _limited(server: Server, connections: int) -> Iterator[Server]:
    """A user who can have so many connections, may read everything, and see who else is at work."""
    name, password = f"few_{server.database[-8:]}", "x1y2z3"
    if server.kind == "mysql":
        limit = f"WITH MAX_USER_CONNECTIONS {connections}"
        server.execute(f"CREATE USER {name} IDENTIFIED BY '{password}' {limit}")
        server.execute(f"GRANT SELECT, PROCESS ON *.* TO {name}")
    else:
        server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' CONNECTION LIMIT {connections}")
        server.execute(f"GRANT pg_read_all_stats, pg_read_all_data TO {name}")
    try:
        yield server.logged_in_as(name, password)
    finally:
        server.execute(f"DROP {'USER' if server.kind == 'mysql' else 'ROLE'} {name}")


def test_a_run_does_not_begin_in_a_blackout(build: Build) -> None:
    place = place_of(build, "sqlite-duckdb", 10, mercy={"blackout": "00:00-24:00"})
    with pytest.raises(Interrupted, match=r"left alone until .* UTC .*stopped before it began") as stopped:
        place.sync()
    assert stopped.value.exit_code == 1
    assert "--load-only" in str(stopped.value)
    place.sync(scope=Scope.LOAD)


def test_a_run_stops_between_two_chunks_when_a_blackout_begins(build: Build) -> None:
    place = place_of(build, "sqlite-duckdb", 3000)
    began = datetime.now(UTC)
    soon = began + timedelta(seconds=5)
    place.configure(
        {"orders": HYBRID},
        processing={"batch_size": 10, "parallelism": 1},
        mercy={
            "blackout": [f"{soon:%H:%M:%S}-{soon + timedelta(hours=1):%H:%M:%S}"],
            "max_rows_per_second": 50,
        },
    )
    looks = count()
    place.clock = lambda: datetime.now(UTC) if next(looks) else began  # before the blackout in any case
    [table] = place.sync().tables.values()
    assert isinstance(table.error, Interrupted)
    assert "the source is to be left alone until" in str(table.error)
    assert table.rows_extracted < 3000
    assert table.rows_extracted % 10 == 0, "a chunk that was begun is ended"
    place.configure({"orders": HYBRID})
    place.synced()
    place.agree()


def test_a_busy_source_is_waited_for_and_it_is_said(build: Build) -> None:
    mercy = {"max_running": 1, "max_pause": "1s"}
    place = place_of(build, "postgres-duckdb", 100, mercy=mercy, processing={"batch_size": 100})
    server = place.shop.server
    assert server is not None
    with closing(server.connect(autocommit=True)) as connection:
        sleeping = threading.Thread(target=_sleep, args=[connection])
        sleeping.start()
        try:
            _until_it_sleeps(server)
            place.synced()
        finally:
            server.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(300)'"
            )
            sleeping.join()
    assert any("paused" in text and "are running, more than 1" in text for text in place.notes.texts)


def _until_it_sleeps(server: Server) -> None:
    sql = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(300)' AND state = 'active'"
    wait_until(lambda: bool(server.execute(sql)))


def _sleep(connection: Connection) -> None:
    with suppress(psycopg.errors.QueryCanceled):
        connection.cursor().execute("SELECT pg_sleep(300)")


def test_a_pipeline_goes_before_its_source_key_by_key(build: Build) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    place.sources = {"shop": {**place.shop.config, "mercy": {"max_query": "10ms", "max_running": 500}}}
    place.shop.insert(10)
    place.shop.execute(
        "ALTER TABLE orders RENAME TO kept; CREATE VIEW orders AS SELECT kept.* FROM kept, pg_sleep(0.05)"
    )
    table = {**HYBRID, "keys": ["id"]}
    place.configure({"orders": table}, retries={"max": 0})
    [failed] = place.sync().tables.values()
    assert isinstance(failed.error, SourceError)
    assert "mercy.max_query" in str(failed.error)
    place.configure({"orders": table}, mercy={"max_query": "1m"})
    place.synced()
    place.agree()
