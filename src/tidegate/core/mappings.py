"""The one table of types: what a column of each source is to Tidegate, and what that becomes at each target.

Sources and targets both read it, and docs/reference/types.md is made from it. A type that is new is one row:
a `SourceType` for a database's type, a `Carried` for a kind. What a row says is decided by the type, never by
the values: single values that their type cannot hold are the business of `on_lossy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tidegate.core.types import DataType, Kind

MOST_DIGITS = 38
"""What a decimal can have in Arrow and in every target. Wider ones travel as text."""

# --- Sources -----------------------------------------------------------------


class Sizes(StrEnum):
    """Which sizes of a declaration a column keeps."""

    NONE = "none"
    DIGITS = "digits"
    SECONDS = "seconds"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Declared:
    """A column as its source describes it."""

    name: str
    """The type's own name, as `bigint`."""
    unsigned: bool = False
    precision: int | None = None
    scale: int | None = None
    digits: int | None = None
    """Digits of a second."""
    length: int | None = None


@dataclass(frozen=True, slots=True)
class SourceType:
    """A type of a source's columns, or several that are alike."""

    shown: str
    """As people write it."""
    pattern: str
    """What matches the whole name, as the source's catalog spells it."""
    kind: Kind
    sizes: Sizes = Sizes.NONE
    unsigned: Kind | None = None
    """What it is if it is declared unsigned."""
    unfit: str = ""
    """Which single values the kind cannot hold: what `on_lossy` is about."""
    note: str = ""


_ZERO = "zero dates such as `0000-00-00` and `2026-00-15`, and days that no month has"
_YEAR_0 = "the year 0 is what others write as 1 BC"
_INFINITE = "`infinity` and `-infinity`"
_WIDE = "as text beyond 38 digits"
_CHARSETS = "from any character set"
_HALVES = "bytes that are no character in their set, and halves of characters such as U+D83D"

MYSQL = (
    SourceType("TINYINT", "tinyint", Kind.INT8, unsigned=Kind.UINT8, note="also BOOL and TINYINT(1)"),
    SourceType("SMALLINT", "smallint", Kind.INT16, unsigned=Kind.UINT16),
    SourceType("MEDIUMINT", "mediumint", Kind.INT32, unsigned=Kind.UINT32),
    SourceType("INT", "int(eger)?", Kind.INT32, unsigned=Kind.UINT32),
    SourceType("BIGINT", "bigint", Kind.INT64, unsigned=Kind.UINT64),
    SourceType("DECIMAL(p,s)", "decimal", Kind.DECIMAL, Sizes.DIGITS, note=_WIDE),
    SourceType("FLOAT", "float", Kind.FLOAT32, note="as it is stored, which a `FLOAT(7,4)` shows rounded"),
    SourceType("DOUBLE", "double", Kind.FLOAT64, note="as it is stored"),
    SourceType("BIT(1)", r"bit\(1\)", Kind.BOOL),
    SourceType("BIT(2) to BIT(64)", "bit", Kind.UINT64),
    SourceType("DATE", "date", Kind.DATE, unfit=_ZERO, note=_YEAR_0),
    SourceType("DATETIME(0..6)", "datetime", Kind.TIMESTAMP, Sizes.SECONDS, unfit=_ZERO, note=_YEAR_0),
    SourceType("TIMESTAMP(0..6)", "timestamp", Kind.INSTANT, Sizes.SECONDS, unfit="`0000-00-00 00:00:00`"),
    SourceType("TIME(0..6)", "time", Kind.TEXT, note="it reaches beyond a day: `-838:59:59.999999`"),
    SourceType("YEAR", "year", Kind.INT16),
    SourceType("CHAR, VARCHAR", "(var)?char", Kind.TEXT, Sizes.LENGTH, unfit=_HALVES, note=_CHARSETS),
    SourceType(
        "TINYTEXT to LONGTEXT",
        "(tiny|medium|long)?text",
        Kind.TEXT,
        Sizes.LENGTH,
        unfit=_HALVES,
        note=_CHARSETS,
    ),
    SourceType("BINARY, VARBINARY", "(var)?binary", Kind.BYTES, Sizes.LENGTH),
    SourceType("TINYBLOB to LONGBLOB", "(tiny|medium|long)?blob", Kind.BYTES, Sizes.LENGTH),
    SourceType("JSON", "json", Kind.JSON, unfit=_HALVES, note="in MariaDB a text with a check"),
    SourceType("UUID", "uuid", Kind.UUID),
    SourceType("ENUM, SET", "enum|set", Kind.TEXT, note="its labels"),
    SourceType("INET4, INET6", "inet[46]", Kind.TEXT),
    SourceType(
        "GEOMETRY, POINT, LINESTRING, POLYGON, MULTI…, GEOMETRYCOLLECTION",
        "geometry|(multi)?(point|linestring|polygon)|geom(etry)?collection",
        Kind.BYTES,
        note="well-known binary, without the reference system's number",
    ),
    SourceType("VECTOR", "vector", Kind.BYTES, note="its numbers of 32 bits, as they are stored"),
    SourceType("anything else", ".*", Kind.TEXT, note="as the server writes it"),
)
"""MySQL and MariaDB. Generated and invisible columns are columns like any other."""

