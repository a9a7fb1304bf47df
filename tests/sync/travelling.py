"""One table from a source to a target, by the product's own parts, without a Spark session or a store."""

from __future__ import annotations

import math
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from tests.servers import S3Server, Server
from tidegate.config.settings import Compression, Layout, TableSettings
from tidegate.core.lossy import LossyPolicy
from tidegate.core.receipts import Receipt
from tidegate.core.strategies import Strategy
from tidegate.core.types import Column, Kind
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.reach.login import Login, Tls, login_of
from tidegate.s3 import S3Place
from tidegate.sources.contract import Source
from tidegate.sources.mysql_types import SPATIAL
from tidegate.sources.opening import open_source
from tidegate.spark.extraction import ChunkRead, Extraction, stage
from tidegate.staging.contract import Staging
from tidegate.staging.layout import SegmentPath
from tidegate.staging.local import LocalStaging
from tidegate.staging.s3 import S3Staging
from tidegate.sync.job import TableJob, describe
from tidegate.targets.contract import StagedSegment, Target
from tidegate.targets.copy_text import moment_text
from tidegate.targets.delta import DeltaTarget
from tidegate.targets.duckdb import DuckDbTarget
from tidegate.targets.postgresql import PostgresTarget
from tidegate.targets.redshift import RedshiftTarget
from tidegate.targets.redshift_line import Line
from tidegate.testing.redshift import RedshiftLocal

EVERYTHING = Window(None, None)
STREAM = StreamId("types", "x")
Texts = dict[str, list[str | None]]
"""Columns as text, in the order of the ids."""


class Warehouse(Protocol):
    """A target, and how to ask it for its values in its own words."""

    kind: str

    def target(self) -> Target: ...

    def staging(self, folder: Path) -> Staging: ...

    def texts(self, columns: tuple[Column, ...]) -> Texts: ...


class Locally:
    """Loads from files of this machine."""

    def staging(self, folder: Path) -> Staging:
        return LocalStaging(folder)


