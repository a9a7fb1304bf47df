"""A run that was killed goes on with the same window, and redoes only what no receipt proves."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO
from tidegate.config.project import Project
from tidegate.core.deadlines import NEVER
from tidegate.core.errors import StagingError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import Event, Run, StreamId
from tidegate.spark.extraction import stage
from tidegate.staging.layout import run_of
from tidegate.staging.local import LocalStaging
from tidegate.state.contract import Store
from tidegate.sync import cutting, table
from tidegate.sync.extracting import Extractor
from tidegate.sync.job import describe
from tidegate.sync.pipeline import Scope
from tidegate.sync.progress import Silence
from tidegate.sync.result import TableStatus
from tidegate.sync.staged import ObjectState, Selection, delete, list_staged

ORDERS = StreamId("shop", "orders")
APPEND = {**HYBRID, "write_mode": "append"}
NEXT_DAY = LONG_AGO + timedelta(days=1)


def _clock() -> datetime:
    return datetime.now(UTC)


def _history(place: Place, kind: str) -> list[Event]:
    return [event for event in place.parts().store.history(ORDERS) if event.kind == kind]


def _open_run(place: Place) -> Run:
    run = place.mark().open_run
    assert run is not None
    return run


def _staged(place: Place, run: str) -> Counter[int]:
    """How many segments of each chunk of a run lie in staging."""
    keys = [item.key for item in place.parts().staging.list() if run_of(item.key) == run]
    return Counter(int(found[1]) for key in keys if (found := re.search(r"_batch_(\d+)_", key)))


def _receipted(place: Place, run: str) -> set[int]:
    """The chunks of a run that have a receipt, by the names of their files."""
    found = (place.folder / "staging").glob(f"_receipts/*/*/{run}/*.json")
    return {int(path.name.split("-")[0]) for path in found}


# --- Killed from outside -----------------------------------------------------------

SLOWLY = {"mercy": {"max_rows_per_second": 100}}
"""So that a sync is amid its chunks for many seconds, whatever else the machine has to do."""


def _kill_half_way(place: Place) -> Run:
    """Run the command in a process of its own and kill it, and its Spark, amid its chunks."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli", "sync", "--project", str(place.folder), "-q"],
        start_new_session=True,
    )
    store = place.parts().store
    try:
        while not _is_amid(store):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run = _open_run(place)
    assert run.round is not None
    assert 0 < run.round.done < len(run.round.chunks)
    return run


def _is_amid(store: Store) -> bool:
    mark = store.read(ORDERS).watermark
    run = mark.open_run if mark else None
    return run is not None and run.round is not None and run.chunks_done > 0 and run.round.done > 10


