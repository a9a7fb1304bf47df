"""What the system tests prove in one process holds on a standalone cluster and on a Spark Connect server.

A choice of them; `pytest tests/system tests/crash --spark standalone` (or `connect`) runs them all there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import spark_servers
from tests.crash.test_crash_matrix import WORKER
from tests.crash.victim import strike
from tests.spark_servers import SparkServer
from tests.system import test_hostile, test_late_commits, test_resume, test_routes, test_waiting
from tests.system.conftest import Build, DistantPlace, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY
from tidegate.core.watermark import Run
from tidegate.staging.layout import run_of
from tidegate.sync.pipeline import Request

APPEND = {**HYBRID, "write_mode": "append"}
"""Appended tables show every row that comes twice."""


def _place(build: Build, route: str) -> DistantPlace:
    place = build(route)
    assert isinstance(place, DistantPlace)
    place.shop.create()
    place.configure()
    return place


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb"])
def test_first_every_row_travels_and_then_only_what_changed(build: Build, route: str) -> None:
    test_routes.test_a_second_sync_brings_only_what_changed(_place(build, route))


@pytest.mark.parametrize(
    ("route", "strategy"),
    [("postgres-duckdb", FULL_SYNC), ("mariadb-postgres", ID_ONLY)],
    ids=["one snapshot of PostgreSQL", "ids of MariaDB"],
)
def test_other_strategies_bring_every_row_too(build: Build, route: str, strategy: dict[str, str]) -> None:
    test_routes.test_other_strategies_bring_every_row_too(_place(build, route), strategy)


def test_rows_of_transactions_that_commit_late_arrive_once(build: Build) -> None:
    test_late_commits.test_rows_of_transactions_that_commit_late_arrive_once(build, "postgres", HYBRID, {})


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_every_value_arrives_as_it_is(build: Build, source: str) -> None:
    test_hostile.test_every_value_arrives_as_it_is(build, source, "duckdb", test_hostile.VALUES[source])


def test_a_hot_second_with_gaps_of_billions_is_cut_by_rows_in_few_queries(build: Build) -> None:
    test_hostile.test_a_hot_second_with_gaps_of_billions_is_cut_by_rows_in_few_queries(build, "mariadb")


def test_names_are_names(build: Build) -> None:
    route = "postgres-duckdb"
    test_hostile.test_names_with_quotes_spaces_reserved_words_and_unicode_are_names(
        build, route, test_hostile.NAMES[route]
    )


def test_a_killed_sync_redoes_only_the_chunks_in_flight_and_opens_a_fresh_window(build: Build) -> None:
    test_resume.test_a_killed_sync_redoes_only_the_chunks_in_flight_and_opens_a_fresh_window(build)


@pytest.mark.parametrize("moment", ["between a segment and its receipt"])
def test_a_sync_whose_python_workers_are_killed_is_made_whole_by_the_next(build: Build, moment: str) -> None:
    place = _place(build, "mariadb-duckdb")
    place.shop.insert(300)
    place.configure({"orders": APPEND}, processing={"batch_size": 100})

    result, _ = place.driver.sync(place.folder, Request(), partial(strike, plan=WORKER[moment]))

    assert result.exit_code == 1
    assert "a Spark task failed" in str(result.tables["orders"].error)
    assert place.mark().pending == ()
    place.synced()
    place.agree()


@pytest.mark.parametrize("spark_kind", ["standalone"], indirect=True)
def test_a_sync_survives_its_executors_and_tasks_that_ran_twice_count_once(
    build: Build, server: SparkServer
) -> None:
    place = _place(build, "mariadb-duckdb")
    place.shop.insert(3_000)
    place.configure({"orders": APPEND}, processing={"batch_size": 10, "parallelism": 2})
    place.driver.ask(_warm_up, place.folder)

    answer = place.driver.begin(place.folder, Request())
    while _chunks_done(place) < 10:
        assert not answer.done(), answer.result()
        time.sleep(0.01)
    for pid in _executors(server):
        os.kill(pid, signal.SIGKILL)
    result, _ = answer.result()

    [table] = result.tables.values()
    assert table.error is None, str(table.error)
    place.agree()
    assert len(_staged(place)) > table.files_created == 300, "no chunk was ever done twice"


@pytest.mark.parametrize("spark_kind", ["connect"], indirect=True)
def test_a_server_that_vanishes_amid_a_run_is_named_and_the_next_run_goes_on(build: Build) -> None:
    place = _place(build, "mariadb-duckdb")
    place.shop.insert(3_000)
    usual = place.sections["spark"]
    options = {"processing": {"batch_size": 10, "parallelism": 2}, "retries": {"max": 0}}
    with spark_servers.connect() as another:
        place.sections["spark"] = another.spark
        place.configure({"orders": APPEND}, **options, **test_resume.SLOWLY)
        running = subprocess.Popen(
            [sys.executable, "-m", "tidegate.cli", "sync", "--project", str(place.folder), "-q"],
            stderr=subprocess.PIPE,
            text=True,
        )
        while _chunks_done(place) < 10:
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        os.kill(another.pids[0], signal.SIGKILL)
        _, said = running.communicate(timeout=300)
    assert running.returncode == 5
    assert "the Spark Connect server went away" in said
    assert _chunks_done(place) >= 10
    place.sections["spark"] = usual
    place.configure({"orders": APPEND}, **options)

    place.synced()

    place.agree()


def _warm_up(session: Any) -> int:
    """So that all executors are there when the sync begins."""
    return len(session.get().range(0, 8, 1, 8).mapInArrow(lambda rows: rows, "id long").collect())


def _chunks_done(place: Place) -> int:
    stored = place.parts().store.streams().streams
    runs: Iterator[Run | None] = (s.watermark.open_run for s in stored if s.watermark is not None)
    return sum(run.chunks_done + run.round.done for run in runs if run is not None and run.round is not None)


def _executors(server: SparkServer) -> list[int]:
    """The executors of all applications: JVMs that the workers have started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "status").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        parent = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
        if parent and int(parent[1]) in server.pids and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    return found


def _staged(place: Place) -> list[str]:
    return [item.key for item in place.parts().staging.list() if run_of(item.key) is not None]


@pytest.mark.parametrize("spark_kind", ["connect"], indirect=True)
def test_a_sync_that_waits_for_an_executor_ends_by_its_timeout(build: Build) -> None:
    place = build("sqlite-duckdb")
    assert isinstance(place, DistantPlace)
    busy = partial(test_waiting.occupy, folder=place.folder / "busy")
    test_waiting.ended_by_its_timeout(place, lambda: place.driver.ask(busy, place.folder))
