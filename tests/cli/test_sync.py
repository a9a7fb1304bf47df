from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.cli.conftest import Run, Shop
from tidegate.core.positions import Position
from tidegate.core.watermark import StreamId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIDEGATE = [sys.executable, "-m", "tidegate.cli"]

APPENDED = """
pipeline: {name: shop, source: shop, target: warehouse, staging: files, state: default}
tables:
  orders: {cdc_timestamp_column: updated_at, cdc_id_column: id, write_mode: append}
"""


@pytest.fixture
def synced(shop: Shop, run: Run, spark: SparkSession) -> Shop:
    result = run("sync", "-q")
    assert result.exit_code == 0, result.stderr
    return shop


def warehouse(shop: Shop, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(shop.root / "warehouse.duckdb")) as connection:
        return connection.execute(sql).fetchall()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_java() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": ""}


# --- What it does --------------------------------------------------------------


def test_sync_moves_all_tables_and_tells_it_in_plain_lines(shop: Shop, run: Run, spark: SparkSession) -> None:
    result = run("sync")
    assert result.exit_code == 0, result.stderr
    assert "shop/orders: 5 rows extracted, 5 rows loaded" in result.stdout
    assert "12 rows extracted, 12 loaded" in result.stdout.splitlines()[-1]
    assert all(sign.isprintable() or sign == "\n" for sign in result.output)
    assert warehouse(shop, "SELECT count(*), sum(amount) FROM orders") == [(5, Decimal("216.90"))]


def test_the_json_result_has_the_agreed_form_and_stdout_to_itself(
    shop: Shop, run: Run, spark: SparkSession
) -> None:
    result = run("sync", "-t", "orders", "--json-output")
    data = json.loads(result.stdout)
    assert data.keys() == {
        "execution_id",
        "status",
        "pipeline",
        "tables_requested",
        "table_results",
        "started_at",
        "finished_at",
        "duration_seconds",
    }
    assert (data["status"], data["pipeline"], data["tables_requested"]) == ("success", "shop", ["orders"])
    table = data["table_results"]["orders"]
    assert {
        "status",
        "rows_extracted",
        "rows_loaded",
        "rows_processed",
        "files_created",
        "bytes",
        "window",
        "held_back_seconds",
        "duration_seconds",
        "error",
    } <= table.keys()
    assert (table["rows_extracted"], table["rows_loaded"], table["files_created"]) == (5, 5, 1)
    assert table["window"] == {"low": None, "high": "2025-01-08 16:30:00 / 5"}
    assert "5 rows extracted" in result.stderr


def test_the_json_result_can_go_to_a_file(synced: Shop, run: Run) -> None:
    file = synced.root / "result.json"
    result = run("sync", "-t", "orders", "--json-output", str(file))
    assert json.loads(file.read_text())["status"] == "nothing_new"
    assert "nothing new" in result.stdout
    assert [path.name for path in synced.root.iterdir() if "result" in path.name] == ["result.json"]


