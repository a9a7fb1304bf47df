"""One table's sync, described: what is read, what is staged, where it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

from tidegate.config.settings import TableSettings
from tidegate.core.errors import ConfigError, SourceError
from tidegate.core.lossy import Fit, OnLossy, fit
from tidegate.core.natives import is_wide_decimal
from tidegate.core.quality import Rules
from tidegate.core.strategies import Strategy, WriteMode
from tidegate.core.types import Column, Kind, Schema
from tidegate.core.watermark import RunKind, StreamId
from tidegate.core.windows import Window
from tidegate.sources.contract import Relation, Source
from tidegate.sources.masking import masked_columns
from tidegate.sync.custom import filled
from tidegate.targets.contract import TargetTable

_EVERYTHING = Window(None, None)
_NO_POSITION = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.JSON})
_NO_CURSOR = frozenset({Kind.BOOL, Kind.FLOAT32, Kind.FLOAT64, Kind.JSON, Kind.TIME})


@dataclass(frozen=True)
class TableJob:
    settings: TableSettings
    stream: StreamId
    relation: Relation
    fit: Fit
    """What is read, in the order of the source, and what becomes of values that do not fit."""
    schema: Schema
    """What is staged: the columns after masking, with the key rows are merged by."""
    target: TargetTable
    again: Callable[[], TableJob] | None = None
    """Looks at the source afresh, where this is how its table was a short while ago."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.fit.columns

    @property
    def kind(self) -> RunKind:
        return RunKind.INCREMENTAL if self.settings.incremental else RunKind.SNAPSHOT

    @property
    def rules(self) -> str | None:
        """The fingerprint of what the rows have to be; None: anything."""
        return self.settings.validation.fingerprint if self.settings.validation else None

    @property
    def tells_versions(self) -> bool:
        """Whether a column says that a row was changed."""
        return self.settings.cursor.timestamp is not None

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that positions are made of; for a snapshot, the key it is cut by, if it can be."""
        if self.settings.incremental:
            return self.settings.cursor.columns
        schema = self.relation.schema
        return () if any(schema.column(name).type.kind in _NO_POSITION for name in schema.key) else schema.key

    def part(self, source: Source, window: Window) -> tuple[Relation, Window]:
        """What a window is read from, and what a condition on the order has to hold of it.

        A user's SELECT that has no cursor holds its window by itself.
        """
        return self._told(source, window), window if self.order else _EVERYTHING

    def _told(self, source: Source, window: Window) -> Relation:
        """A user's SELECT may ask to be told the window."""
        query = self.settings.query
        if query is None or not self.settings.windowed:
            return self.relation
        return source.narrowed(self.relation, filled(source, query, window, self.settings.cursor))


def remembered(source: Source, settings: TableSettings, stream: StreamId) -> TableJob:
    """The job of a table as it was a short while ago: good enough to see whether there is anything new.

    What cannot work with it is tried with the table as it is now.
    """
    if settings.query is not None or not settings.incremental:
        return describe(source, settings, stream)
    try:
        job = describe(source, settings, stream, fresh=False)
    except (SourceError, ConfigError):
        return describe(source, settings, stream)
    return replace(job, again=partial(describe, source, settings, stream))


def describe(source: Source, settings: TableSettings, stream: StreamId, *, fresh: bool = True) -> TableJob:
    """Look at the source and put the job together. Everything that cannot work is refused here."""
    relation = _relation(source, settings, fresh=fresh)
    fitted = _fitted(relation.schema, settings)
    columns = fitted.columns
    _demand(relation.schema.names, (*settings.cursor.columns, *settings.keys), settings.table)
    _demand_cursor_types(relation.schema, settings)
    names = {column.name for column in columns if column.name not in settings.masks}
    key = settings.keys or relation.schema.key
    staged = Schema(masked_columns(columns, settings.masks), key if set(key) <= names else ())
    target = target_table(settings, stream, staged)
    if target.mode is WriteMode.MERGE or (key and settings.incremental and settings.write_mode is None):
        _demand_merge(settings, key, names)
    if settings.validation is not None:
        _demand_rules(settings.validation, columns, staged, stream)
    return TableJob(settings, stream, relation, fitted, staged, target)


def _fitted(schema: Schema, settings: TableSettings) -> Fit:
    """How the selected columns travel. What is masked is masked whatever it holds."""
    policy = settings.lossy
    _demand(schema.names, tuple(policy.columns), settings.table)
    needed = {*settings.cursor.columns, *(settings.keys or schema.key)}
    for name in needed & policy.columns.keys():
        if policy.columns[name] is not OnLossy.ERROR:
            raise ConfigError(
                f"column `{name}` finds and merges rows: what does not fit in it is always an error",
                where=settings.table,
                hint="leave it out of `on_lossy`, and correct such values",
            )
    found = fit(_selected(schema, settings), policy, needed)
    return replace(found, limits=tuple(item for item in found.limits if item[0] not in settings.masks))