POSTGRESQL = (
    SourceType("boolean", "bool", Kind.BOOL),
    SourceType("smallint", "int2", Kind.INT16),
    SourceType("integer", "int4", Kind.INT32),
    SourceType("bigint", "int8", Kind.INT64),
    SourceType("real", "float4", Kind.FLOAT32, note="with NaN and infinities"),
    SourceType("double precision", "float8", Kind.FLOAT64, note="with NaN and infinities"),
    SourceType(
        "numeric(p,s)",
        "numeric",
        Kind.DECIMAL,
        Sizes.DIGITS,
        unfit="`NaN`",
        note=f"{_WIDE}; without sizes as text, with NaN and infinities",
    ),
    SourceType("date", "date", Kind.DATE, unfit=_INFINITE, note="with years BC"),
    SourceType("time", "time", Kind.TIME, Sizes.SECONDS, unfit="`24:00:00`"),
    SourceType(
        "timestamp",
        "timestamp",
        Kind.TIMESTAMP,
        Sizes.SECONDS,
        unfit=f"{_INFINITE}, and years after 294246",
        note="with years BC",
    ),
    SourceType(
        "timestamp with time zone",
        "timestamptz",
        Kind.INSTANT,
        Sizes.SECONDS,
        unfit=f"{_INFINITE}, and years after 294246",
        note="with years BC",
    ),
    SourceType(
        "character varying(n), character(n)",
        "varchar|bpchar",
        Kind.TEXT,
        Sizes.LENGTH,
        note="without the blanks that fill up a `character(n)`",
    ),
    SourceType("text, name, citext", "text|name|citext", Kind.TEXT),
    SourceType("bytea", "bytea", Kind.BYTES),
    SourceType("json, jsonb", "jsonb?", Kind.JSON),
    SourceType("uuid", "uuid", Kind.UUID),
    SourceType("interval", "interval", Kind.TEXT, note="`1 year 2 mons 3 days 04:05:06.7`"),
    SourceType("time with time zone", "timetz", Kind.TEXT, note="with its offset"),
    SourceType("money", "money", Kind.TEXT, note="in the server's currency"),
    SourceType("bit(n), bit varying(n)", "(var)?bit", Kind.TEXT, note="zeros and ones"),
    SourceType("inet, cidr, macaddr, macaddr8", "inet|cidr|macaddr8?", Kind.TEXT),
    SourceType("xml", "xml", Kind.TEXT),
    SourceType("tsvector, tsquery", "tsvector|tsquery", Kind.TEXT),
    SourceType("oid, pg_lsn and their like", "oid|pg_lsn|xid8?|cid|tid|reg.*", Kind.TEXT),
    SourceType(
        "point, line, lseg, box, path, polygon, circle", "point|line|lseg|box|path|polygon|circle", Kind.TEXT
    ),
    SourceType("arrays", "_.*", Kind.TEXT, note="of any depth: `{{1,2},{3,NULL}}`"),
    SourceType("ranges and multiranges", ".*range", Kind.TEXT, note="`[1,10)`"),
    SourceType("hstore", "hstore", Kind.TEXT),
    SourceType("geometry, geography (PostGIS)", "geometry|geography", Kind.TEXT, note="EWKB in hexadecimal"),
    SourceType("enums, composite types, anything else", ".*", Kind.TEXT, note="as the server writes it"),
)
"""By the names in `pg_type`. A domain is what it is made from; types of extensions and users are text."""

