"""What a cycle did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.archive.records import Manifest, Problem
from tidegate.core.positions import Position
from tidegate.core.windows import Window


@dataclass(frozen=True)
class CycleResult:
    """What a cycle did."""

    window: Window
    moved: bool
    """Whether the mark moved: not if there is no time between it and the cut-off."""
    files: int = 0
    bytes: int = 0
    stored: int = 0
    shards: int = 0
    already: int = 0
    repeated: int = 0
    skipped: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run_id: str | None = None
    late: bool = False
    held_back_seconds: float = 0.0
    problems: tuple[Problem, ...] = ()

    @property
    def duration_seconds(self) -> float:
        if self.started_at is None or self.finished_at is None:
            return 0.0
        return (self.finished_at - self.started_at).total_seconds()

    def followed_by(self, later: CycleResult) -> CycleResult:
        """Both together, where a window that was left open came before the fresh one."""
        counts = ("files", "bytes", "stored", "shards", "already", "repeated", "skipped")
        return replace(
            later,
            window=Window(self.window.low, later.window.high),
            moved=self.moved or later.moved,
            started_at=self.started_at or later.started_at,
            finished_at=later.finished_at or self.finished_at,
            problems=self.problems + later.problems,
            **{name: getattr(self, name) + getattr(later, name) for name in counts},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": "success" if self.moved or self.late else "nothing_new",
            "late": self.late,
            "window": {"low": _shown(self.window.low), "high": _shown(self.window.high)},
            "files": self.files,
            "bytes": self.bytes,
            "stored_bytes": self.stored,
            "shards": self.shards,
            "already_archived": self.already,
            "repeated": self.repeated,
            "skipped": self.skipped,
            "held_back_seconds": self.held_back_seconds,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "duration_seconds": self.duration_seconds,
        }


def _shown(position: Position | None) -> str | None:
    return str(position) if position else None


def result_of(manifest: Manifest, *, moved: bool) -> CycleResult:
    return CycleResult(
        manifest.window,
        moved=moved,
        files=manifest.files,
        bytes=manifest.bytes,
        stored=manifest.stored,
        shards=len(manifest.shards),
        already=manifest.already,
        repeated=manifest.repeated,
        skipped=manifest.skipped,
        run_id=manifest.run,
        late=manifest.late,
    )
