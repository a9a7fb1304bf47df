"""What schedulers start is found again, and never started twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.integrations import executions
from tidegate.integrations.executions import Execution, Sync, folder_name, start

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

folder, words = Path(sys.argv[1]), sys.argv[2:]
with (folder / "starts").open("a") as starts:
    print(os.getpid(), file=starts, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print("syncing", flush=True)
while not (folder / "go").exists():
    time.sleep(0.02)
result = {"execution_id": words[words.index("--execution-id") + 1], "words": words}
Path(words[words.index("--json-output") + 1]).write_text(json.dumps(result))
sys.exit(int((folder / "go").read_text()))
"""


@pytest.fixture
def sync(tmp_path: Path) -> Sync:
    """A program in Tidegate's place that waits until it may go on, and ends as it is told."""
    (tmp_path / "program.py").write_text(PROGRAM)
    program = (sys.executable, str(tmp_path / "program.py"), str(tmp_path))
    return Sync("/srv/shop", "shop", ("orders",), ("--extract-only",), program)


def started(folder: Path) -> list[int]:
    path = folder / "starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def said(execution: Execution) -> str:
    path = execution.folder / "log"
    return path.read_text() if path.exists() else ""


def until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_execution_is_started_once_and_its_result_is_kept(tmp_path: Path, sync: Sync) -> None:
    first = start(sync, "run 1/try", tmp_path / "executions")
    until(lambda: started(tmp_path))
    assert first.alive
    assert first.outcome() is None
    again = start(sync, "run 1/try", tmp_path / "executions")  # the scheduler has forgotten the first one
    (tmp_path / "go").write_text("0")
    outcome = again.wait(0.02)
    assert (outcome.exit_code, outcome.result["execution_id"]) == (0, "run 1/try")
    assert outcome.result["words"][:8] == [
        "--project", "/srv/shop", "sync", "-p", "shop", "-t", "orders", "--extract-only",
    ]  # fmt: skip
    assert "syncing" in outcome.log
    assert start(sync, "run 1/try", tmp_path / "executions").outcome() == outcome
    assert len(started(tmp_path)) == 1


def test_one_that_failed_is_started_again(tmp_path: Path, sync: Sync) -> None:
    (tmp_path / "go").write_text("5")
    outcome = start(sync, "a", tmp_path).wait(0.02)
    assert "exit code 5: cannot connect" in outcome.words
    (tmp_path / "go").write_text("0")
    assert start(sync, "a", tmp_path).wait(0.02).exit_code == 0
    assert len(started(tmp_path)) == 2


def test_what_the_scheduler_knows_to_be_done_is_done_again_when_it_asks(tmp_path: Path, sync: Sync) -> None:
    """Somebody has cleared a task that had succeeded."""
    (tmp_path / "go").write_text("0")
    start(sync, "a", tmp_path).wait(0.02)
    again = start(sync, "a", tmp_path)  # the attempt died before it could say so
    again.tell()
    assert len(started(tmp_path)) == 1
    assert start(sync, "a", tmp_path).wait(0.02).exit_code == 0
    assert len(started(tmp_path)) == 2


def test_one_that_died_says_nothing_and_is_started_again(
    tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = start(sync, "a", tmp_path)
    until(lambda: started(tmp_path))
    keeper = json.loads((execution.folder / "command.json").read_text())["pid"]
    for process in (keeper, *started(tmp_path)):
        os.kill(process, signal.SIGKILL)
    assert execution.alive  # as far as anybody can tell
    monkeypatch.setattr(executions, "DEAD_AFTER_SECONDS", 0.0)
    outcome = execution.outcome()
    assert outcome is not None
    assert outcome.exit_code is None
    assert "died" in outcome.words
    monkeypatch.undo()
    os.utime(execution.folder / "alive", (0, 0))
    (tmp_path / "go").write_text("0")
    assert start(sync, "a", tmp_path).wait(0.02).exit_code == 0


def test_those_that_ended_long_ago_are_forgotten(tmp_path: Path, sync: Sync) -> None:
    kept = tmp_path / "executions"
    (tmp_path / "go").write_text("1")
    old, recent = start(sync, "old", kept), start(sync, "recent", kept)
    for execution in (old, recent):
        execution.wait(0.02)
    os.utime(old.folder / "exit", (0, 0))
    (kept / "mine").mkdir()  # somebody else's
    start(sync, "new", kept).wait(0.02)
    assert not old.folder.exists()
    assert recent.outcome() is not None
    assert (kept / "mine").exists()
    os.utime(recent.folder / "exit", (0, 0))
    assert start(sync, "recent", kept).wait(0.02).exit_code == 1  # begun anew, like any that failed


def test_one_that_is_stopped_is_asked_to_end(tmp_path: Path, sync: Sync) -> None:
    execution = start(sync, "a", tmp_path)
    until(lambda: "syncing" in said(execution))
    execution.stop()
    assert execution.wait(0.02).exit_code == 130


def test_a_program_that_is_not_there_is_a_wrong_configuration(tmp_path: Path) -> None:
    outcome = start(Sync("p", "shop", program=("/no/such/tidegate",)), "a", tmp_path).wait(0.02)
    assert outcome.exit_code == executions.WRONGLY_CONFIGURED
    assert "/no/such/tidegate cannot be started" in outcome.words


def test_names_of_folders_are_readable_and_never_the_same() -> None:
    assert folder_name("airflow.shop.sync.manual__2025-01-01T00:00:00+00:00").startswith("airflow.shop.sync.")
    assert folder_name("a/b") != folder_name("a:b")
    assert Execution(Path("x") / folder_name("../../etc")).folder.parent == Path("x")
