"""What a user can get wrong: a clear message, the right exit code, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.servers import closed_port
from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID
from tidegate.core.errors import ConnectError, DamagedRecord
from tidegate.core.watermark import StreamId
from tidegate.state.contract import Store
from tidegate.sync.pipeline import Scope
from tidegate.sync.result import SyncResult


@pytest.fixture
def place(build: Build) -> Place:
    made = build("sqlite-duckdb")
    made.shop.create()
    made.shop.insert(20)
    made.configure()
    return made


def _error(result: SyncResult) -> str:
    [table] = result.tables.values()
    assert table.error is not None
    return str(table.error)


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_wrong_password_is_said_in_words_without_the_password(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    place.shop.create()
    place.shop.config["password"] = "s3cret-and-wrong"
    place.configure(retries={"max": 0})

    result = place.sync()

    assert result.exit_code == 5
    assert "tide" in _error(result)
    assert "s3cret-and-wrong" not in _error(result)


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_an_unreachable_host_is_said_in_words(build: Build, source: str) -> None:
    place = build(f"{source}-duckdb")
    with closed_port() as port:
        place.shop.config["port"] = port
        place.configure(retries={"max": 0})

        result = place.sync()

    assert result.exit_code == 5
    assert str(port) in _error(result)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"ordesr": HYBRID}, "orders"),
        ({"orders": {**HYBRID, "cdc_timestamp_column": "updated_on"}}, "updated_at"),
        ({"orders": {**HYBRID, "columns": {"exclude": ["nothere"]}}}, "nothere"),
        ({"orders": {"cdc_strategy": "custom_sql", "query": "DELETE FROM orders"}}, "SELECT"),
        ({"orders": {"cdc_strategy": "custom_sql", "query": "SELECT 1; SELECT 2"}}, "one"),
    ],
    ids=["missing table", "missing cursor", "missing column", "not a SELECT", "two statements"],
)
def test_what_the_source_does_not_have_is_named_with_what_it_has(
    place: Place, tables: dict[str, Any], said: str
) -> None:
    place.configure(tables)

    result = place.sync()

    assert result.exit_code in (1, 2)
    assert said in _error(result)


def test_a_target_table_that_does_not_fit_shows_both_sides_and_changes_nothing(place: Place) -> None:
    place.warehouse.execute("CREATE TABLE orders (id INTEGER, customer DATE)")

    result = place.sync()

    assert result.exit_code == 1
    assert "customer" in _error(result)
    assert place.warehouse.execute("SELECT count(*) FROM orders") == [(0,)]
    assert place.parts().store.read(StreamId("shop", "orders")).watermark is None  # nothing was read


def test_a_damaged_state_record_is_named_and_left_as_it_is(place: Place) -> None:
    place.synced()
    [record] = (place.folder / "state" / "watermarks").glob("*orders.json")
    damaged = record.read_bytes()[:40]
    record.write_bytes(damaged)

    result = place.sync()

    assert result.exit_code == 1
    assert record.name in _error(result)
    assert record.read_bytes() == damaged


@pytest.fixture
def torn(place: Place) -> Path:
    """The damaged record of a table of which something waits to be loaded."""
    place.sync(scope=Scope.EXTRACT)
    [record] = (place.folder / "state" / "watermarks").glob("*orders.json")
    record.write_bytes(record.read_bytes()[:40])
    return record


def test_a_damaged_state_record_does_not_look_like_nothing_to_load(place: Place, torn: Path) -> None:
    result = place.sync(scope=Scope.LOAD)

    assert result.exit_code == 1
    assert torn.name in _error(result)


def test_nor_does_one_whose_table_only_a_pattern_stands_for(place: Place, torn: Path) -> None:
    place.configure({"ord*": HYBRID})

    with pytest.raises(DamagedRecord) as refused:
        place.sync(scope=Scope.LOAD)

    assert torn.name in str(refused.value)


class _Unwritable:
    """A store that went away after the lease was taken."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, *_: object, **__: object) -> int:
        raise ConnectError("no answer from the store")


def test_what_went_wrong_is_said_though_the_state_cannot_be_told_of_it(place: Place) -> None:
    place.sync(scope=Scope.EXTRACT)
    for segment in (place.folder / "staging").rglob("*.parquet"):
        segment.unlink()
    parts = place.parts()
    store = cast("Store", _Unwritable(parts.store))
    place.parts = lambda: replace(parts, store=store)  # type: ignore[method-assign]

    message = _error(place.sync(scope=Scope.LOAD))

    assert ".parquet" in message
    assert "no answer" not in message


def test_a_duckdb_file_that_another_process_holds_is_said_with_its_holder(place: Place) -> None:
    place.warehouse.config["wait"] = 1
    place.configure({"orders": FULL_SYNC})
    hold = (
        "import duckdb, sys, time; connection = duckdb.connect(sys.argv[1]); "
        "print('held', flush=True); time.sleep(120)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(place.folder / "warehouse.duckdb")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        message = _error(place.sync())
    finally:
        holder.kill()
        holder.communicate()

    assert str(holder.pid) in message


def test_a_full_staging_disk_is_said_in_words_and_the_next_sync_goes_on(place: Place) -> None:
    """On a real file system of one megabyte, where the machine lets us make one."""
    staging = place.folder / "staging"
    staging.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(staging)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    place.shop.insert(5_000, first=100)
    try:
        message = _error(place.sync())
    finally:
        subprocess.run(["umount", str(staging)], check=True)

    assert "space" in message
    place.synced()
    place.agree()
