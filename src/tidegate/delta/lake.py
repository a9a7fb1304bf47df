"""Delta tables that changes are written into, each plan once.

A commit carries, as a transaction of its own application, the number of the plan that made it. Delta refuses
a number that is not larger than the last, in the commit itself: so a plan is in the table once, however often
it is written, and a process that slept while others went on writes nothing. Who ran it and which versions it
brought stand in the commit's metadata, for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tidegate.config.upstreams import (
    BESIDE,
    CHANGE,
    COMMITTED_AT,
    DELETED_AT,
    NEW,
    Deletes,
    DeltaMode,
    TransformTarget,
    Upstream,
)
from tidegate.core.errors import IncompatibleTable, StateError
from tidegate.delta.changes import DELETE, each_alone, quoted, spark_path, twice
from tidegate.delta.fitting import unfitting
from tidegate.s3 import S3Place, storage_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.config.connection_models import DeltaTarget

_SETTINGS = "spark.databricks.delta"
_VIEW = "tidegate_changes"
"""Of a session that is nobody else's."""
_COUNTED = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("numOutputRows",),
)
"""What a MERGE counts, and what other writes do."""


class Continuity(StrEnum):
    """What changes are to what the target has."""

    WHOLE = "whole"
    """They are all there is."""
    NEXT = "next"
    """They follow on it: a key that is new to them is new to it."""
    UNSURE = "unsure"
    """Some of them may be there already."""


@dataclass(frozen=True)
class Stamp:
    """What a commit says of where it comes from."""

    application: str
    number: int
    said: Mapping[str, Any]


