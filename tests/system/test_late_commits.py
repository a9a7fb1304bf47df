"""A transaction that commits late is never lost, and nothing is doubled.

Each writer opens a transaction, writes at a moment of its own choosing and commits later, while syncs run.
"""

from __future__ import annotations

import math
import random
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from tests.servers import Server, wait_until_replayed
from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID, ID_ONLY, TIMESTAMP_ONLY, in_s3

STRATEGIES = {"timestamp_only": TIMESTAMP_ONLY, "hybrid": HYBRID, "id_only": ID_ONLY}
NOW = {"mysql": "NOW(6)", "postgresql": "now() AT TIME ZONE 'UTC'"}
CEILING = {"max_wait": 1, "lag": 0.2}


class Writers:
    """Four clients with transactions of several lengths; some are idle before they write, some roll back."""

    def __init__(
        self, place: Place, seconds: float, *, updating: bool = False, longest: float = math.inf
    ) -> None:
        self._place = place
        self._updating = updating
        self._longest = longest
        """A transaction that a busy machine has made last longer than so many seconds is not committed."""
        self._end = time.monotonic() + seconds
        self.threads = [threading.Thread(target=self._write, args=(seed,)) for seed in range(4)]

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join()

    @property
    def busy(self) -> bool:
        return time.monotonic() < self._end

    def _write(self, seed: int) -> None:
        dice = random.Random(seed)
        now = NOW[self._place.shop.kind]
        with closing(self._place.shop.connect()) as connection:
            while self.busy:
                cursor, began = connection.cursor(), time.monotonic()
                cursor.execute("SELECT 1")  # the transaction begins here, and PostgreSQL's now() with it
                time.sleep(dice.choice([0, 0, 0.3, 1.5]))
                for _ in range(dice.randint(1, 3)):
                    if self._updating and dice.random() < 0.6:
                        # Rows of its own: two writers must not wait for each other's locks for ever.
                        cursor.execute(
                            f"UPDATE orders SET amount = amount + 1, updated_at = {now} "
                            f"WHERE id = {4 * dice.randint(0, 9) + seed + 1}"
                        )
                    else:
                        cursor.execute(
                            f"INSERT INTO orders (customer, amount, updated_at) VALUES ('late', 1, {now})"
                        )
                time.sleep(dice.choice([0, 0.1, 0.8, 2.0]))
                too_long = time.monotonic() - began > self._longest
                (connection.rollback if too_long or dice.random() < 0.15 else connection.commit)()


@pytest.fixture(params=["files", "s3"])
def sections(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where staging and state are kept."""
    return in_s3(request.getfixturevalue("fresh_bucket")) if request.param == "s3" else {}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_rows_of_transactions_that_commit_late_arrive_once(
    build: Build, source: str, strategy: dict[str, str], sections: dict[str, Any]
) -> None:
    place = build(f"{source}-duckdb")
    place.sections |= sections
    place.shop.create()
    place.configure({"orders": {**strategy, "write_mode": "append"}}, ceiling=CEILING)

    with Writers(place, seconds=8) as writers:
        while writers.busy:
            place.synced()
    time.sleep(1.5)
    place.synced()

    place.agree()


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_updates_that_commit_late_arrive_in_their_last_version(
    build: Build, source: str, sections: dict[str, Any]
) -> None:
    place = build(f"{source}-postgres")
    place.sections |= sections
    place.shop.create()
    now, forty = NOW[place.shop.kind], place.shop.numbers(40)
    place.shop.execute(
        f"INSERT INTO orders (customer, amount, updated_at) SELECT 'old', 0, {now} FROM {forty}"
    )
    place.configure({"orders": HYBRID}, ceiling=CEILING)

    with Writers(place, seconds=8, updating=True) as writers:
        while writers.busy:
            place.synced()
    time.sleep(1.5)
    place.synced()

    place.agree()


def test_rows_arrive_once_when_the_server_runs_east_of_utc(build: Build) -> None:
    place = build("mariadb_east-duckdb")
    place.shop.create()
    # Zoneless columns hold the server's local time here.
    place.configure(
        {"orders": {**HYBRID, "write_mode": "append", "cursor_timezone": "Asia/Tokyo"}}, ceiling=CEILING
    )

    with Writers(place, seconds=6) as writers:
        while writers.busy:
            place.synced()
    time.sleep(1.5)
    place.synced()

    place.agree()


def test_a_standby_with_its_primary_named_loses_nothing(
    build: Build, postgres_database: Server, postgres_standby: Server
) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    primary = place.shop.config
    standby = postgres_standby.using(postgres_database.database)
    wait_until_replayed(postgres_database, standby)
    place.sources = {"shop": standby.config, "primary": primary}
    place.configure({"orders": {**HYBRID, "write_mode": "append"}}, ceiling={**CEILING, "primary": "primary"})

    with Writers(place, seconds=6) as writers:
        while writers.busy:
            place.synced()
    time.sleep(1.5)
    place.synced()

    place.agree()


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_user_who_may_not_see_other_transactions_is_told_so_and_loses_nothing(
    build: Build, source: str
) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    server = place.shop.server
    assert server is not None
    _create_reader(server)
    place.sources = {"shop": server.logged_in_as("reader", "reader").config}
    # Lag and look-back of five seconds, so that the test need not take minutes. Both together are promised.
    place.configure({"orders": {**HYBRID, "write_mode": "append"}}, ceiling={**CEILING, "fallback_lag": 5})

    with Writers(place, seconds=6, longest=8) as writers:
        while writers.busy:
            place.synced()
    time.sleep(6)
    place.synced()

    place.agree()
    assert any("GRANT" in note.upper() for note in place.notes.texts)


def _create_reader(server: Server) -> None:
    if server.kind == "mysql":
        server.execute("CREATE OR REPLACE USER reader IDENTIFIED BY 'reader'")
        server.execute(f"GRANT SELECT ON `{server.database}`.* TO reader")
        return
    server.execute(
        "DO $$ BEGIN CREATE ROLE reader LOGIN PASSWORD 'reader'; EXCEPTION WHEN duplicate_object THEN END $$"
    )
    server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
