"""A temporary table's job in a test's project, in whatever process it is called.

python -m tests.system.errands PROJECT '{"part": "eraser", "method": "erase", "nth": 2, "moment": "after"}'
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.crash.victim import strike
from tidegate.config.project import Project
from tidegate.sources.erasing import Eraser
from tidegate.spark.session import LazySession
from tidegate.sync.download import Download
from tidegate.sync.errand import Errand, JobResult
from tidegate.sync.library import open_parts, open_session
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Silence
from tidegate.sync.result import SyncResult
from tidegate.sync.temporary import temporary_of
from tidegate.testing.faults import Fault, Faulty, Moment


def now() -> datetime:
    return datetime.now(UTC)


def token() -> str:
    return secrets.token_hex(4)


def run_job(
    folder: Path,
    session: LazySession,
    *,
    download: Download | None = None,
    around: Callable[[Eraser], Any] = lambda eraser: eraser,
    synced: Callable[[], None] = lambda: None,
    parts: Parts | None = None,
) -> JobResult:
    """Run the job of a project; `around` wraps what deletes rows, `synced` is called behind the sync."""
    pipeline = Project.load(folder).pipeline("shop")
    parts = parts or open_parts(pipeline, command="test")

    def sync(request: Request) -> SyncResult:
        result = sync_pipeline(
            pipeline, request, parts=parts, session=session, progress=Silence(), clock=now, token=token
        )
        synced()
        return result

    try:
        temporary = temporary_of(pipeline, parts, now, token)
        opened = temporary.eraser
        wrapped = replace(temporary, eraser=lambda: around(opened()))
        result = JobResult("shop", now())
        Errand(wrapped, download, sync, lambda _: None).run((), result)
        return result
    finally:
        parts.close()


def main(folder: str, described: str) -> None:
    plan = json.loads(described)
    project = Project.load(Path(folder))
    parts = open_parts(project.pipeline("shop"), command="test")
    around: Callable[[Eraser], Any] = lambda eraser: eraser  # noqa: E731
    if plan["part"] == "eraser":
        fault = Fault(plan["method"], plan.get("nth", 1), Moment(plan.get("moment", "before")))
        around = lambda eraser: Faulty(eraser, fault)  # noqa: E731
    else:
        strike(parts, plan)
    run_job(Path(folder), open_session(project), around=around, parts=parts)


if __name__ == "__main__":
    main(*sys.argv[1:])