@dataclass(frozen=True)
class Lake:
    """The folder of the target tables."""

    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How delta-rs gets there."""

    @classmethod
    def of(cls, target: DeltaTarget) -> Lake:
        """The tables of a target as connections.yml has it."""
        if not target.path.startswith("s3://"):
            return cls(target.path)
        access = target.model_dump(exclude={"type", "path"}, exclude_none=True)
        place = S3Place.at(target.path).with_access(**access)
        return cls(str(place).rstrip("/"), storage_options(place))

    def place(self, table: str) -> str:
        return f"{self.root.rstrip('/')}/{table}"

    def rows_of(self, table: str, stamp: Stamp) -> int | None:
        """How many rows the plan has brought into the table; None if it never came."""
        found = self._opened(table)
        last = found.transaction_version(stamp.application) if found else None
        if last is None or last < stamp.number:
            return None
        for said, commit in _said(found, stamp.application):
            if said.get("number") == stamp.number:
                return _counted(commit.get("operationMetrics") or {})
        if last > stamp.number:  # and would refuse this one: what it brings would be missing for ever
            raise StateError(
                "it has a later plan than this one, and nothing says that it ever had this one",
                where=self.place(table),
                hint="another pipeline of this name may write to it, or the state is an older copy",
            )
        return 0

    def last_of(self, table: str, stamp: Stamp) -> dict[str, Any]:
        """What the newest commit of the stamp's application says of itself, as far as the log still tells."""
        found = self._opened(table)
        if found is None or found.transaction_version(stamp.application) is None:
            return {}
        return next((said for said, _ in _said(found, stamp.application)), {})

    def taken_back_to(self, table: str, stamp: Stamp) -> str | None:
        """The version or moment to which somebody has restored the table, if that took away what came by this
        application. Its log still says that it came.
        """
        found = self._opened(table)
        if found is None or found.transaction_version(stamp.application) is None:
            return None
        restored: list[Mapping[str, Any]] = []
        for said, commit in _commits(found):
            if said.get("tidegate") == stamp.application:
                back = (to for to in restored if not _reaches(to, commit["version"]))
                return next((str(to.get("version") or to.get("timestamp")) for to in back), None)
            if commit.get("operation") == "RESTORE":
                restored.append(commit.get("operationParameters") or {})
        return None

    def is_there(self, table: str) -> bool:
        return self._opened(table) is not None

    def is_own(self, table: str, stamp: Stamp) -> bool:
        """Whether this application has written to the table that is there now."""
        found = self._opened(table)
        return found is not None and found.transaction_version(stamp.application) is not None

    def _opened(self, table: str) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.place(table), storage_options=dict(self.options))
        except TableNotFoundError:
            return None

    # --- Writing -------------------------------------------------------------------

    def apply(
        self, table: str, frame: DataFrame, upstream: Upstream, stamp: Stamp, place: Continuity
    ) -> None:
        """Write the changes of an upstream: net, or as history."""
        frame = _unbounded(frame)
        whole = place is Continuity.WHOLE
        soft = upstream.deletes is Deletes.SOFT
        if upstream.write_mode is DeltaMode.HISTORY:
            self._ensure(table, frame, stamp)
            self.append(table, frame, stamp)
        elif whole and not soft:
            self._demand_own(table, stamp)
            self.replace(table, frame.drop(*BESIDE, NEW), stamp)
        else:
            if whole:
                self._demand_own(table, stamp)
            self._ensure(table, _target_columns(frame, soft=soft), stamp)
            self._merge(table, frame, upstream.keys, stamp, _Manner(place, soft=soft))

    def write(self, table: str, frame: DataFrame, manner: TransformTarget, stamp: Stamp) -> None:
        """Write what a transformation returned. Where rows are merged, those that say so delete."""
        frame = _unbounded(frame)
        plain = frame.drop(*BESIDE)
        if manner.write_mode == "replace":
            self.replace(table, plain, stamp)
            return
        self._ensure(table, plain, stamp)
        if manner.write_mode == "merge":
            alone = each_alone(frame, manner.keys)
            self._merge(table, alone, manner.keys, stamp, _Manner(Continuity.UNSURE, soft=False))
        else:
            self.append(table, plain, stamp)

    def append(self, table: str, frame: DataFrame, stamp: Stamp) -> None:
        with _stamped(frame.sparkSession, stamp):
            frame.write.format("delta").mode("append").save(spark_path(self.place(table)))

    def replace(self, table: str, frame: DataFrame, stamp: Stamp) -> None:
        with _stamped(frame.sparkSession, stamp):
            writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.options(**_naming(frame)).save(spark_path(self.place(table)))

    def _merge(
        self, table: str, frame: DataFrame, keys: tuple[str, ...], stamp: Stamp, manner: _Manner
    ) -> None:
        session = frame.sparkSession
        target = session.read.format("delta").load(spark_path(self.place(table)))
        frame.createOrReplaceTempView(_VIEW)
        into = f"delta.{quoted(spark_path(self.place(table)))}"
        statement = _merge_sql(into, keys, frame.columns, target.columns, manner)
        with _stamped(session, stamp):
            session.sql(statement)
        session.catalog.dropTempView(_VIEW)

    def _ensure(self, table: str, frame: DataFrame, stamp: Stamp) -> None:
        """Create the table, or give it the columns it lacks. That is no part of the plan: it adds no row."""
        place = spark_path(self.place(table))
        found = self._opened(table)
        if found is None:
            frame.limit(0).write.format("delta").mode("ignore").options(**_naming(frame)).save(place)
            return
        known = {item.name.casefold() for item in found.schema().fields}
        self._demand_kind(table, stamp, history=CHANGE in frame.columns, was=CHANGE in known)
        self._demand_fit(table, frame, found)
        if not {name.casefold() for name in frame.columns} <= known:
            frame.limit(0).write.format("delta").mode("append").option("mergeSchema", "true").save(place)

    def _demand_kind(self, table: str, stamp: Stamp, *, history: bool, was: bool) -> None:
        """A table that this application has filled with changes gets no rows, and one of rows no changes."""
        if history is was or not self.is_own(table, stamp):
            return
        has, comes = ("changes", "rows") if was else ("rows", "changes")
        raise IncompatibleTable(
            f"it was filled with {has} of the upstream, and now {comes} would go into it",
            where=self.place(table),
            hint="`write_mode` was another one: give the upstream another `target_name`, and read it whole "
            "again with `tidegate delta plan --rebaseline`",
        )

    def _demand_fit(self, table: str, frame: DataFrame, found: Any) -> None:
        there = json.loads(found.schema().to_json())
        others = list(unfitting(frame.schema.jsonValue(), there))
        if others:
            raise IncompatibleTable(
                f"the table would change what is written into it: {', '.join(others)}",
                where=self.place(table),
                hint="change the types of its columns, or cast in a transformation",
            )

    def _demand_own(self, table: str, stamp: Stamp) -> None:
        """Tables of others are not replaced. One that nobody has filled may be of a run that died."""
        found = self._opened(table)
        if found is not None and not self.is_own(table, stamp) and not _is_untouched(found):
            raise IncompatibleTable(
                "there is a table already, and it would be replaced by a snapshot",
                where=self.place(table),
                hint="give the upstream another `target_name`, or remove the table if nobody needs it",
            )


_LOOKED_BACK = 50
"""Commits among which the newest of an application is found nearly always: others tidy up between."""


def _said(table: Any, application: str) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """What commits of an application say of themselves, newest first."""
    return ((said, commit) for said, commit in _commits(table) if said.get("tidegate") == application)


def _commits(table: Any) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """All commits, newest first, with what they say of a plan, if they are of one."""
    met = 0
    for limit in (_LOOKED_BACK, None):
        commits = table.history(limit)
        for commit in commits[met:]:
            yield _understood(commit.get("userMetadata")), commit
        met = len(commits)


def _is_untouched(table: Any) -> bool:
    return not table.file_uris() and not any("tidegate" in said for said, _ in _commits(table))


def _reaches(restored: Mapping[str, Any], version: int) -> bool:
    """Whether what a table was restored to still has a version."""
    to = str(restored.get("version"))
    return to.isdigit() and int(to) >= version


def _understood(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}  # somebody else's words
    return found if isinstance(found, dict) else {}


