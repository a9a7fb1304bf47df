"""What the Delta store keeps of a stream: its document, and the rows that any Delta reader understands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidegate.core import watermark as watermarks
from tidegate.core.errors import DamagedRecord
from tidegate.core.leases import Lease
from tidegate.core.records import closed, current, run_status
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.delta_log import LOG_VERSION
from tidegate.state.contract import Stored
from tidegate.state.sealed import damaged, opened, seal

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1

ASIDE = ".damaged-"
"""What the keys of records have in them that were put aside."""
LIVE = f"document IS NOT NULL AND stream_key NOT LIKE '%{ASIDE}%'"
READ = ("watermark_id", "pipeline_name", "table_name", "stream_key", "document")
COLUMNS = ", ".join(READ)


@dataclass(frozen=True, slots=True)
class Row:
    """A stream's current row, as far as the store needs it."""

    watermark_id: int
    pipeline_name: str | None
    table_name: str | None
    stream_key: str
    document: str | None

    def understood(self, where: str) -> Document:
        document = _opened(self.document or "", where)
        if stream_key(document.stream) != self.stream_key:
            raise damaged(f"it is the record of {document.stream}", where)
        return document


@lru_cache(maxsize=4096)
def _opened(text: str, where: str) -> Document:
    """What a document says. It is asked several times for every write, and the same text says the same."""
    return opened(text, where, Document.from_json)


@dataclass(frozen=True, slots=True)
class Document:
    """All there is to know of a stream."""

    stream: StreamId
    version: int = 0
    seq: int = 0
    """How many events the stream has had, with those in the outbox."""
    watermark: Watermark | None = None
    outbox: tuple[dict[str, Any], ...] = ()
    """Events of the last write, which come next in the history."""
    token: str = ""
    """Of the change that made it."""

    @property
    def key(self) -> str:
        return stream_key(self.stream)

    def stored(self, lease: Lease | None) -> Stored:
        return Stored(self.stream, self.version, self.watermark, lease)

    def followed_by(self, watermark: Watermark, events: Sequence[Event], *, token: str) -> Document:
        return replace(
            self,
            version=self.version + 1,
            seq=self.seq + len(events),
            watermark=watermark,
            outbox=tuple(event.to_json() for event in events),
            token=token,
        )

    def event_rows(self) -> list[dict[str, Any]]:
        first = self.seq - len(self.outbox) + 1
        return [self._event_row(seq, item) for seq, item in enumerate(self.outbox, start=first)]

    def _event_row(self, seq: int, item: dict[str, Any]) -> dict[str, Any]:
        assert self.watermark is not None
        row = asdict(current(self.watermark))
        return {
            **{name: row.get(name) for name in event_schema().names},
            "pipeline_name": partition_name(self.stream.pipeline),
            "run_id": item["run_id"],
            "event": item["kind"],
            "status": run_status(self.watermark),
            "at": datetime.fromisoformat(item["at"]),
            "records_processed": item.get("rows") if isinstance(item.get("rows"), int) else None,
            "error_message": item.get("error"),
            "details": json.dumps(item),
            "stream_key": self.key,
            "seq": seq,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "pipeline": self.stream.pipeline,
            "name": self.stream.name,
            "version": self.version,
            "seq": self.seq,
            "outbox": list(self.outbox),
            "token": self.token,
            "watermark": watermarks.to_json(self.watermark) if self.watermark else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Document:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
        document = cls(
            stream=StreamId(data["pipeline"], data["name"]),
            version=data["version"],
            seq=data["seq"],
            watermark=None if data["watermark"] is None else watermarks.from_json(data["watermark"]),
            outbox=tuple(data["outbox"]),
            token=data["token"],
        )
        demand_shape(replace(document, watermark=None), cls)  # the watermark has been checked
        return document


class Ids:
    """Numbers for new records. Commits are made one after another, so no two records get the same."""

    def __init__(self, last: int) -> None:
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last


def record_rows(before: Document, after: Document, number: int | None, ids: Ids) -> list[dict[str, Any]]:
    """The stream's current row, and before it the row of the record that this change closes, if it does."""
    assert after.watermark is not None
    rows = []
    done = closed(before.watermark, after.watermark)
    if done is not None:
        rows.append(_columns(before, asdict(done), number or ids.next()))
        number = None
    live = _columns(after, asdict(current(after.watermark)), number or ids.next())
    return [*rows, {**live, "document": seal(after.to_json())}]


def _columns(document: Document, row: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        **row,
        "watermark_id": number,
        "run_id": row["job_id"],
        "pipeline_name": partition_name(document.stream.pipeline),
        "stream_key": document.key,
        "version": document.version,
        "document": None,
    }


@cache
def record_schema() -> pa.Schema:
    import pyarrow as pa

    text, number, moment = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            ("watermark_id", pa.int32()),
            ("pipeline_name", text),
            ("job_id", text),
            ("last_processed_ts", moment),
            ("current_run_ts", moment),
            ("last_processed_version", number),
            ("status", text),
            ("created_at", moment),
            ("updated_at", moment),
            ("table_name", text),
            ("run_id", text),
            ("start_version", number),
            ("end_version", number),
            ("schema_version", text),
            ("records_processed", number),
            ("execution_duration", pa.float64()),
            ("error_message", text),
            ("failed_at", moment),
            ("stream_key", text),
            ("version", number),
            ("document", text),
            (LOG_VERSION, number),
        ]
    )


@cache
def event_schema() -> pa.Schema:
    import pyarrow as pa

    text, number, moment = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            ("pipeline_name", text),
            ("table_name", text),
            ("run_id", text),
            ("event", text),
            ("status", text),
            ("at", moment),
            ("last_processed_ts", moment),
            ("current_run_ts", moment),
            ("start_version", number),
            ("end_version", number),
            ("schema_version", text),
            ("records_processed", number),
            ("execution_duration", pa.float64()),
            ("error_message", text),
            ("details", text),
            ("stream_key", text),
            ("seq", number),
            (LOG_VERSION, number),
        ]
    )


def told_event(text: str, where: str) -> Event:
    try:
        return Event.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"not a line of history: {error!r}", where) from error


def is_sound(row: Row, where: str) -> bool:
    try:
        row.understood(where)
    except DamagedRecord:
        return False
    return True


# --- Names ---------------------------------------------------------------------

_LONGEST = 200
_KEPT = 60


def stream_key(stream: StreamId) -> str:
    """A text for the stream that no other stream has, and that needs no quoting anywhere."""
    return hashlib.sha256(json.dumps([stream.pipeline, stream.name]).encode()).hexdigest()[:40]


def partition_name(pipeline: str) -> str:
    """What the column `pipeline_name` says: it also names a folder, so it cannot be of any length."""
    if len(quote(pipeline)) <= _LONGEST:
        return pipeline
    end = hashlib.sha256(pipeline.encode()).hexdigest()[:16]
    kept = pipeline[:_KEPT]
    while len(quote(kept)) > _LONGEST:
        kept = kept[: len(kept) // 2]
    return f"{kept}~{end}"


def listed(keys: Iterable[str]) -> str:
    return ", ".join(f"'{key}'" for key in sorted(set(keys)))
