"""A sync of a test's project, in whatever process it is called."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tidegate.config.project import Project
from tidegate.spark.session import LazySession
from tidegate.sync.library import open_parts
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Progress
from tidegate.sync.result import SyncResult


def sync_place(
    folder: Path,
    request: Request,
    session: LazySession,
    progress: Progress,
    alter: Callable[[Parts], None] = lambda _: None,
    parts: Parts | None = None,
) -> SyncResult:
    """Sync the project in a folder, with its own parts or these; `alter` may change some of them."""
    pipeline = Project.load(folder).pipeline("shop")
    parts = parts or open_parts(pipeline, command="test")
    alter(parts)
    try:
        return sync_pipeline(
            pipeline,
            request,
            parts=parts,
            session=session,
            progress=progress,
            clock=lambda: datetime.now(UTC),
            token=lambda: secrets.token_hex(4),
        )
    finally:
        parts.close()