@dataclass
class DuckDb(Locally):
    path: Path
    kind: str = "duckdb"

    def target(self) -> Target:
        return DuckDbTarget(self.path)

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        with closing(duckdb.connect(self.path, read_only=True)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return _asked(columns, _duckdb_text, lambda sql: connection.execute(sql).fetchall())


def _duckdb_text(column: Column) -> str:
    return f'hex("{column.name}")' if column.type.kind is Kind.BYTES else f'CAST("{column.name}" AS VARCHAR)'


@dataclass
class Postgres(Locally):
    server: Server
    kind: str = "postgresql"

    def target(self) -> Target:
        return PostgresTarget(login_of(self.server.config), schema="warehouse")

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        return _asked(columns, postgres_text, self.server.execute, "warehouse.x")


def postgres_text(column: Column) -> str:
    name = f'"{column.name}"'
    return f"upper(encode({name}, 'hex'))" if column.type.kind is Kind.BYTES else f"{name}::text"


def mysql_text(column: Column) -> str:
    name = f"`{column.name}`"
    if column.type.kind is Kind.BYTES:
        return f"HEX({'ST_AsWKB(' + name + ')' if column.native in SPATIAL else name})"
    if column.native.startswith("bit"):
        return f"CAST({name} + 0 AS CHAR)"
    # As a float MariaDB writes six digits; as a double, all that there are.
    return f"CAST({name} + 0e0 AS CHAR)" if column.type.kind is Kind.FLOAT32 else f"CAST({name} AS CHAR)"


def _asked(
    columns: tuple[Column, ...],
    text: Callable[[Column], str],
    ask: Callable[[str], list[tuple[Any, ...]]],
    table: str = "x",
) -> Texts:
    rows = ask(f"SELECT {', '.join(map(text, columns))} FROM {table} ORDER BY id")
    return {column.name: [row[place] for row in rows] for place, column in enumerate(columns)}


@dataclass
class Redshift:
    """The stand-in, which keeps its rows in a PostgreSQL."""

    stand_in: RedshiftLocal
    server: Server
    bucket: S3Server
    kind: str = "redshift"

    def target(self) -> Target:
        login = Login(
            self.stand_in.host,
            self.stand_in.port,
            self.server.database,
            self.server.user,
            self.server.password,
            Tls("disable"),
        )
        return RedshiftTarget(Line(login), iam_role="arn:aws:iam::123456789012:role/copy")

    def staging(self, folder: Path) -> Staging:
        del folder
        return S3Staging(
            S3Place(
                self.bucket.bucket,
                region=self.bucket.region,
                endpoint_url=self.bucket.endpoint_url,
                access_key_id=self.bucket.access_key_id,
                secret_access_key=self.bucket.secret_access_key,
            )
        )

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        return _asked(columns, postgres_text, self.server.execute, "public.x")


@dataclass
class Delta(Locally):
    path: Path
    kind: str = "delta"

    def target(self) -> Target:
        return DeltaTarget(str(self.path))

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        """A file has no words of its own: these are PostgreSQL's."""
        rows = DeltaTable(self.path / "x").to_pyarrow_table().sort_by("id").combine_chunks()
        return {column.name: _written(rows.column(column.name), column.type.kind) for column in columns}


def _written(values: pa.ChunkedArray, kind: Kind) -> list[str | None]:
    array = values.combine_chunks()
    match kind:
        case Kind.BYTES:
            words: Callable[[Any], str] = lambda value: value.hex().upper()  # noqa: E731
        case Kind.DATE:
            array, words = array.cast(pa.int32()), lambda days: _day(days * 86_400_000_000)
        case Kind.TIMESTAMP | Kind.INSTANT:
            array, words = array.cast(pa.int64()), moment_text
        case _:
            words = str
    return [None if value is None else words(value) for value in array.to_pylist()]


def _day(moment: int) -> str:
    return moment_text(moment).replace(" 00:00:00.000000", "")


class Origin(Protocol):
    """A source, and how to ask it for its values in its own words."""

    @property
    def kind(self) -> str: ...

    @property
    def config(self) -> dict[str, Any]: ...

    def texts(self, columns: tuple[Column, ...]) -> Texts: ...


@dataclass
class Served:
    server: Server
    kind: str

    @property
    def config(self) -> dict[str, Any]:
        return self.server.config

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        text = mysql_text if self.kind == "mysql" else postgres_text
        return _asked(columns, text, self.server.execute)


@dataclass
class Lite:
    path: Path
    kind: str = "sqlite"

    @property
    def config(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": str(self.path)}

    def texts(self, columns: tuple[Column, ...]) -> Texts:
        with closing(sqlite3.connect(self.path)) as connection:
            return _asked(columns, _lite_text, lambda sql: connection.execute(sql).fetchall())


def _lite_text(column: Column) -> str:
    name = f'"{column.name}"'
    if column.type.kind is Kind.BYTES:
        return f"CASE WHEN {name} IS NOT NULL THEN hex({name}) END"
    # Its own text of a floating-point number has fifteen digits, which are not enough.
    return name if column.type.kind is Kind.FLOAT64 else f"CAST({name} AS TEXT)"


@dataclass
class Journey:
    """Takes table `x` as often as it is asked to."""

    origin: Origin
    warehouse: Warehouse
    folder: Path
    policy: LossyPolicy = field(default_factory=LossyPolicy)
    runs: int = 0

    def __post_init__(self) -> None:
        self.policy = LossyPolicy(
            self.origin.kind, self.warehouse.kind, self.policy.otherwise, self.policy.columns
        )

    def go(self) -> tuple[TableJob, Receipt]:
        """Replace the table at the target by what the source has now."""
        self.runs += 1
        with self._source() as source:
            settings = TableSettings("x", "x", Strategy.FULL_SYNC, lossy=self.policy)
            job = describe(source, settings, STREAM)
            staging = self.warehouse.staging(self.folder / "staging")
            receipt = stage(self._extraction(source, job, staging), self._chunk(source, job), attempt="a")
        self._load(job, receipt, staging)
        return job, receipt

    def demand_same(self) -> None:
        job, _ = self.go()
        told = self.origin.texts(job.columns)
        arrived = self.warehouse.texts(job.columns)
        for column in job.columns:
            wanted = [plain(column, text) for text in told[column.name]]
            assert [plain(column, text) for text in arrived[column.name]] == wanted, column

    @contextmanager
    def _source(self) -> Iterator[Source]:
        with closing(open_source(SimpleNamespace(**self.origin.config))) as source:
            yield source

    def _chunk(self, source: Source, job: TableJob) -> ChunkRead:
        names = tuple(column.name for column in job.columns)
        read = source.chunk(job.relation, names, EVERYTHING, positions=("id",), order=job.order)
        fit = job.fit
        fitted = replace(read, columns=fit.columns, nulled=fit.nulled, as_written=fit.as_written)
        return ChunkRead(1, EVERYTHING, fitted)

    def _extraction(self, source: Source, job: TableJob, staging: Staging) -> Extraction:
        run = f"run{self.runs}"
        return Extraction(
            run_id=run,
            run_number=self.runs,
            reader=source.reader(),
            staging=staging,
            paths=SegmentPath(Layout.TABLE, "", STREAM, run, datetime(2026, 1, 1, tzinfo=UTC)),
            masks={},
            schema=job.schema.fingerprint,
            compression=Compression.SNAPPY,
            snapshot=True,
            limits=dict(job.fit.limits),
        )

    def _load(self, job: TableJob, receipt: Receipt, staging: Staging) -> None:
        assert receipt.segment is not None
        key = receipt.segment.key
        segment = StagedSegment(
            receipt.segment,
            job.schema,
            staging.local_path(key),
            partial(staging.open, key),
            area=staging if staging.shared else None,
        )
        with closing(self.warehouse.target()) as target:
            target.prepare(job.target, job.schema)
            target.load(job.target, [segment], generation=1, fence=1)


_ZONE = re.compile(r"(\+00(:?00)?|Z)(?= BC|$)")
_CLOCKS = frozenset({Kind.TIMESTAMP, Kind.INSTANT, Kind.TIME})
_TRUE = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def plain(column: Column, text: str | None) -> object:
    """What a text means, so that values which databases write differently can be compared."""
    if text is None:
        return None
    match column.type.kind:
        case Kind.BOOL:
            return _TRUE[text.lower()]
        case Kind.FLOAT32 | Kind.FLOAT64:
            return _number(float(text), column.type.kind)
        case Kind.DECIMAL:
            return Decimal(text)
        case Kind.DATE:
            return _era(text)
        case kind if kind in _CLOCKS:
            return _clock(text)
        case Kind.TEXT | Kind.JSON | Kind.UUID | Kind.BYTES:
            return text
        case _:
            return int(text)


def _number(value: float, kind: Kind) -> object:
    if kind is Kind.FLOAT32 and math.isfinite(value):
        value = struct.unpack("f", struct.pack("f", value))[0]
    return "nan" if math.isnan(value) else (value, math.copysign(1, value))


def _era(text: str) -> str:
    """DuckDB has the era behind the date, PostgreSQL at the end."""
    return text.replace(" (BC)", "") + " BC" if " (BC)" in text else text


def _clock(text: str) -> str:
    """Without a zone, which is UTC throughout, and without zeros at the end of a fraction."""
    whole = _ZONE.sub("", _era(text))
    moment, era = (whole[:-3], " BC") if whole.endswith(" BC") else (whole, "")
    return (moment.rstrip("0").rstrip(".") if "." in moment else moment) + era
