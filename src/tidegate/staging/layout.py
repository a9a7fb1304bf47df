"""Where objects lie in staging. Keys carry stream, run, chunk and attempt, so recovery is a listing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from tidegate.config.settings import Layout
from tidegate.core.watermark import StreamId

RECEIPTS = "_receipts"


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """Everything that names the segments of one run."""

    layout: Layout
    prefix: str
    stream: StreamId
    run_id: str
    started_at: datetime

    def segment(self, chunk: int, attempt: str) -> str:
        table = safe_name(self.stream.name)
        stamp = f"{self.started_at:%Y%m%d_%H%M%S}"
        file = f"{table}_{stamp}_batch_{chunk:04d}_{self.run_id}_{attempt}.parquet"
        return f"{_folder(self.prefix)}{self._partition(table)}/{file}"

    def _partition(self, table: str) -> str:
        at = self.started_at
        year, month, day, hour = f"year={at:%Y}", f"month={at:%m}", f"day={at:%d}", f"hour={at:%H}"
        match self.layout:
            case Layout.DATETIME:
                return f"{year}/{month}/{day}/{hour}"
            case Layout.TABLE:
                return f"table={table}/{year}/{month}/{day}"
            case Layout.HYBRID:
                return f"{year}/{month}/table={table}/{day}/{hour}"

    @property
    def receipts(self) -> str:
        """The folder of this run's receipts."""
        pipeline, name = safe_name(self.stream.pipeline), safe_name(self.stream.name)
        return f"{_folder(self.prefix)}{RECEIPTS}/{pipeline}/{name}/{self.run_id}"

    def receipt(self, chunk: int, attempt: str) -> str:
        return f"{self.receipts}/{chunk:06d}-{attempt}.json"


def run_of(key: str) -> str | None:
    """The run a segment's key belongs to."""
    found = re.search(r"_batch_\d+_([^_/]+)_[^_/]+\.parquet$", key)
    return found[1] if found else None


def safe_name(name: str) -> str:
    """A name as one part of a path. Different names may meet; run and attempt keep their objects apart."""
    return re.sub(r"[^\w-]+", "_", name).strip("_")[:100] or "unnamed"


def _folder(prefix: str) -> str:
    cleaned = prefix.strip("/")
    return f"{cleaned}/" if cleaned else ""
