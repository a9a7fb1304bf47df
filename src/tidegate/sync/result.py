"""What a sync did, as a value and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.core.errors import ConnectError, TidegateError, VerificationFailed
from tidegate.core.lossy import Tally
from tidegate.core.secrecy import hidden
from tidegate.core.watermark import Watermark
from tidegate.core.windows import Window


class TableStatus(StrEnum):
    SUCCESS = "success"
    NOTHING_NEW = "nothing_new"
    FAILED = "failed"
    HELD = "held"
    """Another run holds the lease."""


@dataclass(frozen=True)
class TableResult:
    table: str
    status: TableStatus
    rows_extracted: int = 0
    rows_loaded: int = 0
    files_created: int = 0
    bytes: int = 0
    window: Window | None = None
    held_back_seconds: float = 0.0
    held_back_by: str | None = None
    duration_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    schema_changes: tuple[str, ...] = ()
    """What is different about the table's columns since its last run."""
    rows_quarantined: int = 0
    quality: tuple[str, ...] = ()
    """Which of the table's rules its rows break."""
    lossy: Tally = ()
    """Values that became NULL because they did not fit, by column."""
    error: TidegateError | None = None
    before: Watermark | None = None
    after: Watermark | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "rows_extracted": self.rows_extracted,
            "rows_loaded": self.rows_loaded,
            "rows_processed": self.rows_loaded or self.rows_extracted,
            "files_created": self.files_created,
            "bytes": self.bytes,
            "window": {
                "low": str(self.window.low) if self.window and self.window.low else None,
                "high": str(self.window.high) if self.window and self.window.high else None,
            },
            "held_back_seconds": round(self.held_back_seconds, 3),
            "held_back_by": self.held_back_by,
            "duration_seconds": round(self.duration_seconds, 3),
            "notes": list(self.notes),
            "schema_changes": list(self.schema_changes),
            "rows_quarantined": self.rows_quarantined,
            "quality": list(self.quality),
            "lossy": dict(self.lossy),
            "error": hidden(str(self.error)) if self.error else None,
        }


@dataclass(frozen=True)
class SyncResult:
    execution_id: str
    pipeline: str
    tables_requested: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    tables: dict[str, TableResult] = field(default_factory=dict)

    @property
    def status(self) -> str:
        found = {result.status for result in self.tables.values()}
        bad = found & {TableStatus.FAILED, TableStatus.HELD}
        if bad:
            return "failed" if found == bad else "partial"
        return "success" if TableStatus.SUCCESS in found else "nothing_new"

    @property
    def exit_code(self) -> int:
        """1 beats everything but a wholly unreachable server; a held lease counts only if nothing failed."""
        errors = [result.error for result in self.tables.values() if result.status is TableStatus.FAILED]
        if not errors:
            return 3 if any(r.status is TableStatus.HELD for r in self.tables.values()) else 0
        if len(errors) == len(self.tables) and all(isinstance(e, ConnectError) for e in errors):
            return ConnectError.exit_code
        if all(isinstance(e, VerificationFailed) for e in errors):
            return VerificationFailed.exit_code
        codes = {error.exit_code for error in errors if error is not None}
        return codes.pop() if len(codes) == 1 and len(errors) == len(self.tables) else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "execution_id": self.execution_id,
            "status": self.status,
            "pipeline": self.pipeline,
            "tables_requested": list(self.tables_requested),
            "table_results": {name: result.to_json() for name, result in self.tables.items()},
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat(),
            "duration_seconds": round((self.finished_at - self.started_at).total_seconds(), 3),
        }