_DYNAMIC = "values that SQLite has stored as something else"

SQLITE = (
    SourceType("…BOOL…", ".*BOOL.*", Kind.BOOL, unfit=f"what is neither 0 nor 1, {_DYNAMIC}"),
    SourceType(
        "…DATETIME…, …TIMESTAMP…",
        ".*(DATETIME|TIMESTAMP).*",
        Kind.TIMESTAMP,
        Sizes.SECONDS,
        unfit="what is not `YYYY-MM-DD HH:MM:SS[.ffffff]`",
    ),
    SourceType("DATE…", "DATE.*", Kind.DATE, unfit="what is not `YYYY-MM-DD`"),
    SourceType("JSON…", "JSON.*", Kind.JSON, unfit="what is not JSON"),
    SourceType("…INT…", ".*INT.*", Kind.INT64, unfit=_DYNAMIC),
    SourceType("…CHAR…, …CLOB…, …TEXT…", ".*(CHAR|CLOB|TEXT).*", Kind.TEXT, unfit="blobs"),
    SourceType("…BLOB…", ".*BLOB.*", Kind.BYTES, unfit=_DYNAMIC),
    SourceType("…REAL…, …FLOA…, …DOUB…", ".*(REAL|FLOA|DOUB).*", Kind.FLOAT64, unfit=_DYNAMIC),
    SourceType(
        "DECIMAL(p,s), NUMERIC(p,s), anything else",
        ".*",
        Kind.DECIMAL,
        Sizes.DIGITS,
        unfit="what is no number of that many digits",
        note=f"{_WIDE}; as text without sizes",
    ),
)
"""By the declaration, in capitals. A column without one goes by the values of its first rows."""

SOURCES: Mapping[str, tuple[SourceType, ...]] = {
    "mysql": MYSQL,
    "postgresql": POSTGRESQL,
    "sqlite": SQLITE,
}


@cache
def source_type(source: str, name: str) -> SourceType:
    """The row of a type: the first whose pattern fits."""
    return next(row for row in SOURCES[source] if re.fullmatch(row.pattern, name, re.DOTALL))


def data_type(source: str, declared: Declared) -> DataType:
    """What a column of a source is, with the sizes that its type keeps."""
    row = source_type(source, declared.name)
    kind = row.unsigned if row.unsigned is not None and declared.unsigned else row.kind
    match row.sizes:
        case Sizes.NONE:
            return DataType(kind)
        case Sizes.DIGITS:
            return decimal_type(declared.precision, declared.scale or 0)
        case Sizes.SECONDS:
            return DataType(kind, precision=declared.digits)
        case Sizes.LENGTH:
            return DataType(kind, length=declared.length)


def decimal_type(precision: int | None, scale: int) -> DataType:
    """The decimal that holds what was declared, if there is one, else text.

    PostgreSQL knows scales beyond the precision (0.00123) and below zero (12300).
    """
    if precision is None:
        return DataType(Kind.TEXT)
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits > MOST_DIGITS:
        return DataType(Kind.TEXT)
    return DataType(Kind.DECIMAL, precision=digits, scale=max(scale, 0))


@cache
def unfit(source: str, kind: Kind) -> str:
    """Which values a source's columns of a kind may hold that the kind cannot; empty: none."""
    return "; ".join(dict.fromkeys(row.unfit for row in SOURCES[source] if row.kind is kind and row.unfit))


