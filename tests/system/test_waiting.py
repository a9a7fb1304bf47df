"""Spark keeps a job waiting until an executor is free: that is said, it ends in time, and nothing is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID
from tests.system.syncing import Notes
from tidegate.core.errors import Interrupted, TidegateError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.spark.session import LazySession

TASKS = 2
"""As many as the Spark of the tests runs at once."""


def occupy(session: LazySession, folder: Path) -> None:
    """Have Spark busy with tasks of somebody else, until there is a file called `over`."""

    def rest(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        for batch in rows:
            Path(folder, f"task-{batch.column(0)[0]}").touch()
            while not Path(folder, "over").exists():
                time.sleep(0.05)
            yield batch

    spark = session.get()
    busy = spark.range(0, TASKS, 1, TASKS).mapInArrow(rest, "id long")
    threading.Thread(target=busy.collect, daemon=True).start()


@contextmanager
def occupied(folder: Path, begin: Callable[[], None]) -> Iterator[None]:
    folder.mkdir()
    begin()
    try:
        _until(lambda: len(list(folder.glob("task-*"))) == TASKS)
        yield
    finally:
        (folder / "over").touch()


def _until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def ended_by_its_timeout(place: Place, begin: Callable[[], None]) -> None:
    """A sync that finds Spark busy ends when its time is over; once Spark is free, the next goes on."""
    place.shop.create()
    place.shop.insert(300)
    place.configure({"orders": HYBRID}, processing={"batch_size": 100, "timeout_minutes": 0.1})

    with occupied(place.folder / "busy", begin):
        result = place.sync()

        [table] = result.tables.values()
        assert isinstance(table.error, Interrupted), str(table.error)
        assert "for a free executor of Spark" in str(table.error)
        assert result.exit_code == 1
        assert place.mark().open_run is not None

    place.configure({"orders": HYBRID}, processing={"batch_size": 100})
    place.synced()
    place.agree()


def test_a_sync_that_waits_for_an_executor_ends_by_its_timeout(build: Build) -> None:
    place = build("sqlite-duckdb")
    ended_by_its_timeout(place, lambda: occupy(place.session(), place.folder / "busy"))


@dataclass
class _Fails(Notes):
    """Something that goes wrong while tasks are at work."""

    said: str = ""

    def staged(self, stream: StreamId, receipt: Receipt) -> None:  # noqa: ARG002 - the contract's signature
        raise TidegateError(f"that is enough of {self.said}", where=str(stream))


def test_a_run_that_gives_up_leaves_no_task_at_work(build: Build) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    place.shop.insert(300)
    place.configure(
        {"orders": HYBRID},
        processing={"batch_size": 50, "parallelism": 1},
        mercy={"max_rows_per_second": 1},  # so its tasks would be there for minutes
    )
    assert place.shop.server is not None
    password = place.shop.server.password
    place.notes = _Fails(said=f"{password} and mysql://u:p4ss@host/db")

    [table] = place.sync().tables.values()

    assert "that is enough" in str(table.error)
    _until(lambda: _readers(place) == 0)
    kept = str(place.mark().last_error)
    assert "that is enough of ••• and mysql://u:•••@host/db" in kept
    place.notes = Notes()
    place.configure({"orders": HYBRID})
    place.synced()
    place.agree()


def _readers(place: Place) -> int:
    """Sessions with the source: a task keeps its own from its first chunk to its last."""
    server = place.shop.server
    assert server is not None
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    [[found]] = server.execute(asked, [server.database])
    return int(found)