def test_a_killed_sync_redoes_only_the_chunks_in_flight_and_opens_a_fresh_window(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(2_000)
    options = {"processing": {"batch_size": 10, "parallelism": 2}}
    place.configure({"orders": APPEND}, **options, **SLOWLY)
    killed = _kill_half_way(place)
    place.configure({"orders": APPEND}, **options)
    proved = _receipted(place, killed.id)
    before = _staged(place, killed.id)
    place.shop.insert(15, first=5_000, at=NEXT_DAY)

    result = place.synced()

    place.agree()
    after = _staged(place, killed.id)
    assert {number: after[number] for number in proved} == {number: before[number] for number in proved}
    assert set(after) == set(range(1, 201))
    assert result.rows_extracted == 2_000 - killed.rows + 15
    first, second = _history(place, "planned")
    assert (first.run_id, first.data["window"]) == (killed.id, killed.window.to_json())
    assert second.data["window"]["low"] == killed.window.to_json()["high"]
    assert [event.data["rows"] for event in _history(place, "extracted")] == [2_000, 15]


def test_a_killed_snapshot_leaves_the_old_copy_and_starts_again(build: Build) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    place.shop.insert(1_500)
    place.configure({"orders": FULL_SYNC}, processing={"batch_size": 1_000})
    place.synced()
    complete = place.warehouse.rows()
    place.shop.execute("UPDATE orders SET customer = 'changed'; DELETE FROM orders WHERE id > 1400")
    place.configure({"orders": FULL_SYNC}, processing={"batch_size": 10, "parallelism": 2}, **SLOWLY)
    killed = _kill_half_way(place)
    assert place.mark().pending == ()
    assert place.warehouse.rows() == complete

    place.configure({"orders": FULL_SYNC}, processing={"batch_size": 500})
    result = place.synced()

    place.agree()
    assert result.rows_extracted == 1_400
    assert killed.id not in {event.run_id for event in _history(place, "loaded")}


# --- Interrupted from inside --------------------------------------------------------


@dataclass(frozen=True)
class FullStaging(LocalStaging):
    """Has no room for more than a few segments."""

    room: int = 0

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        # Those still under way first: one that arrives in between is seen then.
        taken = {item.key for item in self.unfinished()} | {item.key for item in self.list()}
        if key.endswith(".parquet") and sum(name.endswith(".parquet") for name in taken) >= self.room:
            raise StagingError("no space left", where=key)
        with super().create(key) as writer:
            yield writer


def _interrupt(place: Place, after: int) -> Run:
    """Let a sync fail when so many segments are staged."""
    full = FullStaging(place.folder / "staging", after)
    place.parts = lambda: replace(Place.parts(place), staging=full)  # type: ignore[method-assign]
    [result] = place.sync().tables.values()
    del place.parts
    assert isinstance(result.error, StagingError)
    assert place.mark().last_error is not None
    return _open_run(place)


@pytest.fixture
def interrupted(build: Build, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A sync of one round of ten chunks that ended after three."""
    monkeypatch.setattr(table, "CHUNKS_PER_TASK", 10)
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(100)
    place.configure({"orders": APPEND}, processing={"batch_size": 10, "parallelism": 1})
    run = _interrupt(place, after=3)
    assert run.round is not None
    assert run.round.done == 3
    return place


def _extractor(place: Place) -> Extractor:
    parts = place.parts()
    return Extractor(parts.source(), parts.staging, place.session(), Silence(), _clock, NEVER)


def _stage(place: Place, run: Run, chunk: int, attempt: str) -> Receipt:
    """Do a chunk of a run, as a Spark task does it."""
    extractor = _extractor(place)
    pipeline = Project.load(place.folder).pipeline("shop")
    job = describe(extractor.source, pipeline.settings_for("orders"), ORDERS)
    assert run.round is not None
    work = extractor._extraction(job, run)  # noqa: SLF001 - what a task is given
    read = extractor._chunk_read(job, run, run.round.chunks[chunk - 1], None)  # noqa: SLF001
    return stage(work, read, attempt=attempt)


def test_a_run_goes_on_with_its_own_cuts_though_the_settings_have_changed(interrupted: Place) -> None:
    run = _open_run(interrupted)
    interrupted.configure(
        {"orders": {**APPEND, "columns": {"exclude": ["note"]}}}, processing={"batch_size": 33}
    )
    interrupted.shop.execute("UPDATE orders SET note = NULL")

    interrupted.synced(limit=5)

    assert _staged(interrupted, run.id) == Counter(range(1, 11))
    assert interrupted.mark().last_error is None
    interrupted.same("orders", "id", "customer")
    [(notes,)] = interrupted.warehouse.execute("SELECT count(note) FROM orders")
    assert notes == 4  # of the thirty rows that were staged before the column was left out


def test_a_window_of_many_rounds_goes_on_in_the_round_where_it_ended(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "CHUNKS_PER_ROUND", 4)
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(95)
    place.configure({"orders": APPEND}, processing={"batch_size": 10, "parallelism": 2})
    run = _interrupt(place, after=6)
    assert run.chunks_done == 4

    place.synced()

    place.agree()
    assert _staged(place, run.id) == Counter(range(1, 11))


def test_a_chunk_that_spark_did_twice_counts_once_and_the_other_is_an_orphan(interrupted: Place) -> None:
    run = _open_run(interrupted)
    twice = [_stage(interrupted, run, 5, attempt) for attempt in ("aaaaaaaa", "bbbbbbbb")]
    assert twice[0].rows == twice[1].rows == 10

    interrupted.synced()
    late = _stage(interrupted, run, 7, "cccccccc")  # by a task that outlived its driver

    interrupted.agree()
    assert _staged(interrupted, run.id) == Counter({**dict.fromkeys(range(1, 11), 1), 5: 2, 7: 2})
    parts = interrupted.parts()
    listed = list_staged(parts.staging, [parts.store])
    orphans = [item for item in listed if item.state is ObjectState.ORPHANED]
    keys = {receipt.segment.key for receipt in (*twice, late) if receipt.segment}
    segments = {item.object.key for item in orphans if item.object.key.endswith(".parquet")}
    assert segments < keys
    assert len(segments) == 2
    chosen = Selection()
    for item in orphans:
        chosen.add(item)
    token = partial(secrets.token_hex, 4)
    [cleaned] = delete(chosen, parts.staging, holder=parts.holder, clock=_clock, token=token)
    assert (cleaned.deleted, cleaned.kept) == (orphans, [])
    assert interrupted.synced().status is TableStatus.NOTHING_NEW
    interrupted.agree()


def test_a_chunk_whose_receipt_speaks_of_a_missing_segment_is_done_again(interrupted: Place) -> None:
    run = _open_run(interrupted)
    receipt = _stage(interrupted, run, 5, "aaaaaaaa")
    assert receipt.segment is not None
    (interrupted.folder / "staging" / receipt.segment.key).unlink()

    interrupted.synced()

    interrupted.agree()
    assert _staged(interrupted, run.id) == Counter(range(1, 11))


def test_a_receipt_of_another_cut_proves_nothing(interrupted: Place) -> None:
    run = _open_run(interrupted)
    receipt = _stage(interrupted, run, 5, "aaaaaaaa")
    [path] = (interrupted.folder / "staging").glob(f"_receipts/*/*/{run.id}/*0005-*.json")
    other = replace(receipt, window=replace(receipt.window, low=None))
    path.write_text(json.dumps(other.to_json()))

    interrupted.synced()

    interrupted.agree()


def test_rows_that_come_while_a_run_is_interrupted_come_in_the_window_after_it(interrupted: Place) -> None:
    run = _open_run(interrupted)
    interrupted.shop.insert(5, first=500, at=NEXT_DAY)
    interrupted.shop.execute(
        f"UPDATE orders SET customer = 'moved on', updated_at = '{NEXT_DAY}' WHERE id IN (45, 99)"
    )

    result = interrupted.synced()

    assert result.rows_extracted == 70 - 2 + 5 + 2
    interrupted.agree()
    first, second = _history(interrupted, "extracted")
    assert (first.run_id, first.data["window"]) == (run.id, run.window.to_json())
    assert (first.data["rows"], second.data["rows"]) == (98, 7)


@pytest.mark.parametrize("mode", ["replace", "append"])
def test_only_the_newest_complete_snapshot_is_loaded(build: Build, mode: str) -> None:
    place = build("mariadb-duckdb")
    place.shop.create()
    place.shop.insert(40)
    place.configure(
        {"orders": {**FULL_SYNC, "full_sync_mode": mode}}, processing={"batch_size": 10, "parallelism": 1}
    )
    place.synced(scope=Scope.EXTRACT)
    place.shop.execute("UPDATE orders SET customer = 'second'")
    place.synced(scope=Scope.EXTRACT)
    newest = {segment.key for segment in place.mark().pending}
    place.shop.execute("UPDATE orders SET customer = 'third'")
    broken = _interrupt(place, after=10)
    assert {segment.key for segment in place.mark().pending} == newest

    place.synced(scope=Scope.LOAD)

    assert {row[1] for row in place.warehouse.rows()} == {"second"}
    assert len(place.warehouse.rows()) == 40
    place.synced()
    assert {row[1] for row in place.warehouse.rows()} >= {"third"}
    assert broken.id not in {event.run_id for event in _history(place, "extracted")}