# --- Targets -----------------------------------------------------------------


class Documents(StrEnum):
    """Which JSON a target takes. Sources are not all strict: MariaDB takes `"\\d"` and `1.`."""

    ANY = "any"
    VALID = "valid"
    PAIRED = "paired"
    """Valid, and no half of a character, as `"\\ud83d"` is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Which single values of a kind a target's type cannot hold."""

    nul: bool = True
    """Whether a text may hold the character NUL."""
    most_bytes: int | None = None
    days: tuple[int, int] | None = None
    """The first and the last day, counted from 1970-01-01."""
    documents: Documents = Documents.ANY

    @property
    def better_as_text(self) -> bool:
        """Whether a text would hold what the type does not: neither length nor NUL is better off there."""
        return self.days is not None or self.documents is not Documents.ANY

    def __str__(self) -> str:
        words = [] if self.nul else ["texts with NUL"]
        if self.most_bytes is not None:
            words.append(f"more than {self.most_bytes:,} bytes")
        if self.days is not None:
            words.append("days after 294276-12-31")
        if self.documents is not Documents.ANY:
            words.append("JSON that is not strictly JSON")
        if self.documents is Documents.PAIRED:
            words.append("halves of characters (`\\ud83d`)")
        return ", ".join(words)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class TargetType:
    native: str
    """`{precision}`, `{scale}` and `{bytes}` stand for sizes."""
    arrow: str | None = None
    """What a file has to hold to be loaded as it is, where it is not what the kind is in Arrow."""
    limits: Limits = NO_LIMITS
    most_scale: int = MOST_DIGITS
    """Digits behind the point that it can have. A column declared with more travels as text."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a kind is on the way, and at each target."""

    arrow: str
    duckdb: TargetType
    postgresql: TargetType
    redshift: TargetType
    delta: TargetType

    def at(self, target: str) -> TargetType:
        found: TargetType = getattr(self, target)
        return found


TARGETS = ("duckdb", "postgresql", "redshift", "delta")

_T = TargetType
_UTF8_BYTES = 4
_MOST_VARCHAR = 65_535
_MOST_VARBYTE = 16_777_216
_LAST_REDSHIFT_DAY = 106_762_939
"""294276-12-31."""
_FIRST_DAY = -2_440_588
"""4714-11-24 BC, the first that PostgreSQL and Redshift know."""
_NO_NUL = Limits(nul=False)
_VARCHAR = Limits(nul=False, most_bytes=_MOST_VARCHAR)