def test_a_sync_that_finds_nothing_new_needs_no_java(synced: Shop) -> None:
    command = [*TIDEGATE, "sync", "-t", "orders", "-t", "customers", "--project", str(synced.root)]
    done = subprocess.run(command, env=without_java(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing new" in done.stdout


def test_tables_are_remembered_until_they_are_asked_for_anew(synced: Shop, run: Run) -> None:
    [known] = (synced.root / ".tidegate" / "schemas").glob("*.json")
    told = known.read_text(encoding="utf-8")
    outdated = told.replace('"amount"', '"price"')
    assert outdated != told
    known.write_text(outdated, encoding="utf-8")

    assert run("sync", "-q").exit_code == 0
    assert known.read_text(encoding="utf-8") == outdated

    assert run("sync", "-q", "--refresh-schema").exit_code == 0
    assert '"price"' not in known.read_text(encoding="utf-8")


def test_quiet_says_nothing_when_nothing_is_wrong(synced: Shop, run: Run) -> None:
    assert run("sync", "-q").output == ""


def test_tables_can_be_chosen_by_pattern(shop: Shop, run: Run, spark: SparkSession) -> None:
    data = json.loads(run("sync", "-t", "c*", "--json-output").stdout)
    assert data["tables_requested"] == ["customers", "countries"]


def test_extract_only_then_load_only_arrive_where_both_do(shop: Shop, run: Run, spark: SparkSession) -> None:
    assert run("sync", "-t", "orders", "--extract-only").exit_code == 0
    assert len(shop.mark().pending) == 1
    assert not (shop.root / "warehouse.duckdb").exists()
    assert run("sync", "-t", "orders", "--load-only").exit_code == 0
    assert shop.mark().pending == ()
    assert warehouse(shop, "SELECT count(*) FROM orders") == [(5,)]


@pytest.mark.parametrize(
    "args",
    [
        ("backup", "-p", "shop", "-t", "orders"),
        ("sync", "pipeline", "-p", "shop", "-t", "orders", "--backup-only"),
        ("--debug", "sync", "pipeline", "-t", "orders", "--extract-only"),
    ],
)
def test_old_names_do_what_they_did(shop: Shop, run: Run, spark: SparkSession, args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 0
    assert len(shop.mark().pending) == 1
    assert run("sync", "pipeline", "-p", "shop", "--redshift-only").exit_code == 0
    assert shop.mark().pending == ()


def test_limit_ends_at_a_whole_position(shop: Shop, run: Run, spark: SparkSession) -> None:
    run("sync", "-t", "orders", "--limit", "3")
    assert shop.mark().extracted.rows_total == 3


def test_a_range_is_read_beside_the_mark(synced: Shop, run: Run) -> None:
    before = synced.mark()
    args = ("sync", "-t", "orders", "--from", "2025-01-06 09:00:00", "--to", "2025-01-07 11:02:00")
    data = json.loads(run(*args, "--json-output").stdout)
    assert data["table_results"]["orders"]["rows_extracted"] == 3
    assert synced.mark() == before
    assert warehouse(synced, "SELECT count(*) FROM orders") == [(5,)]


def test_verify_data_agrees_and_finds_what_is_missing(synced: Shop, run: Run) -> None:
    assert run("sync", "--verify-data").exit_code == 0
    warehouse(synced, "DELETE FROM orders WHERE id = 3")
    result = run("sync", "--verify-data")
    assert result.exit_code == 4
    assert "the warehouse has 4 rows, the source says 5" in result.stderr


def test_several_pipelines_are_a_list_and_the_worst_exit_code_counts(
    shop: Shop, run: Run, spark: SparkSession
) -> None:
    second = APPENDED.replace("name: shop", "name: other").replace("  orders:", "  ordrs:")
    (shop.root / "config/pipelines/other.yml").write_text(second.replace("target: w", "target: w"))
    result = run("sync", "--json-output")
    assert result.exit_code == 1
    other, own = json.loads(result.stdout)
    assert (other["pipeline"], other["status"]) == ("other", "failed")
    assert (own["pipeline"], own["status"]) == ("shop", "success")
    assert "orders" in result.stderr  # the nearest spelling


def test_without_p_a_table_is_looked_for_in_all_pipelines(shop: Shop, run: Run, spark: SparkSession) -> None:
    (shop.root / "config/pipelines/other.yml").write_text(APPENDED.replace("name: shop", "name: other"))
    data = json.loads(run("sync", "-t", "countries", "--json-output").stdout)
    assert data["pipeline"] == "shop"


# --- What it refuses -----------------------------------------------------------


def test_an_unknown_table_names_the_nearest_one(run: Run) -> None:
    result = run("sync", "-t", "ordes")
    assert result.exit_code == 2
    assert "did you mean `orders`?" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_pipeline_names_the_nearest_one(run: Run) -> None:
    result = run("sync", "-p", "shopp")
    assert result.exit_code == 2
    assert "did you mean `shop`?" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--extract-only", "--load-only"),
        ("--load-only", "--limit", "5"),
        ("--from", "2025-01-01", "--limit", "5"),
        ("--limit", "0"),
        ("--extract-only", "--verify-data"),
        ("--json-output", "/no/such/folder/result.json"),
        ("--every", "0"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(run: Run, args: tuple[str, ...]) -> None:
    assert run("sync", *args).exit_code == 2


def test_a_table_that_another_run_holds_is_left_alone_and_exits_3(shop: Shop, run: Run) -> None:
    with shop.hold():
        result = run("sync", "-t", "orders", "--json-output")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["table_results"]["orders"]["status"] == "held"
    assert "held by a test (process " in result.stderr


def test_a_server_that_cannot_be_reached_exits_5(shop: Shop, run: Run) -> None:
    file = shop.root / "config/connections.yml"
    source = "{type: postgresql, host: 127.0.0.1, port: 9, database: x, username: u, password: secret-word}"
    text = file.read_text().replace("shop:\n      type: sqlite\n      path: shop.db", f"shop: {source}")
    file.write_text(text)
    shop.pipeline(APPENDED.replace("pipeline: {", "pipeline: {retries: {max: 0}, "))
    result = run("sync")
    assert result.exit_code == 5
    assert result.stderr.startswith("error: ")
    assert "secret-word" not in result.output


def test_a_broken_configuration_exits_2_and_names_the_place(shop: Shop, run: Run) -> None:
    shop.pipeline("pipeline: {name: shop, sauce: shop}\n")
    result = run("sync")
    assert result.exit_code == 2
    assert "config/pipelines/shop.yml:1" in result.stderr


def test_a_failed_table_does_not_keep_the_others_from_finishing(
    shop: Shop, run: Run, spark: SparkSession
) -> None:
    shop.execute("DROP TABLE customers")
    result = run("sync", "--json-output")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["status"] == "partial"
    assert {name: table["status"] for name, table in data["table_results"].items()} == {
        "orders": "success",
        "customers": "failed",
        "countries": "success",
    }


# --- Dry run -------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_changes_nothing(shop: Shop, run: Run) -> None:
    before = tree(shop.root)
    result = run("sync", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "after the beginning, up to 2025-01-08 16:30:00 / 5" in result.stdout
    assert "about 5 rows in 1 chunk" in result.stdout
    assert "create" in result.stdout
    assert "nothing was changed" in result.stdout
    assert tree(shop.root) == before


def test_the_json_of_a_plan_has_the_agreed_form(shop: Shop, run: Run) -> None:
    before = tree(shop.root)
    data = json.loads(run("sync", "--dry-run", "-t", "orders", "--json-output").stdout)
    plan = data["tables"]["orders"]
    assert {
        "window",
        "chunks",
        "estimated_rows",
        "held_back_seconds",
        "held_back_by",
        "target_action",
    } <= plan.keys()
    assert plan["window"] == {"low": None, "high": "2025-01-08 16:30:00 / 5"}
    assert (plan["chunks"], plan["estimated_rows"]) == (1, 5)
    assert tree(shop.root) == before


def test_a_dry_run_after_a_sync_finds_nothing_new_and_changes_nothing(synced: Shop, run: Run) -> None:
    before = tree(synced.root)
    data = json.loads(run("sync", "--dry-run", "-t", "orders", "--json-output").stdout)
    assert data["tables"]["orders"]["window"] is None
    assert tree(synced.root) == before


def test_a_dry_run_cuts_as_the_sync_would(shop: Shop, run: Run) -> None:
    shop.pipeline(APPENDED.replace("pipeline: {", "pipeline: {processing: {batch_size: 2}, "))
    data = json.loads(run("sync", "--dry-run", "--json-output").stdout)
    assert data["tables"]["orders"]["chunks"] == 3


def test_a_dry_run_of_an_interrupted_run_shows_its_frozen_window(shop: Shop, run: Run) -> None:
    with shop.hold() as held:
        frozen = shop.plan(held, None, Position.of(shop.now.replace(tzinfo=None), 3))
    data = json.loads(run("sync", "--dry-run", "-t", "orders", "--json-output").stdout)
    plan = data["tables"]["orders"]
    assert plan["resumes"] == frozen
    assert plan["window"]["high"].endswith("/ 3")


def test_a_dry_run_refuses_what_the_sync_would_refuse(synced: Shop, run: Run) -> None:
    synced.pipeline(APPENDED.replace(", cdc_id_column: id", ""))
    data = json.loads(run("sync", "--dry-run", "-t", "orders", "--json-output").stdout)
    assert "the mark was made with cursor updated_at + id" in data["tables"]["orders"]["error"]


def test_a_dry_run_of_loading_shows_what_is_pending(shop: Shop, run: Run) -> None:
    shop.extract(1, rows=7)
    before = tree(shop.root)
    data = json.loads(run("sync", "--dry-run", "--load-only", "-t", "orders", "--json-output").stdout)
    assert (data["tables"]["orders"]["pending_files"], data["tables"]["orders"]["pending_rows"]) == (1, 7)
    assert tree(shop.root) == before


def test_a_dry_run_of_a_range_shows_its_window(synced: Shop, run: Run) -> None:
    before = tree(synced.root)
    args = ("sync", "--dry-run", "-t", "orders", "--from", "2025-01-06", "--to", "2025-01-07")
    data = json.loads(run(*args, "--json-output").stdout)
    plan = data["tables"]["orders@ranges"]
    assert plan["window"] == {"low": "2025-01-06 00:00:00", "high": "2025-01-07 00:00:00"}
    assert plan["estimated_rows"] == 2
    assert tree(synced.root) == before


def test_a_dry_run_says_of_which_table_a_trouble_is(shop: Shop, run: Run) -> None:
    shop.execute("UPDATE orders SET updated_at = 'yesterday' WHERE id = 5")
    result = run("sync", "--dry-run", "-t", "orders")
    assert result.exit_code != 0
    assert result.stderr.startswith("error: shop/orders, ")


def test_a_dry_run_names_what_cannot_work(shop: Shop, run: Run) -> None:
    shop.execute("DROP TABLE customers")
    result = run("sync", "--dry-run")
    assert result.exit_code == 1
    assert "customers" in result.stderr


# --- Marks by hand, on a real source -------------------------------------------


def test_a_mark_can_be_set_before_the_first_sync(shop: Shop, run: Run, spark: SparkSession) -> None:
    args = (
        "watermark",
        "set",
        "-t",
        "orders",
        "--timestamp",
        "2025-01-07 11:02:00",
        "--reason",
        "from here on",
    )
    assert run(*args).exit_code == 0
    assert run("sync", "-t", "orders").exit_code == 0
    assert shop.mark().extracted.rows_total == 1
    assert shop.mark().manual == "from here on"


def test_a_mark_has_a_timestamp_an_id_or_both_as_its_cursor_has(synced: Shop, run: Run) -> None:
    set_ = ("watermark", "set", "-p", "shop")
    both = run(*set_, "-t", "orders", "--timestamp", "2025-01-07 11:02:00", "--id", "3")
    assert both.exit_code == 0
    assert str(synced.mark().extracted.position) == "2025-01-07 11:02:00 / 3"
    assert run(*set_, "-t", "customers", "--id", "2").exit_code == 0
    for wrong in (
        ("-t", "orders", "--id", "3"),
        ("-t", "customers", "--timestamp", "2025-01-01"),
        ("-t", "countries", "--id", "3"),
        ("-t", "customers", "--id", "three"),
        ("-t", "orders", "--timestamp", "noon"),
        ("-t", "orders"),
        ("--timestamp", "2025-01-01"),
    ):
        assert run(*set_, *wrong).exit_code == 2, wrong


def test_what_was_reset_loads_again_and_doubles_nothing(synced: Shop, run: Run) -> None:
    rows = "SELECT id, customer_id, amount, status, updated_at FROM orders ORDER BY id"
    before = warehouse(synced, rows)
    assert run("watermark", "reset", "-p", "shop", "--loaded-only", "--yes").exit_code == 0
    assert run("sync", "--load-only").exit_code == 0
    assert warehouse(synced, rows) == before
    assert run("watermark", "reset", "-p", "shop", "--yes").exit_code == 0
    assert run("sync").exit_code == 0
    assert warehouse(synced, rows) == before


def test_moving_an_appended_table_back_warns_that_rows_double(
    shop: Shop, run: Run, spark: SparkSession
) -> None:
    shop.pipeline(APPENDED)
    assert run("sync").exit_code == 0
    result = run("watermark", "set", "-t", "orders", "--timestamp", "2025-01-01")
    assert "twice" in result.stderr


# --- Going on, and being stopped -----------------------------------------------


def _every(shop: Shop, seconds: str) -> list[str]:
    return [
        *TIDEGATE,
        "sync",
        "-t",
        "orders",
        "--every",
        seconds,
        "--json-output",
        "--project",
        str(shop.root),
    ]


def test_every_goes_on_until_it_is_told_to_stop(synced: Shop) -> None:
    with subprocess.Popen(_every(synced, "0.2"), env=without_java(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGTERM)
    assert process.returncode in (0, 130)  # between two rounds, or in one that has begun meanwhile
    assert first["status"] == second["status"] == "nothing_new"
    assert synced.store.read(StreamId("shop", "orders")).lease is None


def test_every_that_is_stopped_between_two_rounds_ends_as_the_last_one_did(synced: Shop) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        _every(synced, "3600"), env=without_java(), stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stderr is not None
        said = list(takewhile(lambda line: "next round in 3600 s" not in line, process.stderr))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, said
    assert synced.store.read(StreamId("shop", "orders")).lease is None


def test_a_sync_that_is_stopped_loses_nothing_and_goes_on_when_run_again(
    shop: Shop, run: Run, spark: SparkSession
) -> None:
    # So slowly that it is not done before the signal comes, whatever else the machine has to do.
    slowly = "pipeline: {processing: {batch_size: 100}, mercy: {max_rows_per_second: 500}, "
    shop.pipeline(APPENDED.replace("pipeline: {", slowly))
    shop.execute(
        "DELETE FROM orders;"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        "INSERT INTO orders SELECT i, 1, 1, 'open', datetime('2025-01-01', '+' || i || ' seconds') FROM n"
    )
    command = [*TIDEGATE, "sync", "--project", str(shop.root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not _some_chunks_are_done(shop):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "interrupted, state intact; run it again to go on" in said
    assert "Traceback" not in said
    assert shop.store.read(StreamId("shop", "orders")).lease is None
    assert 0 < shop.mark().extracted.rows_total < 20000
    shop.pipeline(APPENDED)
    assert run("sync").exit_code == 0
    assert warehouse(shop, "SELECT count(*), count(DISTINCT id) FROM orders") == [(20000, 20000)]


def _some_chunks_are_done(shop: Shop) -> bool:
    mark = shop.store.read(StreamId("shop", "orders")).watermark
    return mark is not None and mark.extracted.rows_total > 0
