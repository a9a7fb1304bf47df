"""A stream's state in the forms of the S3-Redshift backup tool, for that tool or for what reads its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate.config.settings import TableOrder
from tidegate.core.older import OlderFormat
from tidegate.core.receipts import Segment
from tidegate.core.watermark import Event, Watermark
from tidegate.sync.marks import extracted_status, loaded_segments, loaded_status, split_position

_STRATEGY = {TableOrder.SEQUENTIAL: "sequential", TableOrder.PARALLEL: "inter-table"}
_STATUS = {
    "never": "pending",
    "success": "success",
    "running": "in_progress",
    "interrupted": "in_progress",
    "failed": "failed",
    "pending": "pending",
}


@dataclass(frozen=True)
class Past:
    """What the history adds to a mark."""

    loaded: tuple[Segment, ...]
    seconds: float
    """How long its runs took together."""
    order: TableOrder | None
    """In which its last run went about the pipeline's tables."""
    older: dict[str, Any]
    """What was taken over from the older tool, if anything was. Any part of it may be missing or empty."""

    @property
    def older_metadata(self) -> Mapping[str, Any]:
        return _part(self.older, "metadata")

    @property
    def older_files(self) -> list[str]:
        return (_part(self.older, "s3_state") or self.older).get("processed_s3_files") or []

    @property
    def older_file_count(self) -> int:
        return max(len(self.older_files), self.older.get("s3_file_count") or 0)

    @property
    def older_strategy(self) -> str | None:
        return self.older.get("backup_strategy") or self.older_metadata.get("backup_strategy")

    @property
    def older_seconds(self) -> float:
        said = self.older_metadata.get("total_processing_time_seconds")
        return said if isinstance(said, int | float) else 0


def past_of(events: Sequence[Event]) -> Past:
    began: dict[str, datetime] = {}
    older: dict[str, Any] = {}
    seconds = 0.0
    order: TableOrder | None = None
    for event in events:
        if event.kind == "manual" and event.data.get("act") == "reset":
            began, seconds, older = {}, 0.0, {}
        elif event.kind == "manual" and "older" in event.data:
            older = event.data["older"]
        elif event.kind == "planned" and event.run_id:
            began[event.run_id] = event.at
            order = TableOrder(event.data["tables"]) if "tables" in event.data else order
        elif event.kind == "extracted" and event.run_id in began:
            seconds += (event.at - began.pop(event.run_id)).total_seconds()
    return Past(tuple(loaded_segments(events)), seconds, order, older)


def older_document(
    mark: Watermark,
    events: Sequence[Event],
    form: OlderFormat,
    *,
    url: Callable[[str], str],
    order: TableOrder,
    held: bool,
) -> dict[str, Any]:
    """The state in the older tool's words; `url` gives the address of a staged file.

    `order` is that of the pipeline as it is configured, for tables that have not been synced yet.
    """
    past = past_of(events)
    strategy = _STRATEGY[past.order or order]
    return (_v2 if form is OlderFormat.V2 else _v1)(mark, past, url, strategy, held=held)


def _v1(
    mark: Watermark, past: Past, url: Callable[[str], str], strategy: str, *, held: bool
) -> dict[str, Any]:
    extracted, loaded = _states(mark, past, held=held)
    files = (*past.loaded, *mark.pending)
    return {
        "table_name": mark.stream.name,
        "last_mysql_extraction_time": _moment(mark.extracted.at),
        "last_mysql_data_timestamp": _timestamp(mark),
        "mysql_rows_extracted": mark.extracted.rows_total,
        "mysql_status": extracted,
        "last_redshift_load_time": _moment(mark.loaded.at),
        "redshift_rows_loaded": mark.loaded.rows_total,
        "redshift_status": loaded,
        "backup_strategy": strategy if files else past.older_strategy or strategy,
        "s3_file_count": len(files) + past.older_file_count,
        "processed_s3_files": _processed(past, url),
        "last_error": mark.last_error,
        "created_at": _created(mark, past),
        "updated_at": _moment(mark.updated_at),
        "metadata": _metadata(mark, past, files),
    }


def _v2(
    mark: Watermark, past: Past, url: Callable[[str], str], strategy: str, *, held: bool
) -> dict[str, Any]:
    extracted, loaded = _states(mark, past, held=held)
    files = (*past.loaded, *mark.pending)
    return {
        "table_name": mark.stream.name,
        "last_mysql_data_timestamp": _timestamp(mark),
        "last_processed_id": split_position(mark.extracted.position)[1],
        "mysql_state": {
            "status": extracted,
            "total_rows": mark.extracted.rows_total,
            "last_session_rows": mark.extracted.rows_last_run,
        },
        "s3_state": {
            "backup_s3_files": [url(segment.key) for segment in mark.pending],
            "processed_s3_files": _processed(past, url),
        },
        "redshift_state": {"status": loaded, "rows_loaded": mark.loaded.rows_total},
        "last_error": mark.last_error,
        "created_at": _created(mark, past),
        "updated_at": _moment(mark.updated_at),
        "metadata": {
            **_metadata(mark, past, files),
            "backup_strategy": strategy if files else past.older_strategy or strategy,
            "s3_file_count": len(files) + past.older_file_count,
        },
    }


def _states(mark: Watermark, past: Past, *, held: bool) -> tuple[str, str]:
    """One that has only been taken over has no run of ours yet, and is as far as the older tool came."""
    taken = bool(past.older) and mark.run is None and mark.extracted.position is not None
    extracted = "success" if taken else _STATUS[extracted_status(mark, held=held)]
    loaded = "success" if taken else _STATUS[loaded_status(mark)]
    return extracted, loaded


def _timestamp(mark: Watermark) -> str | None:
    """As the older tool writes it: a reading of the column's clock, with a `Z` behind it."""
    moment = split_position(mark.extracted.position)[0]
    if moment is None:
        return None
    whole = moment if "T" in moment else f"{moment}T00:00:00"
    return whole.removesuffix("+00:00") + "Z"


def _moment(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z" if moment else None


def _created(mark: Watermark, past: Past) -> str | None:
    return past.older.get("created_at") or _moment(mark.created_at)


def _processed(past: Past, url: Callable[[str], str]) -> list[str]:
    return [*past.older_files, *(url(segment.key) for segment in past.loaded)]


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _metadata(mark: Watermark, past: Past, files: Sequence[Segment]) -> dict[str, Any]:
    batches = {"average_batch_size": round(sum(s.rows for s in files) / len(files))} if files else {}
    return {
        **past.older_metadata,
        "manual_watermark": mark.manual is not None,
        "total_processing_time_seconds": round(past.seconds + past.older_seconds),
        **batches,
    }
