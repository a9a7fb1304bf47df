"""What happened to an upstream between two versions, read by Spark.

Every frame has the upstream's columns and, beside them, what happened to the row, with which version, and
when that was committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.config.upstreams import BESIDE, CHANGE, COMMITTED_AT, NEW, VERSION, DeltaMode, Upstream
from tidegate.core.errors import SourceError
from tidegate.delta.log import Metadata, TableLog
from tidegate.delta.places import address
from tidegate.delta.plan import BEFORE_ALL, PlannedUpstream
from tidegate.delta.planning import has_feed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

UPSERT, DELETE = "upsert", "delete"
_SINGLE = ("insert", "update_preimage", "update_postimage")
"""What is told of single changes, and not of what came of them."""
_REMOVED = (DELETE, "update_preimage")


class Reading(StrEnum):
    """How a range is read."""

    SNAPSHOT = "snapshot"
    FEED = "feed"
    DIFF = "diff"


@dataclass(frozen=True)
class Range:
    """A planned range of an upstream, and where the table lies."""

    upstream: Upstream
    planned: PlannedUpstream
    place: str

    @property
    def end(self) -> int:
        assert self.planned.end_version is not None
        return self.planned.end_version

    def reading(self, log: TableLog) -> Reading:
        self._demand_same(log)
        self._demand_room(log)
        if self.planned.low is None:
            return Reading.SNAPSHOT
        if not has_feed(log, log.range(self.planned.low, self.end)):
            return Reading.DIFF
        if _is_there(log.metadata(self.end), log.metadata(log.latest)):
            return Reading.FEED
        if self.upstream.write_mode is DeltaMode.HISTORY or not self.upstream.keys:
            raise SourceError(
                f"its columns have changed since version {self.end}: its feed cannot be read any more",
                where=self.upstream.name,
                hint=self.begin_anew,
            )
        return Reading.DIFF

    @property
    def begin_anew(self) -> str:
        return f"`tidegate delta plan --rebaseline {self.upstream.name}` reads the whole table again"

    def _demand_same(self, log: TableLog) -> None:
        """A plan can be old: its versions are those of the table as it was planned, and of no other."""
        what = self._happened(log)
        if what is not None:
            raise SourceError(f"{what} since it was planned", where=self.upstream.name, hint=self.begin_anew)

    def _happened(self, log: TableLog) -> str | None:
        """What has become of these versions, if they are not what they were."""
        planned, last = self.planned, min(self.end, log.latest)
        gap = None if planned.low is None else log.gap(planned.low, last)
        if gap is not None:
            return f"the commit of version {gap} was cleaned up"
        if planned.table_id is not None and log.metadata(last).table_id != planned.table_id:
            return "the table was made anew"
        if last < self.end or (planned.digest is not None and log.digest(last) not in (None, planned.digest)):
            return "its history was rewritten"
        return None

    def _demand_room(self, log: TableLog) -> None:
        """What is told beside a row needs names that the row does not have."""
        names = {name.casefold() for name, _ in log.metadata(min(self.end, log.latest)).columns}
        taken = [name for name in self.upstream.beside if name in names]
        if taken:
            raise SourceError(
                f"it has columns of its own that are called {', '.join(taken)}",
                where=self.upstream.name,
                hint="rows are told by these names what happened to them; follow a table without them",
            )


def _is_there(columns: Metadata, now: Metadata) -> bool:
    """Whether a feed, which is read with the columns of today, still has these."""
    return set(columns.columns) <= set(now.columns)


def spark_path(place: str) -> str:
    """The place as Spark's own file systems call it."""
    if "://" not in place:
        return place.rstrip("/")
    bare = address(place)
    return f"s3a://{bare.removeprefix('s3://')}" if bare.startswith("s3://") else bare


def changes(session: SparkSession, part: Range) -> DataFrame:
    """Everything that happened, row by row, under the names of the change data feed."""
    log = TableLog.at(part.place)
    match part.reading(log):
        case Reading.SNAPSHOT:
            return _beside(_as_of(session, part.place, part.end), "insert", log, part.end)
        case Reading.FEED:
            return _feed(session, part, log)
        case Reading.DIFF:
            return _diff(session, part, log)


