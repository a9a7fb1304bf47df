"""Where objects lie in staging. Keys carry stream, run, chunk and attempt, so recovery is a listing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from tidegate.config.settings import Layout
from tidegate.core.errors import StagingError
from tidegate.core.watermark import StreamId

RECEIPTS = "_receipts"
QUARANTINE = "_quarantine"
RUNS = "_runs"
MARKER = "_SUCCESS"


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

    def quarantine(self, chunk: int, attempt: str) -> str:
        """Beside everything else, so that whoever reads the segments of a table does not meet it."""
        file = f"rows_batch_{chunk:04d}_{self.run_id}_{attempt}.parquet"
        return f"{self._of_run(QUARANTINE)}/{file}"

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
        return self._of_run(RECEIPTS)

    def receipt(self, chunk: int, attempt: str) -> str:
        return f"{self.before_receipts(chunk)}-{attempt}.json"

    def before_receipts(self, chunk: int) -> str:
        """Comes before every receipt of this chunk and after those of the chunks in front of it."""
        return f"{self.receipts}/{chunk:09d}"

    @property
    def marker(self) -> str:
        """Says that the run is complete. Run ids begin with the time, so the newest marker is the last."""
        return f"{self._of_run(RUNS)}/{MARKER}"

    def _of_run(self, folder: str) -> str:
        """Beside the data, under a name that readers of a folder leave out."""
        pipeline, name = safe_name(self.stream.pipeline), safe_name(self.stream.name)
        return f"{_folder(self.prefix)}{folder}/{pipeline}/{name}/{self.run_id}"


_SEGMENT = re.compile(r"_batch_\d+_(?P<run>[^_/]+)_[^_/]+\.(?:parquet|manifest)$")
"""Also what a load puts beside a segment, in a folder `_loads`: its name goes on where the segment's ends."""
_BESIDE = re.compile(
    rf"(?:^|/)(?:{RECEIPTS}/[^/]+/[^/]+/(?P<receipt>[^/]+)/[^/]+\.json"
    rf"|{RUNS}/[^/]+/[^/]+/(?P<marker>[^/]+)/{MARKER})$"
)


def run_of(key: str) -> str | None:
    """The run that a segment, a receipt or a marker belongs to."""
    beside = _BESIDE.search(key)
    if beside is not None:
        return beside["receipt"] or beside["marker"]
    segment = _SEGMENT.search(key)
    return segment["run"] if segment else None


def is_marker(key: str) -> bool:
    beside = _BESIDE.search(key)
    return beside is not None and beside["marker"] is not None


def demand_key(key: str) -> None:
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise StagingError("a staging key is a relative path without `..`", where=key)


def safe_name(name: str) -> str:
    """A name as one part of a path. Different names may meet; run and attempt keep their objects apart."""
    plain = re.sub(r"[^\w-]+", "_", name).strip("_")
    # File systems count bytes, and a character may have four.
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "unnamed"


_LONGEST = 100


def _folder(prefix: str) -> str:
    cleaned = prefix.strip("/")
    return f"{cleaned}/" if cleaned else ""
