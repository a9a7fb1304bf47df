"""COPY from Parquet files in S3, by Redshift's rules.

The files' columns are matched by position and count; a type that is not exactly the column's is an error, and
so is a manifest without `content_length`, or with another one than the file's. Nothing is coerced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.core.errors import StagingError, TidegateError
from tidegate.s3 import Absent, S3Place
from tidegate.targets.copy_text import copy_text
from tidegate.testing.redshift.sql import Refused, Tokens, joined

_BATCH_ROWS = 16_384
_CODECS = frozenset({"SNAPPY", "GZIP", "UNCOMPRESSED"})


@dataclass(frozen=True, slots=True)
class CopyStatement:
    table: str
    """As SQL."""
    url: str
    manifest: bool
    keys: dict[str, Any] = field(default_factory=dict, repr=False)
    """Of the account to read as; none if a role was named."""


class LoadError(Refused):
    """A file that does not go in, with what the load-error views say of it."""

    def __init__(self, message: str, *, code: int, file: str, **detail: Any) -> None:
        super().__init__(message, "XX000")
        self.detail = {"file_name": file, "error_code": code, "error_message": message, **detail}


_HARMLESS = {"STATUPDATE", "FILLRECORD", "EXPLICIT_IDS", "ACCEPTINVCHARS", "AS", "ON", "OFF", "DEFAULT"}
_ACCESS = {"IAM_ROLE", "CREDENTIALS", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"}


def parse_copy(tokens: Tokens) -> CopyStatement:
    """Raises `Refused` for what Redshift does not take with Parquet."""
    start = next((at for at, token in enumerate(tokens) if token.word == "FROM"), len(tokens))
    if any(token.word == "(" for token in tokens[:start]):
        raise Refused("COPY from Parquet takes no list of columns here", "0A000")
    table, options = joined(tokens[1:start]), tokens[start + 1 :]
    if not options or options[0].kind != "string" or not options[0].text.startswith("'s3://"):
        raise Refused("COPY reads from 's3://…' here", "0A000")
    url, place = _string(options[0].text), 1
    manifest = parquet = authorized = False
    keys: dict[str, str] = {}
    while place < len(options):
        word = options[place].word
        following = [token for token in options[place + 1 : place + 3] if token.word != "AS"]
        value = following[0] if following else None
        if word in ("FORMAT", "PARQUET"):
            parquet = word == "PARQUET" or (value is not None and value.word == "PARQUET")
        elif word in _ACCESS:
            if value is None or (value.kind != "string" and value.word != "DEFAULT"):
                raise Refused(f"{word} needs a text")
            authorized = True
            keys |= _keys(word, _string(value.text)) if value.kind == "string" else {}
        elif word == "MANIFEST":
            manifest = True
        elif word not in _HARMLESS and options[place].kind == "word":
            raise Refused(f"{word} argument is not supported for PARQUET based COPY", "0A000")
        place += 1
    if not parquet:
        raise Refused("the stand-in copies FORMAT AS PARQUET only", "0A000")
    if not authorized:
        raise Refused("COPY needs IAM_ROLE or CREDENTIALS")
    return CopyStatement(table, url, manifest, keys)


def _string(text: str) -> str:
    return text[text.index("'") + 1 : -1].replace("''", "'")


def _keys(word: str, value: str) -> dict[str, str]:
    if word == "IAM_ROLE":
        if not re.fullmatch(r"default|arn:aws[\w-]*:iam::\d{12}:role/.+", value):
            raise Refused(f"Invalid IAM role: {value}", "XX000")
        return {}
    if word != "CREDENTIALS":
        return {word.lower(): value}
    names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
    names |= {"token": "session_token"}
    parts = dict(part.split("=", 1) for part in value.split(";") if "=" in part)
    return {names[name]: part for name, part in parts.items() if name in names}


@dataclass(frozen=True, slots=True)
class CopyColumn:
    name: str
    type: str
    """In PostgreSQL's words, with its sizes."""


_EXACT: dict[str, tuple[pa.DataType, ...]] = {
    "smallint": (pa.int16(),),
    "integer": (pa.int32(),),
    "bigint": (pa.int64(),),
    "real": (pa.float32(),),
    "double precision": (pa.float64(),),
    "boolean": (pa.bool_(),),
    "date": (pa.date32(),),
    "bytea": (pa.binary(),),
}


def _takes(column: CopyColumn, found: pa.DataType) -> bool:
    if column.type in _EXACT:
        return found in _EXACT[column.type]
    if column.type.startswith("character"):
        return bool(pa.types.is_string(found))
    if column.type == "timestamp without time zone":
        return bool(pa.types.is_timestamp(found)) and found.unit != "s"
    sized = re.fullmatch(r"numeric\((\d+),(\d+)\)", column.type)
    return sized is not None and found == pa.decimal128(int(sized[1]), int(sized[2]))