def _demand_rules(rules: Rules, columns: tuple[Column, ...], staged: Schema, stream: StreamId) -> None:
    from tidegate.spark.screening import demand_rules

    demand_rules(rules, columns, str(stream))
    if rules.unique_key and not staged.key:
        raise ConfigError(
            "`unique_key` needs a key, and none is known",
            where=f"{stream}: validation",
            hint="name the columns that make a row unique with `keys:`",
        )


def target_table(settings: TableSettings, stream: StreamId, staged: Schema) -> TargetTable:
    """Where staged rows go and how; what is staged is all one needs to know for it."""
    cursor = tuple(column for column in settings.cursor.columns if column in staged.names)
    mode = _write_mode(settings, staged.key)
    # Appended tables keep every version of a row, so a version is told apart by key and cursor.
    versions = tuple(dict.fromkeys((*staged.key, *cursor))) if staged.key else ()
    return TargetTable(
        name=settings.target_name,
        stream=stream,
        mode=mode,
        key=versions if mode is WriteMode.APPEND else staged.key,
        cursor=cursor,
        texts=tuple(column.name for column in staged.columns if _may_become_text(column, settings)),
        files=settings.files,
        placement=settings.placement,
    )


def _may_become_text(column: Column, settings: TableSettings) -> bool:
    """By decision, or because the decimals that the target has it for are too few digits by now."""
    outgrown = column.type.kind is Kind.TEXT and is_wide_decimal(column.native)
    return settings.lossy.of(column.name) is OnLossy.TEXT or (outgrown and column.name not in settings.masks)


def _relation(source: Source, settings: TableSettings, *, fresh: bool) -> Relation:
    if settings.query is None:
        return source.table(settings.table, filter=settings.filter, fresh=fresh)
    select = settings.query
    if settings.windowed:
        select = filled(source, select, _EVERYTHING, settings.cursor)
    return replace(source.query(settings.table, select), filter=settings.filter)


def _selected(schema: Schema, settings: TableSettings) -> tuple[Column, ...]:
    _demand(schema.names, (*settings.include, *settings.exclude, *settings.masks), settings.table)
    chosen = tuple(
        column
        for column in schema.columns
        if (not settings.include or column.name in settings.include) and column.name not in settings.exclude
    )
    if not chosen:
        raise ConfigError("no column is left to sync", where=settings.table)
    return chosen


def _demand(available: tuple[str, ...], wanted: tuple[str, ...], table: str) -> None:
    for name in wanted:
        if name not in available:
            near = get_close_matches(name, available, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(available[:20])}"
            raise SourceError(f"there is no column `{name}`", where=table, hint=hint)


def _write_mode(settings: TableSettings, key: tuple[str, ...]) -> WriteMode:
    if not settings.incremental:
        return settings.full_sync_mode
    if settings.write_mode is WriteMode.REPLACE:
        raise ConfigError(
            "write_mode `replace` needs a whole table, and this strategy reads only what is new",
            where=settings.table,
            hint="use cdc_strategy full_sync, or write_mode merge or append",
        )
    return settings.write_mode or (WriteMode.MERGE if key else WriteMode.APPEND)


def _demand_merge(settings: TableSettings, key: tuple[str, ...], names: set[str]) -> None:
    if not key:
        raise ConfigError(
            "write_mode merge needs a key, and the table has no primary key",
            where=settings.table,
            hint="name the columns that make a row unique with `keys:`, or use write_mode append",
        )
    for column in (*key, *settings.cursor.columns):
        if column not in names:
            raise ConfigError(
                f"column `{column}` is needed to merge and can be neither left out nor masked",
                where=settings.table,
                hint="keep it, or use write_mode append",
            )


def _demand_cursor_types(schema: Schema, settings: TableSettings) -> None:
    if not settings.incremental:
        return
    moment = settings.cursor.timestamp
    if moment and schema.column(moment).type.kind not in (Kind.TIMESTAMP, Kind.INSTANT, Kind.DATE):
        raise ConfigError(
            f"column `{moment}` is {schema.column(moment).native}, not a timestamp",
            where=settings.table,
            hint="cdc_timestamp_column names a date or timestamp column; for ids use cdc_id_column",
        )
    number = settings.cursor.id
    if number and schema.column(number).type.kind in _NO_CURSOR:
        raise ConfigError(
            f"column `{number}` is {schema.column(number).native}, which has no safe order",
            where=settings.table,
            hint="cdc_id_column names an integer, decimal, text or UUID column",
        )
    text = number and schema.column(number).type.kind in (Kind.TEXT, Kind.UUID, Kind.BYTES)
    if text and settings.strategy is Strategy.ID_ONLY:
        raise ConfigError(
            f"column `{number}` is {schema.column(str(number)).native}: its order says nothing about age",
            where=settings.table,
            hint="id_only needs an id that grows; use hybrid with a timestamp column, or full_sync",
        )
