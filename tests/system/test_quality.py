"""Rows that break the rules of their table, from the source to wherever they end up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID, ID_ONLY, LONG_AGO
from tests.system.test_resume import FullStaging
from tidegate.cli.root import tidegate
from tidegate.config.project import Project
from tidegate.core.errors import QualityFailed, StagingError
from tidegate.core.watermark import StreamId
from tidegate.spark import uniqueness
from tidegate.state.clock import new_token, now
from tidegate.sync.pipeline import Scope
from tidegate.sync.quarantine import Quarantine
from tidegate.sync.sifting import Sieve
from tidegate.sync.verifying import verified

LATER = LONG_AGO + timedelta(days=1)
STREAM = StreamId("shop", "orders")
POSITIVE = {"columns": {"amount": {"min": 0}}}


def made(build: Build, route: str, validation: dict[str, Any], **table: Any) -> Place:
    place = build(route)
    place.shop.create()
    small = {"batch_size": 3, "parallelism": 1}
    place.configure({"orders": {**HYBRID, "validation": validation, **table}}, processing=small)
    return place


def command(place: Place, *args: str) -> str:
    done = CliRunner().invoke(tidegate, ["--project", str(place.folder), *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def kinds(place: Place) -> list[str]:
    return [event.kind for event in place.parts().store.history(STREAM)]


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-postgres"])
def test_rows_that_break_a_rule_are_put_aside_and_can_be_redriven(build: Build, route: str) -> None:
    place = made(
        build, route, {**POSITIVE, "on_failure": "quarantine"}, columns={"mask": {"customer": "redact"}}
    )
    place.shop.insert(8)
    place.shop.run("UPDATE orders SET amount = -1 WHERE id IN (2, 7)")

    result = place.synced()

    assert (result.rows_extracted, result.rows_quarantined) == (8, 2)
    assert result.quality == ("2 of 8 rows break `amount >= 0`",)
    assert place.warehouse.execute("SELECT id FROM orders ORDER BY id") == [(n,) for n in (1, 3, 4, 5, 6, 8)]
    with closing(place.parts()) as parts:
        checked = verified(place.sync(), Project.load(place.folder).pipeline("shop"), parts)
    assert checked.tables["orders"].error is None  # rows in quarantine are accounted for
    files = json.loads(command(place, "quarantine", "list", "--json"))
    assert sum(file["rows"] for file in files) == 2
    rows = [
        row for file in files for row in pq.read_table(place.folder / "staging" / file["file"]).to_pylist()
    ]
    assert {row["_tidegate_reason"] for row in rows} == {"amount >= 0"}
    assert {row["customer"] for row in rows} == {"***"}
    assert "there is nothing to delete" in command(place, "staging", "clean", "--orphaned", "--yes")
    place.shop.run(
        f"UPDATE orders SET amount = 5, updated_at = '{LATER}' WHERE id = 2"
    )  # mended at the source
    place.synced()
    judged = command(place, "quarantine", "redrive", "-t", "orders", "--yes")
    assert judged == "2 rows left in quarantine: --as-they-are would bring them\n"
    command(place, "quarantine", "redrive", "-t", "orders", "--reason", "agreed", "--as-they-are", "--yes")
    place.synced(scope=Scope.LOAD)
    found = place.warehouse.execute("SELECT id, amount FROM orders WHERE id IN (2, 7) ORDER BY id")
    assert [(n, int(amount)) for n, amount in found] == [(2, 5), (7, -1)]
    assert "[]" in command(place, "quarantine", "list", "--json")


def test_rows_in_quarantine_are_judged_by_the_rules_of_today(build: Build) -> None:
    place = made(build, "sqlite-duckdb", {**POSITIVE, "on_failure": "quarantine"})
    place.shop.insert(6)  # two chunks
    place.shop.run("UPDATE orders SET amount = -id WHERE id <> 4")
    place.synced()
    place.shop.run("ALTER TABLE orders ADD COLUMN extra INT")
    bounds = {"amount": {"min": -5}, "id": {"max": 9}, "extra": {"min": 1}}
    relaxed = {"columns": bounds, "on_failure": "quarantine"}
    place.configure({"orders": {**HYBRID, "validation": relaxed}})
    place.shop.run("UPDATE orders SET amount = 0")  # what was read is what counts

    said = command(place, "quarantine", "redrive", "-t", "orders", "--reason", "refunds", "--yes")

    assert "4 rows to be loaded" in said
    assert "1 row left in quarantine" in said
    [left] = json.loads(command(place, "quarantine", "list", "--json"))
    [row] = pq.read_table(place.folder / "staging" / left["file"]).to_pylist()
    assert (row["id"], row["_tidegate_reason"]) == (6, "amount >= -5")
    assert "1 file deleted" in command(place, "staging", "clean", "--orphaned", "--yes")  # it was divided
    place.synced(scope=Scope.LOAD)
    place.synced(scope=Scope.LOAD)
    found = place.warehouse.execute("SELECT id, amount FROM orders ORDER BY id")
    assert [(n, int(amount)) for n, amount in found if n != 4] == [(1, -1), (2, -2), (3, -3), (5, -5)]
    assert "to be loaded" not in command(place, "quarantine", "redrive", "-t", "orders", "--yes")
    masked = {"validation": relaxed, "columns": {"mask": {"id": "hash"}}, "write_mode": "append"}
    place.configure({"orders": {**HYBRID, **masked, "cdc_id_column": "amount"}})
    arguments = ["--project", str(place.folder), "quarantine", "redrive", "-t", "orders", "--yes"]
    refused = CliRunner().invoke(tidegate, arguments)
    assert refused.exit_code == 2
    assert "values of id are masked" in refused.output


def test_a_run_that_fails_loads_nothing_and_is_read_again(build: Build) -> None:
    place = made(build, "sqlite-duckdb", {**POSITIVE, "max_null_percentage": 50})
    place.shop.insert(8)
    place.shop.run("UPDATE orders SET amount = -1 WHERE id = 7")
    for _ in range(2):
        [result] = place.sync().tables.values()
        assert isinstance(result.error, QualityFailed)
        assert "1 of 8 rows break `amount >= 0`" in str(result.error)
    mark = place.mark()
    assert (mark.extracted.position, mark.pending, mark.open_run) == (None, (), None)
    assert place.sync(scope=Scope.LOAD).exit_code == 0
    assert ("orders",) not in place.warehouse.execute("SELECT table_name FROM duckdb_tables()")
    assert kinds(place).count("rejected") == 2
    place.shop.run("UPDATE orders SET amount = 1 WHERE id = 7")  # without a trace for the cursor
    place.synced()
    place.agree()


def test_a_warning_lets_everything_through(build: Build) -> None:
    place = made(
        build, "sqlite-duckdb", {**POSITIVE, "unique_key": True, "on_failure": "warn"}, keys="customer"
    )
    place.shop.insert(4)
    place.shop.run("UPDATE orders SET amount = -1, customer = 'same' WHERE id IN (1, 4)")
    result = place.synced()
    assert result.quality == ("2 of 4 rows break `amount >= 0`", "1 keys come more than once")
    assert place.warehouse.execute("SELECT count(*) FROM orders") == [(3,)]


def test_a_whole_batch_is_put_aside_where_no_row_is_to_blame(build: Build) -> None:
    place = made(build, "sqlite-duckdb", {"unique_key": True, "on_failure": "quarantine"}, keys="customer")
    place.shop.insert(4)
    place.shop.run("UPDATE orders SET customer = 'same' WHERE id IN (1, 4)")  # in different chunks
    assert place.synced().rows_quarantined == 4
    assert place.mark().pending == ()
    assert place.mark().extracted.position is not None
    [first, *_] = json.loads(command(place, "quarantine", "list", "--json"))
    assert first["reasons"] == ["1 keys come more than once"]
    place.shop.insert(1, first=5, at=LATER)
    place.synced()
    assert place.warehouse.execute("SELECT id FROM orders") == [(5,)]
    arguments = ["--project", str(place.folder), "quarantine", "redrive", "-t", "orders", "--yes"]
    assert "cannot be judged by themselves" in CliRunner().invoke(tidegate, arguments).output
    command(place, "quarantine", "discard", "-t", "orders", "--yes")
    assert "2 files deleted" in command(place, "staging", "clean", "--orphaned", "--yes")


def test_what_has_come_another_way_or_is_redriven_already_is_not_brought_twice(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    for first, count, least in ((1, 3, 0), (4, 1, -1)):
        rules = {"columns": {"amount": {"min": least}}, "on_failure": "quarantine"}
        append = {**ID_ONLY, "write_mode": "append", "validation": rules}
        place.configure({"orders": append}, ceiling={"lookback_ids": 10})
        place.shop.insert(count, first=first)
        place.shop.run("UPDATE orders SET amount = 1 - id WHERE id < 4")
        place.synced()  # the second time it reads all ids again
    with closing(place.parts()) as parts:
        quarantine = Quarantine(parts, STREAM, now, new_token)
        settings = Project.load(place.folder).pipeline("shop").settings_for("orders")
        files, sieve = quarantine.files(), Sieve(parts.staging, settings, new_token)
        assert quarantine.redrive(files, settings, reason="agreed", sieve=sieve) == 1
        assert quarantine.redrive(files, settings, reason="asked at the same time", sieve=sieve) == 0
        quarantine.discard(files, reason="asked at the same time")
        assert [file.segment.rows for file in quarantine.files()] == [1]
    place.synced(scope=Scope.LOAD)

    assert place.warehouse.execute("SELECT id FROM orders ORDER BY id") == [(1,), (2,), (4,)]


def test_a_killed_run_keeps_what_it_found_and_never_loads_what_failed(build: Build) -> None:
    place = made(build, "sqlite-duckdb", POSITIVE)
    place.shop.insert(9)
    place.shop.run("UPDATE orders SET amount = -1 WHERE id = 1")
    full = FullStaging(place.folder / "staging", 2)
    place.parts = lambda: replace(Place.parts(place), staging=full)  # type: ignore[method-assign]
    assert place.sync().exit_code == 1
    del place.parts
    run = place.mark().open_run
    assert run is not None
    assert run.findings is not None
    assert dict(run.findings.failed) == {"amount >= 0": 1}
    assert place.mark().pending == ()
    assert place.sync(scope=Scope.LOAD).exit_code == 0
    [result] = place.sync().tables.values()
    assert isinstance(result.error, QualityFailed)
    assert "1 of 9 rows" in str(result.error)


def test_other_rules_give_up_an_interrupted_run_and_read_it_again(build: Build) -> None:
    place = made(build, "sqlite-duckdb", POSITIVE)
    place.shop.insert(9)
    place.shop.run("UPDATE orders SET amount = -1 WHERE id = 1")
    full = FullStaging(place.folder / "staging", 2)
    place.parts = lambda: replace(Place.parts(place), staging=full)  # type: ignore[method-assign]
    assert place.sync().exit_code == 1
    del place.parts
    place.configure({"orders": {**HYBRID, "validation": {**POSITIVE, "on_failure": "warn"}}})
    assert place.synced().quality == ("1 of 9 rows break `amount >= 0`",)
    place.agree()


def test_a_task_that_fails_while_keys_are_compared_is_said_in_words(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(build, "sqlite-duckdb", {"unique_key": True})
    place.shop.insert(4)
    with monkeypatch.context() as patch:
        patch.setattr(uniqueness, "_digests", _fails)
        [failed] = place.sync().tables.values()
    assert isinstance(failed.error, StagingError)
    assert "a Spark task failed" in str(failed.error)
    assert "no such file today" in str(failed.error)

    place.synced()

    place.agree()


def _fails(*_: Any) -> Iterator[Any]:
    raise OSError("no such file today")


def test_drift_and_freshness(build: Build) -> None:
    drift = {"row_count": {"max_drift_percentage": 50}, "on_failure": "warn"}
    place = made(build, "sqlite-duckdb", drift)
    for number in range(3):
        place.shop.insert(2, first=1 + 2 * number, at=LONG_AGO + timedelta(hours=number))
        assert place.synced().quality == ()
    place.shop.insert(9, first=100, at=LATER)
    assert "9 rows are +350 % off the mean of 2 of the last 3 runs" in place.synced().quality[0]
    fresh = {"freshness": {"max_age": "7d"}}
    place.configure({"orders": {**HYBRID, "validation": fresh}})
    [result] = place.sync().tables.values()  # nothing is new, and that is the trouble
    assert isinstance(result.error, QualityFailed)
    assert "the newest updated_at is 2025-01-02" in str(result.error)


def test_a_snapshot_that_fails_leaves_the_table_as_it_was(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    whole = {"cdc_strategy": "full_sync", "validation": {**POSITIVE, "on_failure": "fail"}}
    place.configure({"orders": whole})
    place.shop.insert(3)
    place.synced()
    place.shop.run("UPDATE orders SET amount = -1")
    assert place.sync().exit_code == 1
    assert place.warehouse.execute("SELECT count(*) FROM orders WHERE amount >= 0") == [(3,)]
