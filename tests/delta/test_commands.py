"""`tidegate delta` as somebody types it; everything here but `run` needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.delta.conftest import CONNECTIONS, PIPELINE, Lake, order
from tests.receiving import receiving
from tidegate.cli.root import tidegate


def call(lake: Lake, *words: str) -> Result:
    return CliRunner().invoke(tidegate, ["--project", str(lake.root), "delta", *words])


def answer(lake: Lake, *words: str, code: int = 0) -> Any:
    done = call(lake, *words, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_a_plan_is_made_shown_completed_and_remembered(lake: Lake) -> None:
    lake.append([order(1)])
    made = answer(lake, "plan", "-p", "gold")
    assert (made["pipeline"], made["status"]) == ("gold", "PLANNED")
    [upstream] = made["upstreams"]
    assert {name: upstream[name] for name in ("name", "start_version", "end_version", "status")} == {
        "name": "silver.orders",
        "start_version": 0,
        "end_version": 0,
        "status": "PLANNED",
    }
    assert upstream["schema_version"]
    assert upstream["error_message"] is None
    assert answer(lake, "plan") == made
    assert answer(lake, "show") == made
    done = answer(lake, "complete", "--run", made["run_id"], "--records", "1")
    assert (done["run_id"], done["status"]) == (made["run_id"], "COMPLETED")
    assert answer(lake, "plan")["run_id"] is None
    assert [line["kind"] for line in answer(lake, "history")] == ["planned", "completed"]
    assert len(answer(lake, "history", "--limit", "1")) == 1


def test_planning_and_tracking_import_no_spark(lake: Lake) -> None:
    lake.append([order(1)])
    code = (
        "import sys; from tidegate import WatermarkTracker; from tidegate.cli import main\n"
        "with WatermarkTracker(f'delta://{sys.argv[1]}/state') as tracker, tracker.run('wos'): pass\n"
        "sys.argv[1:] = ['--project', sys.argv[1], 'delta', 'plan', '--json']\n"
        "try: main()\n"
        "finally: print('pyspark' in sys.modules, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, str(lake.root)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
    assert json.loads(done.stdout)["status"] == "PLANNED"


def test_a_plan_fails_and_is_retried(lake: Lake) -> None:
    lake.append([order(1)])
    answer(lake, "plan")
    failed = answer(lake, "fail", "--error", "the disk was full")
    assert failed["upstreams"][0]["error_message"] == "the disk was full"
    again = answer(lake, "retry")
    assert (again["status"], again["run_id"]) == ("PLANNED", failed["run_id"])
    assert again["upstreams"][0]["error_message"] == "the disk was full"


def test_people_read_tables_and_reasons(lake: Lake) -> None:
    nothing = call(lake, "show")
    assert (nothing.exit_code, nothing.output.strip()) == (0, "nothing was ever planned")
    lake.append([order(1)])
    shown = call(lake, "plan")
    assert shown.exit_code == 0
    assert "silver.orders" in shown.output
    assert "0 to 0" in shown.output
    call(lake, "fail", "--error", "the disk was full")
    assert "the disk was full" in call(lake, "history").output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plan", "-p", "silver"], 2, "there is no pipeline `silver`"),
        (["complete"], 2, "no plan is open"),
        (["complete", "--run", "plan-x"], 2, "there is no plan plan-x"),
        (["retry"], 2, "no plan has failed"),
        (["plan", "--rebaseline", "orders"], 2, "has no upstream `orders`"),
        (["plan"], 1, "there is no Delta table"),
    ],
)
def test_a_mistake_is_answered_in_words(lake: Lake, words: list[str], code: int, said: str) -> None:
    done = call(lake, *words)
    assert done.exit_code == code
    assert said in done.output
    assert "Traceback" not in done.output


def other(lake: Lake, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(tidegate, ["--project", str(lake.root), *words])
    assert done.exit_code == code, done.output
    return done.output


def test_a_sync_leaves_pipelines_of_kind_delta_alone(lake: Lake) -> None:
    assert "gold" in other(lake, "config", "list-pipelines")
    assert "is a pipeline of kind delta" in other(lake, "sync", "-p", "gold", code=2)


def test_status_and_marks_show_upstreams_too(lake: Lake) -> None:
    lake.now = datetime.now(UTC)
    for number in range(3):
        lake.append([order(number)])
    [before] = json.loads(other(lake, "status", "--json"))["tables"]
    assert (before["pipeline"], before["table"], before["extracted"], before["status"]) == (
        "gold",
        "silver.orders",
        None,
        "never",
    )
    plans = lake.plans()
    plans.complete(plans.prepare().run_id, records=3)
    lake.append([order(3)])
    with plans.processing():
        [held] = json.loads(other(lake, "status", "--json"))["tables"]
        assert (held["extracted"], held["status"]) == ("2", "running")
        assert "tidegate.DeltaPlans" in held["held_by"]
        assert "silver.orders" in other(lake, "status", "-p", "gold", "-t", "silver.*")
    mark = json.loads(other(lake, "watermark", "get", "-t", "silver.orders", "--json"))
    assert (mark["extracted"]["id"], mark["extracted"]["rows_total"]) == (3, 3)
    assert "3 rows, up to 2" in other(lake, "watermark", "history", "-t", "silver.orders")
    assert "silver.orders" in other(lake, "watermark", "list")
    assert "1 table checked, nothing wrong" in other(lake, "watermark", "check")


def test_marks_of_upstreams_are_moved_by_hand(lake: Lake) -> None:
    plans = lake.plans()
    runs = []
    for number in range(3):
        lake.append([order(number)])
        runs.append(plans.prepare().run_id)
        plans.complete(runs[-1])
    chosen = ("-p", "gold", "-t", "silver.orders")
    saved = lake.root / "marks.json"
    other(lake, "watermark", "export", str(saved), "--all")
    said = other(lake, "watermark", "rollback", *chosen, "--to", str(runs[0]), "--reason", "a test")
    assert "from version 2 to version 0" in said
    assert answer(lake, "plan")["upstreams"][0]["start_version"] == 1
    other(lake, "watermark", "set", *chosen, "--id", "1")
    assert answer(lake, "plan")["upstreams"][0]["start_version"] == 2
    other(lake, "watermark", "reset", *chosen, "--yes")
    assert answer(lake, "plan")["upstreams"][0]["reads"] == "snapshot"
    other(lake, "watermark", "import", str(saved), "--all", "--yes")
    assert plans.load_checkpoints() == {"silver.orders": 2}
    assert "versions of a Delta table" in other(
        lake, "watermark", "set", *chosen, "--timestamp", "2025-01-01", code=2
    )
    with plans.processing():
        assert "is held by" in other(lake, "watermark", "set", *chosen, "--id", "1", code=3)


# --- check -------------------------------------------------------------------------


def test_all_is_well_as_long_as_plans_are_completed(lake: Lake) -> None:
    lake.configure(PIPELINE + "check: {missing_after: 1h}\n")
    lake.append([order(1)])
    lake.now = datetime.now(UTC)
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    done = call(lake, "check")
    assert (done.exit_code, done.output.strip()) == (0, "all is well")


def test_stuck_plans_missing_runs_and_failures_in_a_row_are_found(lake: Lake) -> None:
    lake.configure(PIPELINE + "check: {stuck_after: 1h, missing_after: 1d, failures: 2}\n")
    lake.append([order(1)])
    lake.now = datetime.now(UTC) - timedelta(days=3)
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    lake.append([order(2)])
    run_id = plans.prepare().run_id
    for _ in range(2):
        plans.fail(run_id, "the disk was full")
        plans.retry()
    metrics = lake.root / "delta.prom"
    found = answer(lake, "check", "--textfile", str(metrics), code=1)
    assert [(item["upstream"], item["kind"]) for item in found["problems"]] == [
        ("silver.orders", "stuck"),
        ("silver.orders", "missing"),
        ("silver.orders", "failure"),
    ]
    assert "2 times in a row, the last time with: the disk was full" in found["problems"][2]["message"]
    written = metrics.read_text()
    assert 'tidegate_delta_failures_in_a_row{pipeline="gold",upstream="silver.orders"} 2' in written
    assert 'tidegate_delta_trouble{pipeline="gold",upstream="silver.orders"} 3' in written


def test_whoever_is_to_be_told_is_told_once_and_again_when_it_is_over(lake: Lake) -> None:
    with receiving() as receiver:
        told = f"type: webhook, url: '{receiver.url}', on: [stuck, recovery], timeout: 1m, max_time: 1m"
        alerts = f"alerts: {{ops: {{{told}}}}}\n"
        lake.configure(PIPELINE + "check: {stuck_after: 1h}\n", CONNECTIONS + alerts)
        lake.append([order(1)])
        lake.now = datetime.now(UTC) - timedelta(days=3)
        plans = lake.plans()
        run_id = plans.prepare().run_id
        assert [call(lake, "check").exit_code for _ in range(2)] == [1, 1]
        plans.complete(run_id)
        assert call(lake, "check").exit_code == 0
        assert receiver.alerts == [("began", "stuck", "silver.orders"), ("over", "stuck", "silver.orders")]
