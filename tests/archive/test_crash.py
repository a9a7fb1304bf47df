"""A cycle is killed at every step, and the next one makes the archive whole."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.archive.conftest import Kill, Site
from tidegate.archive.contract import Share
from tidegate.archive.results import CycleResult
from tidegate.core.errors import Conflict

STEPS: dict[str, dict[str, Any]] = {
    "after taking the lease": {"tool": "store", "method": "acquire", "moment": "after"},
    "after reading the mark": {"tool": "mark", "method": "read", "moment": "after"},
    "after freezing the ceiling": {"tool": "table", "method": "freeze", "moment": "after"},
    "before the window is persisted": {"tool": "store", "method": "write"},
    "after the window is persisted": {"tool": "store", "method": "write", "moment": "after"},
    "while it is listed": {"tool": "place", "method": "publish", "moment": "after"},
    "after it is listed": {"tool": "place", "method": "put", "moment": "after"},
    "before the first shard has a name": {"tool": "place", "method": "publish", "nth": 2},
    "after the first shard has a name": {"tool": "place", "method": "publish", "nth": 2, "moment": "after"},
    "between two shards": {"tool": "place", "method": "publish", "nth": 3, "moment": "after"},
    "before a part's receipt": {"tool": "place", "method": "jot"},
    "after a part's receipt": {"tool": "place", "method": "jot", "moment": "after"},
    "before the manifest": {"tool": "place", "method": "put_new", "nth": 2},
    "after the manifest": {"tool": "place", "method": "put_new", "nth": 2, "moment": "after"},
    "before the window counts as packed": {"tool": "store", "method": "write", "event": "extracted"},
    "between packing and the mark": {"tool": "mark", "method": "move"},
    "between the mark and its record": {"tool": "mark", "method": "move", "moment": "after"},
    "after its record": {"tool": "store", "method": "write", "event": "loaded", "moment": "after"},
    "while cleaning up": {"tool": "place", "method": "delete"},
    "before the lease is given back": {"tool": "store", "method": "release", "nth": 2},
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_cycle_killed_at_any_step_is_made_whole_by_the_next(
    site: Site, kill: Kill, step: dict[str, Any]
) -> None:
    site.add(60)

    assert kill(site, step) == -signal.SIGKILL
    site.cycle()

    site.demand_complete()
    windows = len({event["run_id"] for event in _events(site, "loaded")})
    assert site.updates("des_archive_config", windows) == windows
    assert site.updates("files") == 0


def _events(site: Site, kind: str) -> list[dict[str, Any]]:
    history = site.folder / "shards/_tidegate/state/history/archive~files.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return [line["event"] for line in lines if line["event"]["kind"] == kind]


@pytest.mark.parametrize("kept", [0, 50], ids=["all of it", "but for its beginning"])
def test_a_receipt_that_a_power_cut_has_torn_is_none(site: Site, kill: Kill, kept: int) -> None:
    site.add(60)
    assert kill(site, {"tool": "place", "method": "jot", "nth": 2, "moment": "after"}) == -signal.SIGKILL
    [torn, _] = sorted((site.folder / "shards/_tidegate/windows").glob("*/parts/*.json"))
    torn.write_bytes(torn.read_bytes()[:kept])

    if kept:  # only whoever reads it finds out
        with pytest.raises(Conflict, match="have no receipt any more"):
            site.cycle()
    site.cycle()

    site.demand_complete()


def test_the_share_of_a_worker_that_died_is_taken_over(site: Site, kill: Kill) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(90)
    step = {"tool": "place", "method": "publish", "nth": 2, "moment": "after", "share": [1, 2]}

    assert kill(site, step) == -signal.SIGKILL
    site.cycle(Share(0, 2))

    site.demand_complete()
    assert any("taking over share 1 of 2" in note for note in site.watching.notes)


BESIDE = (
    "while it is listed",
    "between two shards",
    "before a part's receipt",
    "after the manifest",
    "between packing and the mark",
    "between the mark and its record",
)


@pytest.mark.parametrize("name", BESIDE)
def test_a_worker_killed_while_another_works_at_the_same_window(site: Site, kill: Kill, name: str) -> None:
    site.configure(packer={"n_bits": 2})
    site.add(60)
    other: list[CycleResult] = []
    with ThreadPoolExecutor(1) as beside:
        working = beside.submit(lambda: other.append(site.cycle(Share(0, 2))))
        code = kill(site, {**STEPS[name], "share": [1, 2]})
        working.result()

    assert code in (0, -signal.SIGKILL)  # the other may have been there first
    site.cycle(Share(1, 2))
    site.demand_complete()
    windows = len({event["run_id"] for event in _events(site, "loaded")})
    assert site.updates("des_archive_config", windows) == windows