CARRIED: Mapping[Kind, Carried] = {
    Kind.BOOL: Carried("bool", _T("BOOLEAN"), _T("boolean"), _T("BOOLEAN"), _T("boolean")),
    Kind.INT8: Carried("int8", _T("TINYINT"), _T("smallint"), _T("SMALLINT", "int16"), _T("byte")),
    Kind.INT16: Carried("int16", _T("SMALLINT"), _T("smallint"), _T("SMALLINT"), _T("short")),
    Kind.INT32: Carried("int32", _T("INTEGER"), _T("integer"), _T("INTEGER"), _T("integer")),
    Kind.INT64: Carried("int64", _T("BIGINT"), _T("bigint"), _T("BIGINT"), _T("long")),
    Kind.UINT8: Carried(
        "uint8", _T("UTINYINT"), _T("smallint"), _T("SMALLINT", "int16"), _T("short", "int16")
    ),
    Kind.UINT16: Carried(
        "uint16", _T("USMALLINT"), _T("integer"), _T("INTEGER", "int32"), _T("integer", "int32")
    ),
    Kind.UINT32: Carried("uint32", _T("UINTEGER"), _T("bigint"), _T("BIGINT", "int64"), _T("long", "int64")),
    Kind.UINT64: Carried(
        "uint64",
        _T("UBIGINT"),
        _T("numeric(20,0)"),
        _T("DECIMAL(20,0)", "decimal128(20, 0)"),
        _T("decimal(20,0)", "decimal128(20, 0)"),
    ),
    Kind.FLOAT32: Carried("float", _T("FLOAT"), _T("real"), _T("REAL"), _T("float")),
    Kind.FLOAT64: Carried(
        "double", _T("DOUBLE"), _T("double precision"), _T("DOUBLE PRECISION"), _T("double")
    ),
    Kind.DECIMAL: Carried(
        "decimal128({precision}, {scale})",
        _T("DECIMAL({precision},{scale})"),
        _T("numeric({precision},{scale})"),
        _T("DECIMAL({precision},{scale})", most_scale=37, note="as text with 38 digits behind the point"),
        _T("decimal({precision},{scale})"),
    ),
    Kind.TEXT: Carried(
        "string",
        _T("VARCHAR"),
        _T("text", limits=_NO_NUL),
        _T("VARCHAR({bytes})", limits=_VARCHAR, note="four bytes for each character that is declared"),
        _T("string"),
    ),
    Kind.BYTES: Carried(
        "binary",
        _T("BLOB"),
        _T("bytea"),
        _T(f"VARBYTE({_MOST_VARBYTE})", limits=Limits(most_bytes=_MOST_VARBYTE)),
        _T("binary"),
    ),
    Kind.DATE: Carried(
        "date32[day]",
        _T("DATE"),
        _T("date"),
        _T("DATE", limits=Limits(days=(_FIRST_DAY, _LAST_REDSHIFT_DAY))),
        _T("date"),
    ),
    Kind.TIME: Carried(
        "time64[us]",
        _T("TIME"),
        _T("time without time zone"),
        _T("TIME", "string", note="through text: COPY takes no times of day from Parquet"),
        _T("string", "string", note="`23:59:59.999999`"),
    ),
    Kind.TIMESTAMP: Carried(
        "timestamp[us]",
        _T("TIMESTAMP"),
        _T("timestamp without time zone"),
        _T("TIMESTAMP"),
        _T("timestamp_ntz"),
    ),
    Kind.INSTANT: Carried(
        "timestamp[us, tz=UTC]",
        _T("TIMESTAMP WITH TIME ZONE"),
        _T("timestamp with time zone"),
        _T("TIMESTAMPTZ", "timestamp[us]", note="through UTC: COPY takes no zones from Parquet"),
        _T("timestamp"),
    ),
    Kind.JSON: Carried(
        "string",
        _T("JSON", limits=Limits(documents=Documents.PAIRED)),
        _T(
            "json",
            limits=Limits(nul=False, documents=Documents.VALID),
            note="jsonb would reorder keys and drop doubled ones",
        ),
        _T(f"VARCHAR({_MOST_VARCHAR})", limits=_VARCHAR),
        _T("string"),
    ),
    Kind.UUID: Carried("string", _T("UUID"), _T("uuid"), _T("CHAR(36)"), _T("string")),
}


def native_type(target: str, declared: DataType) -> str:
    """A column's type in a target's own words."""
    return _sized(CARRIED[declared.kind].at(target).native, declared)


def arrow_name(declared: DataType, target: str | None = None) -> str:
    """What a column is in Arrow; for a target, in a file that it can load as it is."""
    row = CARRIED[declared.kind]
    own = row.at(target).arrow if target else None
    return _sized(own or row.arrow, declared)


def carries(target: str, declared: DataType) -> bool:
    """Whether a target has a type for a column as it is declared. If not, the column travels as text."""
    return target not in TARGETS or (declared.scale or 0) <= CARRIED[declared.kind].at(target).most_scale


def limits(target: str, kind: Kind) -> Limits:
    return CARRIED[kind].at(target).limits


def _sized(text: str, declared: DataType) -> str:
    if "{" not in text:
        return text
    if declared.kind is Kind.DECIMAL and (declared.precision is None or declared.scale is None):
        raise ValueError("a decimal is declared with its precision and scale")
    length = _MOST_VARCHAR if declared.length is None else declared.length * _UTF8_BYTES
    most = min(max(length, 1), _MOST_VARCHAR)
    return text.format(precision=declared.precision, scale=declared.scale, bytes=most)
