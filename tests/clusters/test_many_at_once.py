"""Many processes at once, each the real command: nothing is lost, nothing is doubled, nobody is disturbed.

Their sessions are on one Spark Connect server, so that a process starts in a second; the last part is about
processes that have a Spark of their own.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers import S3Server, Server
from tests.spark_servers import SparkServer
from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID
from tests.system.test_resume import SLOWLY
from tidegate.config.project import Project
from tidegate.core.leases import Lease
from tidegate.core.watermark import StreamId
from tidegate.state.opening import open_store

ORDERS = StreamId("shop", "orders")
APPEND = {**HYBRID, "write_mode": "append"}
"""Appended tables show every row that comes twice."""
LEASE_SECONDS = 3


def _tidegate(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli", "sync", "--project", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and all that was said."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out + err


@contextmanager
def _all_ended(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    """Whatever happens, none of them outlives the test."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


@pytest.fixture
def spark_kind() -> str:
    """Where syncs of this process run; the processes that are tested have a Spark elsewhere."""
    return "local"


@pytest.fixture
def place(build: Build, spark_connect: SparkServer) -> Place:
    """A shop in MariaDB whose real `tidegate sync` processes run their tasks on one server."""
    made = build("mariadb-postgres")
    made.sections = {"spark": spark_connect.spark}
    made.shop.create()
    made.shop.insert(200)
    return made


@pytest.fixture
def brief_leases(place: Place) -> None:
    """Leases that end soon. Not among rivals: on a busy machine one of them could miss its renewal."""
    state = {"type": "local", "path": "./state", "lease_seconds": LEASE_SECONDS}
    place.sections["state"] = {"default": state}


@contextmanager
def _open_transaction(place: Place) -> Iterator[None]:
    """While it lasts, whoever holds the lease waits for it, before anything is read."""
    with closing(place.shop.connect()) as connection:
        connection.cursor().execute(
            "INSERT INTO orders (customer, amount, updated_at) VALUES ('late', 1, NOW(6))"
        )
        yield
        connection.commit()


def _lease(place: Place) -> Lease | None:
    with closing(place.parts().store) as store:
        return store.read(ORDERS).lease


# --- Eight pipelines -----------------------------------------------------------


def test_eight_processes_with_eight_pipelines_over_each_store_do_not_disturb_each_other(
    place: Place, postgres_database: Server, fresh_bucket: S3Server
) -> None:
    stores = {
        "local": {"type": "local", "path": "./state"},
        "sql": {"type": "sql", "url": postgres_database.url},
        "s3": {"type": "s3", **fresh_bucket.config},
    }
    place.sections["state"] = stores
    place.configure()
    names = {store: [f"{store}_{number}" for number in range(8)] for store in stores}
    for store, pipelines in names.items():
        for name in pipelines:
            _write_pipeline(place, name, {"orders": {**APPEND, "target_name": name}}, state=store)

    processes = [
        _tidegate(place.folder, *(word for store in stores for word in ("-p", names[store][number])))
        for number in range(8)
    ]
    with _all_ended(processes):
        ends = [_ended(process) for process in processes]

    assert [code for code, _ in ends] == [0] * 8, ends
    source = place.shop.rows()
    for store, pipelines in names.items():
        assert all(place.warehouse.rows(name) == source for name in pipelines)
        pipeline = Project.load(place.folder).pipeline(pipelines[0])
        with closing(open_store(pipeline.state)) as opened:
            listing = opened.streams()
        assert listing.damaged == ()
        assert {stored.stream.pipeline for stored in listing.streams} == set(pipelines)
        assert all(stored.lease is None for stored in listing.streams), store


def _write_pipeline(place: Place, name: str, tables: dict[str, Any], **options: Any) -> None:
    described = {"name": name, "source": "shop", "target": "warehouse", "staging": "files", **options}
    path = place.folder / "config" / "pipelines" / f"{name}.yml"
    path.write_text(yaml.safe_dump({"pipeline": described, "tables": tables}))


# --- The same streams ----------------------------------------------------------


def test_of_four_processes_one_works_and_the_others_name_it_and_exit_3(place: Place) -> None:
    place.configure({"orders": APPEND}, ceiling={"max_wait": "200s", "lag": 0})

    processes = [_tidegate(place.folder, "-q") for _ in range(4)]
    with _all_ended(processes):
        with _open_transaction(place):
            _until(lambda: sum(process.poll() is not None for process in processes) == 3, "three to give up")
        ends = {process.pid: _ended(process) for process in processes}

    assert Counter(code for code, _ in ends.values()) == {0: 1, 3: 3}, ends
    [winner] = [pid for pid, (code, _) in ends.items() if code == 0]
    assert all(f"(process {winner} on " in said for code, said in ends.values() if code == 3), ends
    place.synced()
    place.agree()


def test_four_processes_that_fight_for_six_tables_bring_every_row_once(place: Place) -> None:
    tables = [f"orders_{letter}" for letter in "abcdef"]
    for table in tables:
        place.shop.execute(f"CREATE TABLE {table} LIKE orders; INSERT INTO {table} SELECT * FROM orders")
    place.configure(dict.fromkeys(tables, APPEND), processing={"batch_size": 50})

    processes = [_tidegate(place.folder, "-q") for _ in range(4)]
    with _all_ended(processes):
        ends = [_ended(process) for process in processes]

    assert {code for code, _ in ends} <= {0, 3}, ends
    source = place.shop.rows()
    assert all(place.warehouse.rows(table) == source for table in tables)


# --- A holder that stood still -------------------------------------------------