def net(session: SparkSession, part: Range) -> DataFrame:
    """The net effect on each key: what it holds at the end, or that it is gone, and whether it is new.

    Within a version, a row that is written beats one that is removed. The row as it was before an update
    counts as removed, so that an update of the key itself takes the old key away. Computing it raises if the
    keys do not tell rows apart.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    found = changes(session, part)
    written = f.col(CHANGE).isin("insert", "update_postimage")
    keys = [f.col(quoted(key)) for key in part.upstream.keys]
    last = Window.partitionBy(*keys).orderBy(f.col(VERSION).desc(), written.desc())
    same = Window.partitionBy(*keys, f.col(VERSION))
    sign = f.when(written, 1).otherwise(-1)
    marked = found.withColumns(
        {
            _ORDER: f.row_number().over(last),
            _ROWS: f.sum(written.cast("int")).over(same),
            _BALANCE: f.sum(sign).over(Window.partitionBy(*keys)),
        }
    )
    # What is there at the end, less what was added, was there before: one row, or none.
    before = written.cast("int") - f.col(_BALANCE)
    doubled = (f.col(_ROWS) > 1) | ~before.isin(0, 1)
    # A condition, and no column: whoever leaves out a column must not leave out the check.
    alone = f.when(doubled, f.expr(twice(part.upstream.keys))).otherwise(f.lit(True))  # noqa: FBT003
    kept = marked.filter((f.col(_ORDER) == 1) & alone)
    kind = f.when(written, f.lit(UPSERT)).otherwise(f.lit(DELETE))
    return kept.withColumns({CHANGE: kind, NEW: before == 0}).drop(_ORDER, _ROWS, _BALANCE)


def each_alone(frame: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """At most one row for each key, to write or to remove it: of both, the row that is written.

    Computing it raises if two are to be written: where neither is in the table, a MERGE would insert both. So
    it does if a key has several single changes, as those of an upstream without keys are: which of them came
    last, nobody can tell. Rows that do not say what happened to them, as joined ones may, are written.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    told = CHANGE in frame.columns
    kind = f.coalesce(f.col(CHANGE), f.lit(UPSERT)) if told else f.lit(UPSERT)
    removed, single = kind.isin(*_REMOVED), kind.isin(*_SINGLE)
    same = Window.partitionBy(*(f.col(quoted(key)) for key in keys))
    marked = frame.withColumns(
        {
            _ORDER: f.row_number().over(same.orderBy(removed)),
            _ROWS: f.sum((~removed).cast("int")).over(same),
            _COUNT: f.when(f.max(single).over(same), f.count("*").over(same)).otherwise(1),
        }
    )
    doubled = (f.col(_ROWS) > 1) | (f.col(_COUNT) > 1)
    alone = f.when(doubled, f.expr(twice(keys))).otherwise(f.lit(True))  # noqa: FBT003
    kept = marked.filter((f.col(_ORDER) == 1) & alone).drop(_ORDER, _ROWS, _COUNT)
    return kept.withColumn(CHANGE, f.when(removed, DELETE).otherwise(UPSERT)) if told else kept


_ORDER, _ROWS, _BALANCE, _COUNT = (
    "_tidegate_order",
    "_tidegate_rows",
    "_tidegate_balance",
    "_tidegate_count",
)
"""Columns while changes are made out; no frame that is handed on has them."""


TWICE = "tidegate: the keys do not tell rows apart: "


def twice(keys: tuple[str, ...], row: str = "") -> str:
    """The words, as SQL, for a row whose keys another one has."""
    said = (
        f"{_literal(key + '=')}, coalesce(cast({row}{quoted(key)} AS STRING), 'NULL'), ' '" for key in keys
    )
    return f"raise_error(concat({', '.join((_literal(TWICE), *said))}))"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _as_of(session: SparkSession, place: str, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", version).load(spark_path(place))


def _feed(session: SparkSession, part: Range, log: TableLog) -> DataFrame:
    assert part.planned.start_version is not None
    found = (
        session.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", part.planned.start_version)
        .option("endingVersion", part.end)
        .load(spark_path(part.place))
    )
    names = {"_change_type": CHANGE, "_commit_version": VERSION, "_commit_timestamp": COMMITTED_AT}
    columns = [quoted(name) for name, _ in log.metadata(part.end).columns]
    return found.withColumnsRenamed(names).select(*columns, *BESIDE)


def _diff(session: SparkSession, part: Range, log: TableLog) -> DataFrame:
    """Two versions compared: rows that are new or gone, and by their keys, rows that are other now."""
    new = _as_of(session, part.place, part.end)
    low = part.planned.low
    if low is None or low == BEFORE_ALL:
        return _beside(new, "insert", log, part.end)
    differing = _differing(_shaped(_as_of(session, part.place, low), new), new)
    return _beside(differing, _kind(part.upstream.keys), log, part.end).drop(_COUNT)


def _differing(old: DataFrame, new: DataFrame) -> DataFrame:
    """Rows that one has more often than the other, once for each more: 1 if that is `new`, -1 if `old`."""
    from pyspark.sql import functions as f

    names = [quoted(name) for name in new.columns]
    both = new.select(*names, f.lit(1).alias(_COUNT)).unionAll(old.select(*names, f.lit(-1).alias(_COUNT)))
    counts = both.groupBy(*names).agg(f.sum(_COUNT).alias(_COUNT)).filter(f.col(_COUNT) != 0)
    count = f.col(_COUNT)
    each = f.explode(f.array_repeat(f.signum(count), f.abs(count).cast("int")))
    return counts.select(*names, each.alias(_COUNT))


def _kind(keys: tuple[str, ...]) -> Column:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    added = f.col(_COUNT) > 0
    plain = f.when(added, "insert").otherwise("delete")
    if not keys:
        return plain
    same = Window.partitionBy(*(f.col(quoted(key)) for key in keys))
    other = (f.max(_COUNT).over(same) > 0) & (f.min(_COUNT).over(same) < 0)
    return f.when(other, f.when(added, "update_postimage").otherwise("update_preimage")).otherwise(plain)


def _shaped(old: DataFrame, new: DataFrame) -> DataFrame:
    """The older rows with the newer columns."""
    from pyspark.sql import functions as f

    return old.select(
        *(
            f.col(quoted(item.name))
            if item.name in old.columns
            else f.lit(None).cast(item.dataType).alias(item.name)
            for item in new.schema.fields
        )
    )


def _beside(frame: DataFrame, kind: str | Column, log: TableLog, version: int) -> DataFrame:
    from pyspark.sql import functions as f

    at = log.commit(version).at if version in log.commits else None
    return frame.withColumns(
        {
            CHANGE: f.lit(kind) if isinstance(kind, str) else kind,
            VERSION: f.lit(version).cast("long"),
            COMMITTED_AT: f.lit(at.isoformat() if at else None).cast("timestamp"),
        }
    )


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
