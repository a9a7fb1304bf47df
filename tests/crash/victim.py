"""A sync in a process of its own, with one of its parts set to kill or stop it.

python -m tests.crash.victim PROJECT '{"part": "store", "method": "write", "nth": 3, "moment": "after"}'
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.system.syncing import own_parts, sync_place
from tidegate.config.project import Project
from tidegate.sync.library import open_session
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, Scope
from tidegate.sync.progress import Silence
from tidegate.testing.faults import Fault, Faulty, Moment


def main(folder: str, described: str) -> int:
    plan = json.loads(described)
    parts = own_parts(Path(folder))
    strike(parts, plan)
    session = open_session(Project.load(Path(folder)))
    request = Request(scope=Scope(plan.get("scope", Scope.BOTH)))
    result = sync_place(Path(folder), request, session, Silence(), parts)
    print(*[table.error for table in result.tables.values() if table.error])
    return result.exit_code


def strike(parts: Parts, plan: dict[str, Any]) -> None:
    """Put the fault that is planned into one of the parts."""
    fault = Fault(
        plan["method"],
        plan.get("nth", 1),
        Moment(plan.get("moment", "before")),
        plan.get("event"),
        plan.get("worker", False),
        signal=plan.get("signal", signal.SIGKILL),
    )
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
