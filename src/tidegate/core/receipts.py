"""Segments and receipts: what was staged, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.core.lossy import Tally, tally
from tidegate.core.positions import Position
from tidegate.core.quality import Findings
from tidegate.core.windows import Window


@dataclass(frozen=True, slots=True)
class Segment:
    """The staged file of one chunk, as a target needs to know it."""

    key: str
    rows: int
    bytes: int
    etag: str
    checksum: str
    run: int
    chunk: int
    window: Window
    schema: str
    """Fingerprint of the schema the file was written with."""
    overlaps: bool = False
    """Whether the run looked back, so that earlier segments may hold some of these rows."""
    snapshot: bool = False
    """Whether it is part of a whole table, which is loaded whole or not at all."""

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "rows": self.rows,
            "bytes": self.bytes,
            "etag": self.etag,
            "checksum": self.checksum,
            "run": self.run,
            "chunk": self.chunk,
            "window": self.window.to_json(),
            "schema": self.schema,
            "overlaps": self.overlaps,
            "snapshot": self.snapshot,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Segment:
        return cls(**{**data, "window": Window.from_json(data["window"])})


@dataclass(frozen=True, slots=True)
class Receipt:
    """Evidence that one chunk was read and staged.

    `rows` is what the file's own footer says, not what was planned. A chunk whose rows have all moved on
    since the cut has a receipt and no segment.
    """

    run_id: str
    chunk: int
    attempt: str
    window: Window
    rows: int
    lowest: Position | None
    highest: Position | None
    segment: Segment | None
    quarantined: Segment | None = None
    """The file of the rows that were put aside, because they break the table's rules."""
    findings: Findings | None = None
    """What the checks of data quality found, if there are any."""
    lossy: Tally = ()
    """Values that became NULL because their type, or the target's, cannot hold them."""

    def __post_init__(self) -> None:
        staged = sum(part.rows for part in (self.segment, self.quarantined) if part)
        if staged != self.rows:
            raise ValueError(f"receipt of chunk {self.chunk}: {self.rows} rows read, {staged} staged")

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "chunk": self.chunk,
            "attempt": self.attempt,
            "window": self.window.to_json(),
            "rows": self.rows,
            "lowest": self.lowest.to_json() if self.lowest else None,
            "highest": self.highest.to_json() if self.highest else None,
            "segment": self.segment.to_json() if self.segment else None,
            "quarantined": self.quarantined.to_json() if self.quarantined else None,
            "findings": self.findings.to_json() if self.findings else None,
            "lossy": dict(self.lossy),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Receipt:
        return cls(
            run_id=data["run_id"],
            chunk=data["chunk"],
            attempt=data["attempt"],
            window=Window.from_json(data["window"]),
            rows=data["rows"],
            lowest=Position.from_json(data["lowest"]) if data["lowest"] else None,
            highest=Position.from_json(data["highest"]) if data["highest"] else None,
            segment=Segment.from_json(data["segment"]) if data["segment"] else None,
            quarantined=Segment.from_json(data["quarantined"]) if data.get("quarantined") else None,
            findings=Findings.from_json(data["findings"]) if data.get("findings") else None,
            lossy=tally(data.get("lossy", {})),
        )
