"""Airflow and Dagster, as they come from PyPI, sync a pipeline by the examples that we ship."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import orchestrators

EXAMPLES = Path(__file__).parents[2] / "examples/orchestration"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source in which there is nothing to move, so that nobody waits for Spark; one table is missing."""
    folder = tmp_path_factory.mktemp("shop")
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    connections = {
        "sources": {"shop": {"type": "sqlite", "path": "shop.db"}},
        "targets": {"warehouse": {"type": "duckdb", "path": "warehouse.duckdb"}},
    }
    pipelines = folder / "config" / "pipelines"
    pipelines.mkdir(parents=True)
    (folder / "config" / "connections.yml").write_text(yaml.safe_dump({"connections": connections}))
    for name, tables in {"shop": ["orders"], "both": ["orders", "customers"]}.items():
        described = {"name": name, "source": "shop", "target": "warehouse"}
        content = {"pipeline": described, "tables": {table: {"cdc_id_column": "id"} for table in tables}}
        (pipelines / f"{name}.yml").write_text(yaml.safe_dump(content))
    return folder


def example(name: str, project: Path) -> str:
    """An example with the paths of this machine."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").replace("/srv/shop", str(project))
    program = ", ".join(f'"{word}"' for word in (sys.executable, "-m", "tidegate.cli"))
    return text.replace('"/opt/tidegate/bin/tidegate"', program)


def run(script: str, home: Path, *files: Path) -> Any:
    done = subprocess.run(
        [orchestrators.python(), HERE / script, *files],
        env=orchestrators.environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def airflow(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How three DAGs ended: ours, one with a worker that waits, and one whose pipeline does not exist."""
    home = tmp_path_factory.mktemp("airflow")
    ours = example("airflow_dag.py", project).replace("deferrable=True", "deferrable=True, poll_seconds=0.2")
    waiting = ours.replace('"shop",\n    schedule', '"waiting",\n    schedule').replace(
        "deferrable=True", "deferrable=False"
    )
    wrong = waiting.replace('"waiting"', '"wrong"').replace('pipeline="shop"', 'pipeline="shpo"')
    (home / "dags").mkdir()
    files = [home / "dags" / f"{name}.py" for name in ("ours", "waiting", "wrong")]
    for file, text in zip(files, (ours, waiting, wrong), strict=True):
        file.write_text(text)
    found: dict[str, Any] = run("airflow_runs.py", home, *files)
    return found


@pytest.mark.parametrize("dag", ["shop", "waiting"])
def test_airflow_hands_on_what_a_sync_did(airflow: dict[str, Any], dag: str) -> None:
    """With a worker that waits, and without."""
    ended = airflow[dag]
    assert ended["state"] == "success"
    assert ended["result"]["status"] == "nothing_new"
    assert ended["result"]["table_results"]["orders"]["rows_loaded"] == 0
    assert ended["result"]["execution_id"] == f"airflow.{dag}.sync_shop.{ended['run_id']}"


def test_a_task_of_airflow_that_was_cleared_syncs_again(airflow: dict[str, Any]) -> None:
    first, again = airflow["waiting"], airflow["waiting"]["cleared"]
    assert (again["state"], again["run_id"]) == ("success", first["run_id"])
    assert again["result"]["execution_id"] == first["result"]["execution_id"]
    assert again["result"]["started_at"] > first["result"]["started_at"]


def test_airflow_does_not_try_again_what_is_wrongly_configured(airflow: dict[str, Any]) -> None:
    assert (airflow["wrong"]["state"], airflow["wrong"]["result"]) == ("failed", None)


def test_dagster_materializes_the_tables_that_were_synced(project: Path, tmp_path: Path) -> None:
    """Of two tables one is missing at the source: the other one is materialized all the same."""
    text = example("dagster_definitions.py", project).replace(
        'pipeline="shop"', 'pipeline="both", name="shop"'
    )
    (tmp_path / "definitions.py").write_text(text)
    found = run("dagster_runs.py", tmp_path, tmp_path / "definitions.py")
    assert not found["success"]
    assert list(found["assets"]) == ["both/orders"]
    figures = found["assets"]["both/orders"]
    assert (figures["status"], figures["rows_loaded"]) == ("nothing_new", 0)
    assert figures["execution_id"] == f"dagster.{found['run_id']}.shop"


# --- Schedulers that only call a command -------------------------------------------


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in EXAMPLES.glob("tidegate-sync.*"):  # with a program and a user that are there
        text = unit.read_text().replace("/opt/tidegate/bin/tidegate", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("User=tidegate", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_workflow_is_one_that_github_takes() -> None:
    tool = Path(sys.executable).parent / "check-jsonschema"
    schema = ["--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run(
        [tool, *schema, EXAMPLES / "github-actions.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def _commands() -> dict[str, str]:
    [cron] = [line for line in (EXAMPLES / "crontab").read_text().splitlines() if line[:1] == "*"]
    unit = (EXAMPLES / "tidegate-sync.service").read_text().splitlines()
    [service] = [line for line in unit if line.startswith("ExecStart=")]
    steps = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())["jobs"]["sync"]["steps"]
    [workflow] = [step["run"] for step in steps if step.get("run", "").startswith("tidegate")]
    return {"cron": cron.split(maxsplit=6)[6], "systemd": service.partition("=")[2], "GitHub": workflow}


@pytest.mark.parametrize("scheduler", ["cron", "systemd", "GitHub"])
def test_the_commands_inside_sync_and_leave_their_result(
    scheduler: str, project: Path, tmp_path: Path
) -> None:
    command = _commands()[scheduler].replace("/srv/shop", str(project)).replace("/opt/tidegate/bin/", "")
    command = command.replace("/var/lib/tidegate", str(tmp_path)).replace("$GITHUB_RUN_ID", "77")
    words = shlex.split(command)
    assert words[0] == "tidegate"
    if scheduler == "GitHub":  # which checks the project out into the folder it runs in
        words[words.index("result.json")] = str(tmp_path / "shop.json")
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", *words[1:]], cwd=project, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "shop.json").read_text())
    assert result["status"] == "nothing_new"
    assert result["execution_id"].startswith("github.77" if scheduler == "GitHub" else "sync_")
