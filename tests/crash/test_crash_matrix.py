"""Killed at any step of the commit order, a plain re-run loses nothing and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark_servers import SparkServer
from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO, in_s3
from tidegate.core.watermark import StreamId
from tidegate.staging.layout import RECEIPTS, is_marker, run_of

# The order of writes in a first sync of three chunks: planned, round, then one or more advances as chunks
# finish, the load of what is pending, and the end of the window.
DRIVER: dict[str, dict[str, Any]] = {
    "after taking the lease": {"part": "store", "method": "acquire", "moment": "after"},
    "after freezing the ceiling": {"part": "source", "method": "freeze", "moment": "after"},
    "before the planned window is persisted": {"part": "store", "method": "write", "nth": 1},
    "after the planned window is persisted": {
        "part": "store",
        "method": "write",
        "nth": 1,
        "moment": "after",
    },
    "after the round is persisted": {"part": "store", "method": "write", "nth": 2, "moment": "after"},
    "before extraction progress is committed": {"part": "store", "method": "write", "nth": 3},
    "after extraction progress is committed": {
        "part": "store",
        "method": "write",
        "nth": 3,
        "moment": "after",
    },
    "before the target is prepared": {"part": "target", "method": "prepare"},
    "before the rows are loaded": {"part": "target", "method": "load"},
    "between the rows and the loaded mark": {"part": "target", "method": "load", "moment": "after"},
    "before the loaded mark is committed": {"part": "store", "method": "write", "event": "loaded"},
    "after the loaded mark is committed": {
        "part": "store",
        "method": "write",
        "event": "loaded",
        "moment": "after",
    },
    "before the window is finished": {"part": "store", "method": "write", "event": "extracted"},
    "after the window is finished": {
        "part": "store",
        "method": "write",
        "event": "extracted",
        "moment": "after",
    },
    "before the marker is written": {"part": "staging", "method": "stat"},
    "between the marker and the end of the receipts": {"part": "staging", "method": "delete"},
    "before the lease is given back": {"part": "store", "method": "release"},
}
WORKER: dict[str, dict[str, Any]] = {
    "before a segment is written": {"part": "staging", "method": "create", "worker": True},
    "between a segment and its receipt": {"part": "staging", "method": "put", "worker": True},
    "after a receipt": {"part": "staging", "method": "put", "moment": "after", "worker": True},
}


ALONE = (
    "after extraction progress is committed",
    "between the rows and the loaded mark",
    "between the marker and the end of the receipts",
)


@pytest.fixture
def alone(build: Build) -> Place:
    """A sync that is all of Spark: when it is killed, its tasks die with it."""
    return _filled(build("sqlite-duckdb"))


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, build: Build, spark_connect: SparkServer) -> Place:
    """A sync whose tasks run on a server, and go on when it is killed; all it keeps is in files or in S3."""
    kept = in_s3(request.getfixturevalue("fresh_bucket")) if request.param == "s3" else {}
    return _filled(build("sqlite-duckdb"), {"spark": spark_connect.spark, **kept})


NULLED: dict[str, Any] = {"columns": {"on_lossy": {"born": "null"}}}
"""What is no date becomes NULL and is counted."""
NO_DATES = 42


def _filled(place: Place, sections: dict[str, Any] | None = None) -> Place:
    place.shop.create()
    place.shop.insert(300)
    place.shop.run("ALTER TABLE orders ADD COLUMN born DATE")
    place.shop.run("UPDATE orders SET born = CASE id % 7 WHEN 0 THEN 'never' ELSE '2000-02-29' END")
    place.sections = sections or {}
    place.configure({"orders": {**HYBRID, **NULLED, "write_mode": "append"}}, processing={"batch_size": 100})
    return place


def victim(folder: Path, fault: dict[str, Any]) -> int:
    """The exit code of the sync; minus nine when it was killed."""
    command = [sys.executable, "-m", "tests.crash.victim", str(folder), json.dumps(fault)]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        command, cwd=root, env=environ, check=False, capture_output=True, text=True, timeout=600
    )
    print(done.stdout, done.stderr)  # shown where a test fails: it may have ended before its time
    return done.returncode


@pytest.mark.parametrize("fault", DRIVER.values(), ids=DRIVER.keys())
def test_a_sync_killed_in_the_driver_is_made_whole_by_the_next(place: Place, fault: dict[str, Any]) -> None:
    assert victim(place.folder, fault) == -signal.SIGKILL

    demand_no_dangling_segment(place)
    place.shop.insert(5, first=1_000, at=LONG_AGO.replace(month=2))
    place.synced()

    place.agree()
    _demand_counts(place)
    _demand_markers(place)


@pytest.mark.parametrize("fault", [DRIVER[name] for name in ALONE], ids=ALONE)
def test_a_sync_killed_with_all_of_its_spark_is_made_whole_by_the_next(
    alone: Place, fault: dict[str, Any]
) -> None:
    assert victim(alone.folder, fault) == -signal.SIGKILL

    demand_no_dangling_segment(alone)
    alone.synced()

    alone.agree()
    _demand_counts(alone)
    _demand_markers(alone)
    assert not list(alone.parts().staging.list(RECEIPTS))


@pytest.mark.parametrize("fault", WORKER.values(), ids=WORKER.keys())
def test_a_sync_whose_spark_worker_is_killed_is_made_whole_by_the_next(
    place: Place, fault: dict[str, Any]
) -> None:
    assert victim(place.folder, fault) == 1

    demand_no_dangling_segment(place)
    place.synced()

    place.agree()
    _demand_counts(place)


LOADING = ("before the rows are loaded", "between the rows and the loaded mark")


@pytest.mark.parametrize("fault", [DRIVER[name] for name in LOADING], ids=LOADING)
@pytest.mark.parametrize("table", [HYBRID, FULL_SYNC], ids=["merge", "replace"])
def test_a_sync_into_postgresql_killed_around_the_load_is_made_whole_by_the_next(
    build: Build, spark_connect: SparkServer, table: dict[str, str], fault: dict[str, Any]
) -> None:
    place = _filled(build("sqlite-postgres"), {"spark": spark_connect.spark})
    place.configure({"orders": {**table, **NULLED}}, processing={"batch_size": 100})
    assert victim(place.folder, fault) == -signal.SIGKILL

    demand_no_dangling_segment(place)
    place.synced()

    place.agree()


def demand_no_dangling_segment(place: Place) -> None:
    for stored in place.parts().store.streams().streams:
        for segment in stored.watermark.pending if stored.watermark else ():
            assert place.parts().staging.stat(segment.key) is not None


def _demand_counts(place: Place) -> None:
    """Every value that became NULL is counted once, whoever read it how often."""
    assert place.mark().extracted.lossy == (("born", NO_DATES),)
    assert place.warehouse.execute("SELECT count(born) FROM orders") == [(300 - NO_DATES,)]


def _demand_markers(place: Place) -> None:
    """Every finished run is marked."""
    events = place.parts().store.history(StreamId("shop", "orders"))
    runs = {event.run_id for event in events if event.kind == "extracted"}
    keys = [item.key for item in place.parts().staging.list()]
    assert {run_of(key) for key in keys if is_marker(key)} == runs
