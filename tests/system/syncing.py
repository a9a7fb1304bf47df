"""A sync of a test's project, in whatever process it is called."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tidegate.config.project import Project
from tidegate.core.watermark import StreamId
from tidegate.spark.session import LazySession
from tidegate.sync.library import open_parts
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Progress, Silence
from tidegate.sync.result import SyncResult


@dataclass
class Notes(Silence):
    """Remembers what a sync had to say."""

    texts: list[str] = field(default_factory=list)

    def note(self, stream: StreamId, text: str) -> None:  # noqa: ARG002 - the contract's signature
        self.texts.append(text)


def now() -> datetime:
    return datetime.now(UTC)


def sync_place(
    folder: Path,
    request: Request,
    session: LazySession,
    progress: Progress,
    parts: Parts | None = None,
    *,
    clock: Callable[[], datetime] = now,
) -> SyncResult:
    """Sync the project in a folder, with its own parts or with these."""
    pipeline = Project.load(folder).pipeline("shop")
    parts = parts or own_parts(folder)
    try:
        return sync_pipeline(
            pipeline,
            request,
            parts=parts,
            session=session,
            progress=progress,
            clock=clock,
            token=lambda: secrets.token_hex(4),
        )
    finally:
        parts.close()


def own_parts(folder: Path) -> Parts:
    return open_parts(Project.load(folder).pipeline("shop"), command="test")
