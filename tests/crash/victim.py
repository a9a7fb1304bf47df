"""A sync in a process of its own, with one of its parts set to kill it.

python -m tests.crash.victim PROJECT '{"part": "store", "method": "write", "nth": 3, "moment": "after"}'
"""

from __future__ import annotations

import json
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

from tidegate.config.project import Project
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.sync.library import open_parts
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Silence
from tidegate.testing.faults import Fault, Faulty, Moment


def main(folder: str, described: str) -> int:
    plan = json.loads(described)
    fault = Fault(
        plan["method"],
        plan.get("nth", 1),
        Moment(plan.get("moment", "before")),
        plan.get("event"),
        plan.get("worker", False),
    )
    project = Project.load(Path(folder))
    pipeline = project.pipeline("shop")
    parts = open_parts(pipeline, command="test")
    match plan["part"]:
        case "store":
            parts.store = Faulty(parts.store, fault)
        case "staging":
            parts.staging = Faulty(parts.staging, fault)
        case "target":
            open_target = parts.open_target
            parts.open_target = lambda: Faulty(open_target(), fault)
        case "source":
            open_source = parts.open_source
            parts.open_source = lambda: Faulty(open_source(), fault)
        case unknown:
            raise ValueError(f"no part is called {unknown}")
    result = sync_pipeline(
        pipeline,
        Request(),
        parts=parts,
        session=LazySession(SparkSettings(master="local[2]")),
        progress=Silence(),
        clock=lambda: datetime.now(UTC),
        token=lambda: secrets.token_hex(4),
    )
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
