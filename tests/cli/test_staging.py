from __future__ import annotations

import json
import os

import pytest

from tests.cli.conftest import Run, Shop
from tidegate.core.positions import Position
from tidegate.core.windows import Window


def _keys(shop: Shop) -> set[str]:
    return {item.key for item in shop.staging.list()}


def _states(run: Run, *args: str) -> dict[str, str]:
    items = json.loads(run("staging", "list", "--json", *args).stdout)
    return {item["key"]: item["state"] for item in items}


@pytest.fixture
def filled(shop: Shop) -> dict[str, str]:
    """One file of every state, by its key."""
    shop.extract(1)
    loaded = shop.mark().pending[0].key
    shop.load()
    over = shop.extract(2)
    pending = shop.mark().pending[0].key
    orphan = f"year=2025/orders_20250801_batch_0001_{over}_late.parquet"
    shop.staging.put(orphan, b"late")
    foreign = "year=2025/orders_20250801_batch_0001_other-project_a1.parquet"
    shop.staging.put(foreign, b"theirs")
    with shop.hold("customers") as held:
        flying = shop.plan(held, None, Position.of(1))
        in_flight = shop.stage(flying, Window(None, Position.of(1)), 1, "customers").segment
        receipt = f"_receipts/shop/customers/{flying}/000001-a1.json"
        shop.staging.put(receipt, b"{}")
    assert in_flight is not None
    return {
        loaded: "loaded",
        pending: "pending",
        orphan: "orphaned",
        foreign: "foreign",
        in_flight.key: "in_flight",
        receipt: "in_flight",
    }


def test_list_tells_what_becomes_of_each_file(filled: dict[str, str], run: Run) -> None:
    assert _states(run) == filled
    text = run("staging", "list").stdout
    assert "6 files (1 foreign, 2 in flight, 1 loaded, 1 orphaned, 1 pending)" in text


def test_list_can_be_narrowed(filled: dict[str, str], run: Run) -> None:
    assert set(_states(run, "--orphaned").values()) == {"orphaned"}
    assert set(_states(run, "-t", "customers").values()) == {"in_flight"}
    assert _states(run, "--older-than", "1d") == {}


@pytest.mark.parametrize("name", ["staging", "s3clean"])
def test_clean_deletes_loaded_and_orphaned_files_alone(
    shop: Shop, filled: dict[str, str], run: Run, name: str
) -> None:
    result = run(name, "clean", "--yes")
    assert result.exit_code == 0
    assert _keys(shop) == {key for key, state in filled.items() if state not in ("loaded", "orphaned")}


def test_clean_can_leave_loaded_files(shop: Shop, filled: dict[str, str], run: Run) -> None:
    run("staging", "clean", "--orphaned", "--yes")
    assert _keys(shop) == {key for key, state in filled.items() if state != "orphaned"}


def test_clean_asks_first(shop: Shop, filled: dict[str, str], run: Run) -> None:
    result = run("staging", "clean")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert _keys(shop) == set(filled)


def test_clean_leaves_young_files_when_told(shop: Shop, filled: dict[str, str], run: Run) -> None:
    [loaded] = [key for key, state in filled.items() if state == "loaded"]
    week_ago = (shop.staging.root / loaded).stat().st_mtime - 8 * 86400
    os.utime(shop.staging.root / loaded, (week_ago, week_ago))
    run("staging", "clean", "--older-than", "7d", "--yes")
    assert _keys(shop) == set(filled) - {loaded}


def test_clean_leaves_the_files_of_a_table_that_a_run_holds(
    shop: Shop, filled: dict[str, str], run: Run
) -> None:
    with shop.hold():
        result = run("staging", "clean", "--yes")
    assert result.exit_code == 0
    assert "kept" in result.stderr
    assert _keys(shop) == set(filled)


def test_clean_of_files_made_pending_again_is_refused_by_their_state(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.load()
    run("watermark", "reset", "-t", "orders", "--loaded-only", "--yes")
    assert "nothing to delete" in run("staging", "clean", "--yes").stdout
    assert len(_keys(shop)) == 1


def test_clean_does_nothing_while_a_state_record_is_damaged(
    shop: Shop, filled: dict[str, str], run: Run
) -> None:
    next((shop.root / "state/watermarks").glob("*orders*.json")).write_text("{")
    result = run("staging", "clean", "--yes")
    assert result.exit_code == 1
    assert "watermark check" in result.stderr
    assert _keys(shop) == set(filled)


def test_files_of_finished_runs_receipts_included_are_orphans(shop: Shop, run: Run) -> None:
    run_id = shop.extract(1)
    key = f"_receipts/shop/orders/{run_id}/000001-a1.json"
    shop.staging.put(key, b"{}")
    assert _states(run)[key] == "orphaned"


def _marker(run_id: str) -> str:
    return f"_runs/shop/orders/{run_id}/_SUCCESS"


def test_a_marker_goes_with_the_files_of_its_run(shop: Shop, run: Run) -> None:
    first = shop.extract(1)
    shop.load()
    second = shop.extract(2)
    for run_id in (first, second, "of-another-project"):
        shop.staging.put(_marker(run_id), b"{}")

    states = _states(run)
    run("staging", "clean", "--yes")

    assert states[_marker(first)] == "loaded"
    assert states[_marker(second)] == "pending"
    assert states[_marker("of-another-project")] == "foreign"
    [pending] = shop.mark().pending
    assert _keys(shop) == {pending.key, _marker(second), _marker("of-another-project")}


def _leave_unfinished(shop: Shop, run_id: str) -> None:
    (
        shop.staging.root / f"year=2025/.unfinished-0a0b-orders_20250801_batch_0007_{run_id}_a1.parquet~"
    ).touch()


def test_what_killed_writers_left_is_shown_and_goes_unless_its_run_goes_on(shop: Shop, run: Run) -> None:
    over = shop.extract(1)
    with shop.hold("customers") as held:
        flying = shop.plan(held, None, Position.of(1))
    for run_id in (over, flying, "other-project"):
        _leave_unfinished(shop, run_id)

    listed = json.loads(run("staging", "list", "--json").stdout)
    text = run("staging", "clean", "--yes").stdout

    unfinished = {item["key"]: item["state"] for item in listed if item["unfinished"]}
    key = "year=2025/orders_20250801_batch_0007_{}_a1.parquet".format
    assert unfinished == {key(over): "orphaned", key(flying): "in_flight", key("other-project"): "foreign"}
    assert f"{key(over)} (unfinished)" in text
    assert {item.key for item in shop.staging.unfinished()} == {key(flying), key("other-project")}


def test_clean_tells_programs_what_became_of_each_file(shop: Shop, filled: dict[str, str], run: Run) -> None:
    result = run("staging", "clean", "--yes", "--json")
    items = {item["key"]: (item["state"], item["deleted"]) for item in json.loads(result.stdout)}
    assert items == {key: (state, True) for key, state in filled.items() if state in ("loaded", "orphaned")}
    assert json.loads(run("staging", "clean", "--yes", "--json").stdout) == []
