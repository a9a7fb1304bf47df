"""How long planning takes for many upstreams: `python -m bench.plans [--upstreams 100,1000]`.

Every upstream is a Delta table with a few commits and a change data feed. Planned are a first run, the next
one with news in every table, and one that finds nothing new; marks are kept in Delta tables. The goals are
about one second for 100 upstreams and less than ten for 1,000.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tidegate.delta.library import DeltaPlans

GOALS = {100: 1.2, 1000: 10.0}
_ROWS = pa.table({"id": [1, 2, 3], "state": ["a", "b", "c"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstreams", default="100,1000")
    for count in (int(text) for text in parser.parse_args().upstreams.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(Path(folder), count)))


def measured(folder: Path, count: int) -> dict[str, Any]:
    upstreams = {f"silver.t{number:04}": folder / f"t{number:04}" for number in range(count)}
    _write_all(folder, list(upstreams.values()))
    with DeltaPlans("bench", upstreams, store=f"delta://{folder}/state") as plans:
        seconds = {}
        seconds["first"], plan = timed(plans.prepare)
        seconds["complete"], _ = timed(lambda: plans.complete(plan.run_id))
        for place in upstreams.values():
            _commit(place, 3)
        seconds["next"], plan = timed(plans.prepare)
        assert len(plan.work) == count
        plans.complete(plan.run_id)
        seconds["nothing_new"], plan = timed(plans.prepare)
        assert plan.run_id is None
    slowest = max(seconds["first"], seconds["next"], seconds["nothing_new"])
    return {"upstreams": count, "seconds": seconds, "goal": GOALS.get(count), "slowest": round(slowest, 3)}


def _write_all(folder: Path, places: list[Path]) -> None:
    """One table is written, and the others are copies of it with ids of their own: that is quicker."""
    model = folder / "model"
    write_deltalake(model, _ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    for _ in range(2):
        write_deltalake(model, _ROWS, mode="append")
    first = model / "_delta_log" / f"{0:020}.json"
    table_id = next(
        line["metaData"]["id"]
        for line in map(json.loads, first.read_text().splitlines())
        if "metaData" in line
    )
    for place in places:
        shutil.copytree(model, place)
        copied = place / "_delta_log" / first.name
        copied.write_text(copied.read_text().replace(table_id, str(uuid.uuid4())))


def _commit(place: Path, version: int) -> None:
    last = place / "_delta_log" / f"{version - 1:020}.json"
    (place / "_delta_log" / f"{version:020}.json").write_text(last.read_text())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return round(time.perf_counter() - began, 3), result


if __name__ == "__main__":
    main()