def _stand_still(place: Place, process: subprocess.Popen[str]) -> None:
    """Stop a process until its lease has run out, but not amid a write, whose lock it would keep."""
    os.kill(process.pid, signal.SIGSTOP)
    _until(lambda: _stopped(process), "the process to stand still")
    while _writing(place):
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        _until(lambda: _stopped(process), "the process to stand still")
    _until(lambda: (lease := _lease(place)) is not None and lease.expired(datetime.now(UTC)), "its lease")


def _writing(place: Place) -> bool:
    """Whether somebody has locked a record of the local store."""
    for lock in (place.folder / "state" / "locks").iterdir():
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _stopped(process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _woken(process: subprocess.Popen[str]) -> tuple[int, str]:
    os.kill(process.pid, signal.SIGCONT)
    return _ended(process)


@pytest.mark.usefixtures("brief_leases")
def test_a_holder_that_stood_still_while_it_read_is_succeeded_and_then_fenced_off(place: Place) -> None:
    place.shop.insert(2_000, first=1_000)
    options = {"processing": {"batch_size": 10, "parallelism": 2}}
    place.configure({"orders": APPEND}, **options, **SLOWLY)
    holder = _tidegate(place.folder, "-q")
    with _all_ended([holder]):
        _until(lambda: _chunks_done(place) > 10, "some chunks")
        _stand_still(place, holder)

        place.configure({"orders": APPEND}, **options)
        place.synced()

        place.agree()
        code, said = _woken(holder)
    assert code == 1
    assert "the lease of tidegate sync" in said
    place.agree()
    assert place.synced().rows_extracted == 0


def _chunks_done(place: Place) -> int:
    with closing(place.parts().store) as store:
        mark = store.read(ORDERS).watermark
    run = mark.open_run if mark else None
    return run.chunks_done + run.round.done if run is not None and run.round is not None else 0


@pytest.mark.usefixtures("brief_leases")
def test_a_holder_that_stood_still_before_its_load_loads_nothing_twice(place: Place) -> None:
    place.configure({"orders": APPEND})
    fault = {"part": "target", "method": "load", "signal": signal.SIGSTOP}
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.victim", str(place.folder), json.dumps(fault)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with _all_ended([holder]):
        _until(lambda: _stopped(holder), "the holder to come to its load")
        _stand_still(place, holder)

        place.synced()

        place.agree()
        code, said = _woken(holder)
    assert code == 1
    assert "nothing was written" in said
    place.agree()


@pytest.mark.usefixtures("brief_leases")
def test_a_holder_that_stood_still_in_its_load_lets_the_next_one_wait_and_not_load_twice(
    place: Place,
) -> None:
    place.configure({"orders": APPEND})
    place.synced()
    place.shop.insert(50, first=1_000, at=datetime(2025, 2, 1))  # noqa: DTZ001 - the column is zoneless
    server = place.warehouse.server
    assert server is not None
    with closing(server.connect()) as blocking:
        blocking.cursor().execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        holder = _tidegate(place.folder, "-q")
        with _all_ended([holder]):
            _until(lambda: _waiting(server) == 1, "the holder to be amid its load")
            _stand_still(place, holder)
            blocking.rollback()
            with ThreadPoolExecutor(1) as pool:
                next_one = pool.submit(place.synced)
                _until(lambda: _waiting(server) == 1, "the next one to wait for the holder's transaction")

                code, said = _woken(holder)

            assert next_one.result().error is None
    assert code == 1
    assert "nothing was written" in said
    place.agree()


def _waiting(server: Server) -> int:
    """How many sessions wait for a lock."""
    [(count,)] = server.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(count)


# --- Fifty tables --------------------------------------------------------------


def test_of_fifty_tables_at_once_one_fails_by_name_and_the_others_finish(
    build: Build, spark_connect: SparkServer
) -> None:
    place = build("sqlite-duckdb")
    place.sections = {"spark": spark_connect.spark}
    place.shop.create()
    place.shop.insert(40)
    tables = [f"t{number:02d}" for number in range(50)]
    columns = "id INTEGER PRIMARY KEY, customer TEXT, amount DECIMAL(12,2), note TEXT, updated_at DATETIME"
    for table in tables:
        place.shop.execute(f"CREATE TABLE {table} ({columns}); INSERT INTO {table} SELECT * FROM orders")
    place.shop.execute("UPDATE t13 SET updated_at = NULL WHERE id = 7")
    place.configure(
        dict.fromkeys(tables, APPEND), processing={"strategy": "parallel", "max_parallel_tables": 8}
    )

    process = _tidegate(place.folder, "--json-output")
    with _all_ended([process]):
        out, err = process.communicate(timeout=240)

    assert process.returncode == 1, err
    assert "shop/t13" in err
    results = json.loads(out)["table_results"]
    assert {table for table, result in results.items() if result["status"] != "success"} == {"t13"}
    assert "no value in updated_at" in results["t13"]["error"]
    source = place.shop.rows()
    assert all(place.warehouse.rows(table) == source for table in tables if table != "t13")


# --- With a Spark of one's own ---------------------------------------------------


def test_of_two_processes_with_their_own_spark_one_works_and_the_other_names_it_and_exits_3(
    build: Build,
) -> None:
    place = build("mariadb-duckdb")
    place.shop.create()
    place.shop.insert(30)
    place.configure({"orders": APPEND}, ceiling={"max_wait": "200s", "lag": 0})
    first = _tidegate(place.folder, "-q")
    with _all_ended([first]):
        with _open_transaction(place):
            _until(lambda: _lease(place) is not None, "the first to hold the table")
            code, said = _ended(_tidegate(place.folder, "-q"))
            assert (code, f"(process {first.pid} on " in said) == (3, True), said
        assert _ended(first) == (0, "")
    place.synced()
    place.agree()
