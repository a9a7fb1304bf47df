from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from click.testing import CliRunner, Result

from tidegate.cli.demo.proof import compare
from tidegate.cli.demo.story import command_in
from tidegate.cli.root import tidegate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def demo(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(tidegate, ["demo", "--dir", str(folder), *args])


def test_the_demo_tells_its_story_to_the_end_and_again(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / ".tidegate-demo").touch()
    (tmp_path / "shop.db").write_text("of an earlier demo")
    result = demo(tmp_path, "--rows", "3000")
    assert result.exit_code == 0, result.output
    assert "gets SIGKILL after" in result.stdout
    assert "chunks were safe and were not read again" in result.stdout
    assert result.stdout.count(" yes\n") == 4
    assert all(sign.isprintable() or sign == "\n" for sign in result.output)


def test_what_the_demo_says_to_try_next_runs_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV", "uv")
    shown = subprocess.run([command_in(tmp_path), "--version"], cwd=tmp_path, capture_output=True, check=True)
    assert shown.stdout.startswith(b"tidegate")
    monkeypatch.delenv("UV")
    assert command_in(tmp_path) == "tidegate"


def test_the_demo_writes_into_no_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    result = demo(tmp_path)
    assert result.exit_code == 2
    assert "--dir" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "spoil",
    [
        "DELETE FROM t WHERE id = 2",
        "UPDATE t SET note = 'x' WHERE id = 2",
        "UPDATE t SET note = NULL WHERE id = 3",
        "UPDATE t SET amount = 2.51 WHERE id = 2",
        "UPDATE t SET made = made + INTERVAL 1 SECOND WHERE id = 1",
        "INSERT INTO t SELECT * FROM t WHERE id = 1",
    ],
)
def test_the_proof_finds_any_difference(tmp_path: Path, spoil: str) -> None:
    rows = (
        "(1, 1.00, 'a', '2025-01-01 10:00:00'), (2, 2.50, NULL, '2025-01-01 10:00:01'), "
        "(3, 100, '', '2025-01-02 00:00:00')"
    )
    with closing(sqlite3.connect(tmp_path / "a")) as shop, shop:
        shop.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, amount DECIMAL(10, 2), note TEXT, made TIMESTAMP)"
        )
        shop.execute(f"INSERT INTO t VALUES {rows}")
    with duckdb.connect(str(tmp_path / "b")) as warehouse:
        warehouse.execute("CREATE TABLE t (id BIGINT, amount DECIMAL(10, 2), note TEXT, made TIMESTAMP)")
        warehouse.execute(f"INSERT INTO t VALUES {rows}")
    [same] = compare(tmp_path / "a", tmp_path / "b", {"t": "id"})
    assert same.agree
    with duckdb.connect(str(tmp_path / "b")) as warehouse:
        warehouse.execute(spoil)
    [other] = compare(tmp_path / "a", tmp_path / "b", {"t": "id"})
    assert not other.agree
