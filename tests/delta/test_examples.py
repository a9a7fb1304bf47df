"""The examples do what they say."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from tidegate.cli.root import tidegate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_notebook_of_the_tracker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tracker.py", str(tmp_path / "watermarks")])
    runpy.run_path(str(EXAMPLES / "tracker.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first run: 10 records")
    assert lines[1:3] == ["second run: 0 records", "third run: skipped, its window is left to the next"]
    assert lines[-1].startswith("('job_003',) SUCCESS 5")
    watermarks = spark.read.format("delta").load(str(tmp_path / "watermarks/watermarks"))
    statuses = [row.status for row in watermarks.orderBy("watermark_id").collect()]
    assert statuses == ["SUCCESS", "SUCCESS", "SUCCESS", "READY"]


def test_the_gold_layer(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "delta_gold"
    shutil.copytree(EXAMPLES / "delta_gold", folder)
    config = folder / "config/pipelines/gold.yml"
    config.write_text(config.read_text() + "lag: 0s\n")  # what was committed this second is wanted at once
    silver(folder)
    assert run(folder, "delta", "run", "-p", "gold").exit_code == 0
    assert run(folder, "delta", "run", "-p", "copies").exit_code == 0
    silver(folder, "again")
    for name in ("gold", "copies"):
        done = run(folder, "delta", "run", "-p", name)
        assert done.exit_code == 0, done.output
    orders = DeltaTable(folder / "gold/orders").to_pyarrow_table(columns=["id", "amount"]).to_pylist()
    assert sorted((row["id"], row["amount"]) for row in orders) == [(1, 2.0), (3, 3.0), (4, 4.0)]
    kept = DeltaTable(folder / "copies/orders").to_pyarrow_table(columns=["id", "_deleted_at"]).to_pylist()
    assert {row["id"] for row in kept if row["_deleted_at"] is not None} == {2}
    assert DeltaTable(folder / "gold/signups").to_pyarrow_table().num_rows == 2
    assert run(folder, "delta", "check", "-p", "gold").exit_code == 0


def silver(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "silver.py", *words], cwd=folder, check=True)


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(tidegate, ["--project", str(folder), *words])
