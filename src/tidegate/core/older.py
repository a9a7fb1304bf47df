"""Watermarks of the S3-Redshift backup tool, in the two forms that it has written.

Both say how far a table was read, and what of it was loaded. Version 1 is flat and knows a timestamp alone;
version 2 has a part for each stage, an id beside the timestamp, and a list of files that wait to be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.core.errors import UsageError


class OlderFormat(StrEnum):
    V1 = "s3-redshift-v1"
    V2 = "s3-redshift-v2"


@dataclass(frozen=True)
class Older:
    """A watermark of the older tool."""

    table: str
    timestamp: str | None
    """As it is written: the tool put a `Z` behind readings of the column's own clock."""
    id: int | str | None
    extracted: str | None
    """The status of the first stage; None: it has never run."""
    loaded: str | None
    rows_extracted: int
    rows_loaded: int
    rows_last_run: int
    waiting: tuple[str, ...] | None
    """Files that were not loaded yet; None: the format does not tell."""
    files: tuple[str, ...]
    """Files that were loaded."""
    file_count: int | None
    extracted_at: datetime | None
    loaded_at: datetime | None
    error: str | None
    unknown: tuple[str, ...] = ()
    """Keys that mean nothing to us."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def begun(self) -> bool:
        return self.timestamp is not None or self.id is not None


_COMMON = frozenset(
    {"table_name", "last_mysql_data_timestamp", "last_error", "created_at", "updated_at", "metadata"}
)
_V1 = _COMMON | {
    "last_mysql_extraction_time",
    "mysql_rows_extracted",
    "mysql_status",
    "last_redshift_load_time",
    "redshift_rows_loaded",
    "redshift_status",
    "backup_strategy",
    "s3_file_count",
    "processed_s3_files",
}
_V2 = _COMMON | {
    "last_timestamp",
    "last_processed_id",
    "last_id",
    "mysql_state",
    "s3_state",
    "redshift_state",
}


def read_older(data: Any, form: OlderFormat, where: str) -> Older:
    """Understand a document of the older tool, or refuse it; nothing in it is guessed at."""
    if not isinstance(data, Mapping) or not isinstance(data.get("table_name"), str):
        raise UsageError("this is no watermark of the S3-Redshift backup tool", where=where)
    looks = OlderFormat.V2 if "mysql_state" in data or "s3_state" in data else OlderFormat.V1
    if looks is not form:
        raise UsageError(f"this is a watermark of the form {looks.value}", where=where)
    reading = _Reading(data, where)
    return reading.v2() if form is OlderFormat.V2 else reading.v1()


@dataclass(frozen=True)
class _Reading:
    data: Mapping[str, Any]
    where: str

    def v1(self) -> Older:
        data = self.data
        return Older(
            table=data["table_name"],
            timestamp=self.text(data, "last_mysql_data_timestamp"),
            id=None,
            extracted=self.status(data, "mysql_status"),
            loaded=self.status(data, "redshift_status"),
            rows_extracted=self.count(data, "mysql_rows_extracted"),
            rows_loaded=self.count(data, "redshift_rows_loaded"),
            rows_last_run=0,
            waiting=None,
            files=self.names(data, "processed_s3_files"),
            file_count=self.count(data, "s3_file_count") if data.get("s3_file_count") is not None else None,
            extracted_at=self.moment(data, "last_mysql_extraction_time"),
            loaded_at=self.moment(data, "last_redshift_load_time"),
            error=self.text(data, "last_error"),
            unknown=tuple(sorted(set(data) - _V1)),
            document=data,
        )

    def v2(self) -> Older:
        data = self.data
        mysql, s3, redshift = (self.part(name) for name in ("mysql_state", "s3_state", "redshift_state"))
        both = {**mysql, **data}
        found = next((both[n] for n in ("last_processed_id", "last_id") if both.get(n) is not None), None)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int | str)):
            raise self.wrong("last_processed_id", "an id")
        return Older(
            table=data["table_name"],
            timestamp=self.text(both, "last_mysql_data_timestamp") or self.text(both, "last_timestamp"),
            id=found,
            extracted=self.status(mysql, "status"),
            loaded=self.status(redshift, "status"),
            rows_extracted=self.count(mysql, "total_rows"),
            rows_loaded=self.count(redshift, "rows_loaded"),
            rows_last_run=self.count(mysql, "last_session_rows"),
            waiting=self.names(s3, "backup_s3_files"),
            files=self.names(s3, "processed_s3_files"),
            file_count=None,
            extracted_at=self.moment(data, "updated_at"),
            loaded_at=self.moment(data, "updated_at"),
            error=self.text(both, "last_error"),
            unknown=tuple(sorted(set(data) - _V2)),
            document=data,
        )

    def part(self, name: str) -> Mapping[str, Any]:
        found = self.data.get(name)
        if found is not None and not isinstance(found, Mapping):
            raise self.wrong(name, "keys and values")
        return found or {}

    def text(self, data: Mapping[str, Any], name: str) -> str | None:
        found = data.get(name)
        if found is not None and not isinstance(found, str):
            raise self.wrong(name, "text")
        return found or None

    def status(self, data: Mapping[str, Any], name: str) -> str | None:
        found = self.text(data, name)
        return found.lower() if found else None

    def count(self, data: Mapping[str, Any], name: str) -> int:
        found = data.get(name)
        if found is None:
            return 0
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise self.wrong(name, "a number of rows or files")
        return found

    def names(self, data: Mapping[str, Any], name: str) -> tuple[str, ...]:
        found = data.get(name) or []
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.wrong(name, "a list of files")
        return tuple(found)

    def moment(self, data: Mapping[str, Any], name: str) -> datetime | None:
        found = self.text(data, name)
        if found is None:
            return None
        try:
            moment = datetime.fromisoformat(found)
        except ValueError:
            raise self.wrong(name, "a time") from None
        from datetime import UTC

        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def wrong(self, name: str, wanted: str) -> UsageError:
        return UsageError(
            f"`{name}` is not {wanted}: the watermark is damaged",
            where=self.where,
            hint="begin at a time that is known to be loaded with `tidegate watermark set`",
        )