def _counted(metrics: Mapping[str, Any]) -> int:
    for names in _COUNTED:
        if any(name in metrics for name in names):
            return sum(int(metrics.get(name) or 0) for name in names)
    return 0


@contextmanager
def _stamped(session: SparkSession, stamp: Stamp) -> Iterator[None]:
    """The commit that is made meanwhile carries the stamp. The session must be nobody else's."""
    said = json.dumps({"tidegate": stamp.application, "number": stamp.number, **stamp.said})
    settings = {
        f"{_SETTINGS}.write.txnAppId": stamp.application,
        f"{_SETTINGS}.write.txnVersion": str(stamp.number),
        f"{_SETTINGS}.commitInfo.userMetadata": said,
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


# --- The statement -----------------------------------------------------------------


@dataclass(frozen=True)
class _Manner:
    place: Continuity
    soft: bool
    """A deleted row stays, and says since when."""


_UNSPOKEN = frozenset(" ,;{}()\n\t=")
"""What names of columns have only where the table gives its columns numbers."""


def _naming(frame: DataFrame) -> dict[str, str]:
    """What a table needs that is made for these columns: readers need not know of numbers for nothing."""
    needed = any(not _UNSPOKEN.isdisjoint(name) for name in _names(frame.schema.jsonValue()))
    return {"delta.columnMapping.mode": "name"} if needed else {}


def _names(schema: Any) -> Iterator[str]:
    """Of columns, and of fields in columns."""
    if isinstance(schema, list):
        for item in schema:
            yield from _names(item)
    elif isinstance(schema, dict):
        yield from [schema["name"]] if isinstance(schema.get("name"), str) else []
        yield from _names([schema.get(part) for part in ("fields", "type", *_INNER)])


_INNER = ("elementType", "keyType", "valueType")


def _unbounded(frame: DataFrame) -> DataFrame:
    """The same rows, with texts of any length: a limit that the upstream lifts is no change of a type."""
    from pyspark.sql import functions as f

    if not any(_LIMIT in item.metadata for item in frame.schema.fields):
        return frame
    return frame.select(
        *(
            f.col(quoted(item.name)).alias(
                item.name, metadata={key: item.metadata[key] for key in item.metadata if key != _LIMIT}
            )
            for item in frame.schema.fields
        )
    )


_LIMIT = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark keeps how long a CHAR or VARCHAR may be."""


def _target_columns(frame: DataFrame, *, soft: bool) -> DataFrame:
    from pyspark.sql import functions as f

    plain = frame.drop(*BESIDE, NEW)
    return plain.withColumn(DELETED_AT, f.lit(None).cast("timestamp")) if soft else plain


def _merge_sql(
    target: str, keys: tuple[str, ...], source: list[str], known: list[str], manner: _Manner
) -> str:
    columns = [name for name in source if name not in (*BESIDE, NEW)]
    has = {name.casefold() for name in columns}
    marked = DELETED_AT in known and DELETED_AT not in has  # also if deletes were soft only once
    gone = [name for name in known if name.casefold() not in has]
    values = {name: f"s.{quoted(name)}" for name in columns} | dict.fromkeys(gone, "NULL")
    on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    lines = [f"MERGE INTO {target} AS t USING {_VIEW} AS s ON {on}"]
    if manner.place is Continuity.NEXT:
        lines.append(_demand_new(keys, marked=marked))
    deletes = CHANGE in source
    if deletes:
        lines.append(f"WHEN MATCHED AND s.{CHANGE} = '{DELETE}' THEN {_removal(manner)}")
    lines.append(f"WHEN MATCHED THEN UPDATE SET {_pairs(values)}")
    into, of = ", ".join(quoted(name) for name in values), ", ".join(values.values())
    wanted = f" AND s.{CHANGE} <> '{DELETE}'" if deletes else ""
    lines.append(f"WHEN NOT MATCHED{wanted} THEN INSERT ({into}) VALUES ({of})")
    if manner.place is Continuity.WHOLE:
        at = f"t.{DELETED_AT} IS NULL"
        lines.append(
            f"WHEN NOT MATCHED BY SOURCE AND {at} THEN UPDATE SET t.{DELETED_AT} = current_timestamp()"
        )
    return "\n".join(lines)


def _demand_new(keys: tuple[str, ...], *, marked: bool) -> str:
    """Two rows of the upstream under one key would be one in the target, and the older one would be lost."""
    there = f" AND t.{DELETED_AT} IS NULL" if marked else ""
    return f"WHEN MATCHED AND s.{NEW}{there} THEN UPDATE SET t.{quoted(keys[0])} = {twice(keys, 's.')}"


def _removal(manner: _Manner) -> str:
    if not manner.soft:
        return "DELETE"
    # Not every commit says when it was made, and a row without a moment would be there.
    return f"UPDATE SET t.{DELETED_AT} = coalesce(s.{COMMITTED_AT}, current_timestamp())"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"t.{quoted(name)} = {value}" for name, value in values.items())