@dataclass(frozen=True)
class Copying:
    """One COPY under way: the statement, the table's columns, and how to reach S3."""

    statement: CopyStatement
    columns: Sequence[CopyColumn]
    s3: S3Place

    def texts(self) -> Iterator[tuple[int, memoryview]]:
        """The rows of all files as PostgreSQL's COPY reads them, with how many there are in each part."""
        for url, size, data in self._files():
            if size is not None and len(data) != size:
                message = f"the file has {len(data)} bytes, the manifest says {size}"
                raise LoadError(message, code=9014, file=url)
            yield from self._file(url, data)

    def _files(self) -> Iterator[tuple[str, int | None, bytes]]:
        if not self.statement.manifest:
            for url in self._listed():
                yield url, None, self._get(url) or b""
            return
        data = self._get(self.statement.url)
        if data is None:
            raise Refused(f"The specified S3 manifest does not exist: {self.statement.url}", "XX000")
        try:
            entries = json.loads(data)["entries"]
            urls = [str(entry["url"]) for entry in entries]
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"the manifest {self.statement.url} cannot be understood", "XX000") from error
        for url, entry in zip(urls, entries, strict=True):
            size = entry.get("meta", {}).get("content_length")
            if not isinstance(size, int):
                raise Refused(f"the manifest lacks meta.content_length of {url}", "XX000")
            content = self._get(url)
            if content is not None:
                yield url, size, content
            elif entry.get("mandatory", False):
                raise LoadError("a mandatory file of the manifest does not exist", code=9013, file=url)

    def _listed(self) -> list[str]:
        place, prefix = self._place(self.statement.url)
        with place.asking("s3:ListBucket", prefix, refused=StagingError) as client:
            answer = client.list_objects_v2(Bucket=place.bucket, Prefix=prefix)
        found = [f"s3://{place.bucket}/{item['Key']}" for item in answer.get("Contents", ())]
        if not found:
            raise Refused(f"The specified S3 prefix '{prefix}' does not exist", "XX000")
        return found

    def _file(self, url: str, data: bytes) -> Iterator[tuple[int, memoryview]]:
        try:
            with pq.ParquetFile(BytesIO(data)) as parquet:
                _demand_readable(url, parquet.metadata)
                self._demand_shape(url, parquet.schema_arrow)
                row = 0
                for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
                    self._demand_lengths(url, batch, row)
                    row += batch.num_rows
                    yield batch.num_rows, copy_text(_readable(batch))
        except pa.ArrowException as error:
            raise LoadError(f"Spectrum Scan Error: {error}", code=15001, file=url) from error

    def _demand_shape(self, url: str, found: pa.Schema) -> None:
        if len(found) != len(self.columns):
            message = (
                f"Unmatched number of columns between table and file. Table columns: {len(self.columns)}, "
                f"Data columns: {len(found)}"
            )
            raise LoadError(message, code=8001, file=url)
        for column, brought in zip(self.columns, found, strict=True):
            if not _takes(column, brought.type):
                message = (
                    f"Spectrum Scan Error: file has an incompatible Parquet schema for column {column.name}. "
                    f"Column type: {column.type.upper()}, Parquet schema: {brought.type} {brought.name}"
                )
                raise LoadError(
                    message, code=15007, file=url, column_name=column.name, column_type=column.type
                )

    def _demand_lengths(self, url: str, batch: pa.RecordBatch, before: int) -> None:
        for column, values in zip(self.columns, batch.columns, strict=True):
            sized = re.fullmatch(r"character(?: varying)?\((\d+)\)", column.type)
            if sized is None:
                continue
            longer = pc.greater(pc.binary_length(values), int(sized[1]))
            if pc.any(longer).as_py():
                raise LoadError(
                    "String length exceeds DDL length",
                    code=1204,
                    file=url,
                    line_number=before + longer.to_pylist().index(True) + 1,
                    column_name=column.name,
                    column_type=column.type.partition("(")[0],
                    column_length=sized[1],
                )

    def _place(self, url: str) -> tuple[S3Place, str]:
        parts = urlsplit(url)
        return replace(self.s3, bucket=parts.netloc, prefix="", **self.statement.keys), parts.path.lstrip("/")

    def _get(self, url: str) -> bytes | None:
        place, key = self._place(url)
        try:
            return place.get(key, refused=StagingError)[0]
        except Absent:
            return None
        except TidegateError as error:
            raise Refused(f"S3ServiceException: {error.message}", "XX000") from error


def _demand_readable(url: str, metadata: pq.FileMetaData) -> None:
    """Only the compressions that Redshift's documentation names."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = {group.column(number).compression for group in groups for number in range(group.num_columns)}
    for codec in sorted(found - _CODECS):
        message = f"Spectrum Scan Error: unsupported compression codec {codec}"
        raise LoadError(message, code=15001, file=url)


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Moments without their zone: Redshift's TIMESTAMP has none."""
    columns = [
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, names=[str(number) for number in range(len(columns))])
