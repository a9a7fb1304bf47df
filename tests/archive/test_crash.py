"""A cycle is killed at every step, and the next one makes the archive whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.archive.conftest import Site
from tidegate.archive.cycle import Share

STEPS: dict[str, dict[str, Any]] = {
    "after taking the lease": {"tool": "store", "method": "acquire", "moment": "after"},
    "after reading the mark": {"tool": "mark", "method": "read", "moment": "after"},
    "after freezing the ceiling": {"tool": "table", "method": "freeze", "moment": "after"},
    "before the window is persisted": {"tool": "store", "method": "write"},
    "after the window is persisted": {"tool": "store", "method": "write", "moment": "after"},
    "while it is listed": {"tool": "place", "method": "put", "moment": "after"},
    "after it is listed": {"tool": "place", "method": "put", "nth": 2, "moment": "after"},
    "before the first shard has a name": {"tool": "place", "method": "publish"},
    "after the first shard has a name": {"tool": "place", "method": "publish", "moment": "after"},
    "between two shards": {"tool": "place", "method": "publish", "nth": 2, "moment": "after"},
    "before a part's receipt": {"tool": "place", "method": "put_new", "nth": 2},
    "after a part's receipt": {"tool": "place", "method": "put_new", "nth": 2, "moment": "after"},
    "before the manifest": {"tool": "place", "method": "put_new", "nth": 4},
    "after the manifest": {"tool": "place", "method": "put_new", "nth": 4, "moment": "after"},
    "before the window counts as packed": {"tool": "store", "method": "write", "event": "extracted"},
    "between packing and the mark": {"tool": "mark", "method": "move"},
    "between the mark and its record": {"tool": "mark", "method": "move", "moment": "after"},
    "after its record": {"tool": "store", "method": "write", "event": "loaded", "moment": "after"},
    "while cleaning up": {"tool": "place", "method": "delete"},
    "before the lease is given back": {"tool": "store", "method": "release", "nth": 2},
}


Kill = Callable[[Site, dict[str, Any]], int]


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """The exit code of a cycle with a fault; minus nine when it was killed."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.archive.victim"]
    with subprocess.Popen(command, cwd=root, stdin=PIPE, stdout=PIPE, text=True) as victims:
        assert victims.stdin is not None
        assert victims.stdout is not None

        def killed(site: Site, step: dict[str, Any]) -> int:
            print(json.dumps([str(site.config_file), step]), file=victims.stdin, flush=True)
            return int(victims.stdout.readline())  # type: ignore[union-attr]

        yield killed
        victims.stdin.close()


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_cycle_killed_at_any_step_is_made_whole_by_the_next(
    site: Site, kill: Kill, step: dict[str, Any]
) -> None:
    site.add(60)

    assert kill(site, step) == -signal.SIGKILL
    site.cycle()

    site.demand_complete()
    assert site.updates("files") == 0
    windows = len({event["run_id"] for event in _events(site, "loaded")})
    assert site.updates("des_archive_config", windows) == windows


def _events(site: Site, kind: str) -> list[dict[str, Any]]:
    history = site.folder / "shards/_tidegate/state/history/archive~files.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return [line["event"] for line in lines if line["event"]["kind"] == kind]


def test_the_share_of_a_worker_that_died_is_taken_over(site: Site, kill: Kill) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(90)
    step = {"tool": "place", "method": "publish", "nth": 2, "moment": "after", "share": [1, 2]}

    assert kill(site, step) == -signal.SIGKILL
    site.cycle(Share(0, 2))

    site.demand_complete()
    assert any("taking over share 1 of 2" in note for note in site.watching.notes)
