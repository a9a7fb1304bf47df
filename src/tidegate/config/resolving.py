"""The three levels of defaults: what the table says, else the pipeline, else what is built in.

Also the combinations of options that cannot work, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeVar

from tidegate.config.connection_models import MercyOptions
from tidegate.config.pipeline_models import (
    ColumnChecks,
    PipelineOptions,
    RedshiftOptions,
    TableOptions,
    ValidationOptions,
)
from tidegate.config.problems import KeyPath
from tidegate.config.settings import Mercy, Retries, TableSettings, takes_window
from tidegate.config.spelling import is_pattern
from tidegate.core.lossy import LossyPolicy, OnLossy
from tidegate.core.quality import ColumnRule, Freshness, OnFailure, RowCheck, RowCount, Rules
from tidegate.core.strategies import CeilingSettings, Cursor, FileLayout, Placement, Strategy, WriteMode

T = TypeVar("T")

Unsuitable = tuple[KeyPath, str, str | None]
"""Where it stands, what does not work, what to do."""

_NEEDS_TIMESTAMP = frozenset({Strategy.TIMESTAMP_ONLY, Strategy.HYBRID})
_NEEDS_ID = frozenset({Strategy.ID_ONLY, Strategy.HYBRID})
_STRATEGIES = (
    "timestamp_only needs cdc_timestamp_column, id_only needs cdc_id_column, hybrid needs both, "
    "full_sync reads the whole table every time, custom_sql runs your own `query`"
)


# ---- Settling the levels --------------------------------------------------------------------------------


def resolve(table: str, options: TableOptions, pipeline: PipelineOptions) -> TableSettings:
    """The settings of a table whose options suit each other."""
    strategy = strategy_of(options)
    if strategy is None:
        raise ValueError(f"{table} has no strategy")
    cursor = _cursor(strategy, options, pipeline)
    bare = TableSettings(table, options.target_name or table.rpartition(".")[2], strategy)
    near, far = options.processing, pipeline.processing
    return TableSettings(
        table=table,
        target_name=bare.target_name,
        strategy=strategy,
        cursor=cursor,
        write_mode=_said(options.write_mode, pipeline.write_mode)
        if _reads_what_is_new(options, cursor)
        else None,
        full_sync_mode=_nearest(bare.full_sync_mode, _whole_mode(options, cursor)),
        keys=options.keys or (),
        include=options.columns.include or (),
        exclude=options.columns.exclude or (),
        masks=options.columns.mask,
        filter=options.filter,
        query=options.query,
        null_cursor=_nearest(bare.null_cursor, options.null_cursor, pipeline.null_cursor),
        default_start=_default_start(options, pipeline, cursor),
        ceiling=_ceiling(options, pipeline),
        batch_size=_nearest(bare.batch_size, near.batch_size, far.batch_size),
        parallelism=_said(near.parallelism, far.parallelism),
        retries=_retries(options, pipeline),
        layout=_nearest(bare.layout, pipeline.s3.partition_strategy),
        prefix=_nearest(bare.prefix, pipeline.s3.isolation_prefix),
        compression=_nearest(bare.compression, pipeline.s3.compression),
        lossy=_lossy(options, pipeline),
        validation=_rules(options.validation, cursor),
        files=FileLayout(options.delta.partition_by or (), options.delta.cluster_by or ()),
        placement=_placement(options.redshift),
    )


def strategy_of(options: TableOptions) -> Strategy | None:
    """The strategy that is named, or that the given columns speak for."""
    if options.cdc_strategy is not None:
        return options.cdc_strategy
    if options.query is not None:
        return Strategy.CUSTOM_SQL
    match options.cdc_timestamp_column is not None, options.cdc_id_column is not None:
        case True, True:
            return Strategy.HYBRID
        case True, False:
            return Strategy.TIMESTAMP_ONLY
        case False, True:
            return Strategy.ID_ONLY
        case _:
            return None


def _cursor(strategy: Strategy, options: TableOptions, pipeline: PipelineOptions) -> Cursor:
    """The columns that the strategy uses; a column it has no use for is left out."""
    own_query = strategy is Strategy.CUSTOM_SQL
    return Cursor(
        timestamp=options.cdc_timestamp_column if own_query or strategy in _NEEDS_TIMESTAMP else None,
        id=options.cdc_id_column if own_query or strategy in _NEEDS_ID else None,
        zone=_nearest("UTC", options.cursor_timezone, pipeline.cursor_timezone),
    )


def _reads_what_is_new(options: TableOptions, cursor: Cursor) -> bool:
    """Whether runs read a window: by a cursor, or because the user's SELECT takes one by itself."""
    return bool(cursor.columns) or (options.query is not None and takes_window(options.query))


def _whole_mode(options: TableOptions, cursor: Cursor) -> WriteMode | None:
    """How a table that is read whole is written. For others `write_mode` means something else."""
    if options.full_sync_mode is not None or _reads_what_is_new(options, cursor):
        return options.full_sync_mode
    return options.write_mode


def _default_start(options: TableOptions, pipeline: PipelineOptions, cursor: Cursor) -> datetime | None:
    """A stream of ids has no start; a SELECT that takes its window by itself is told moments."""
    if cursor.timestamp is None and (cursor.id is not None or not _reads_what_is_new(options, cursor)):
        return None
    return _said(options.default_start, pipeline.default_start)


def _ceiling(options: TableOptions, pipeline: PipelineOptions) -> CeilingSettings:
    near, far, bare = options.ceiling, pipeline.ceiling, CeilingSettings()
    return CeilingSettings(
        max_wait=_nearest(bare.max_wait, near.max_wait, far.max_wait),
        lag=_nearest(bare.lag, near.lag, far.lag),
        fallback_lag=_nearest(bare.fallback_lag, near.fallback_lag, far.fallback_lag),
        ignore=_nearest(bare.ignore, near.ignore, far.ignore),
        lookback_ids=_nearest(bare.lookback_ids, near.lookback_ids, far.lookback_ids),
    )


def _lossy(options: TableOptions, pipeline: PipelineOptions) -> LossyPolicy:
    bare = LossyPolicy()
    return LossyPolicy(
        otherwise=_nearest(bare.otherwise, options.on_lossy, pipeline.on_lossy),
        columns=options.columns.on_lossy,
    )


def _rules(said: ValidationOptions, cursor: Cursor) -> Rules | None:
    """The rules of a table; none if nothing is said, or they are switched off."""
    if said.enable_data_quality_checks is False:
        return None
    count, fresh = said.row_count, said.freshness
    age = Freshness(fresh.column or cursor.timestamp or "", fresh.max_age, cursor.zone) if fresh else None
    rules = Rules(
        on_failure=said.on_failure or OnFailure.FAIL,
        max_null_percentage=said.max_null_percentage,
        unique_key=bool(said.unique_key),
        columns=tuple(_column_rule(name, checks) for name, checks in said.columns.items()),
        checks=tuple(RowCheck(check.name, check.sql) for check in said.checks),
        row_count=RowCount(count.max_drift_percentage, count.runs) if count else None,
        freshness=age,
    )
    return None if replace(rules, on_failure=OnFailure.FAIL) == Rules() else rules


def _column_rule(name: str, checks: ColumnChecks) -> ColumnRule:
    return ColumnRule(
        column=name,
        max_null_percentage=checks.max_null_percentage,
        allowed=checks.allowed or (),
        min=checks.min,
        max=checks.max,
        matches=checks.matches,
    )


def _placement(said: RedshiftOptions) -> Placement:
    return Placement(said.dist_style, said.dist_key, said.sort_key or ())


def _retries(options: TableOptions, pipeline: PipelineOptions) -> Retries:
    near, far, bare = options.retries, pipeline.retries, Retries()
    return Retries(
        max=_nearest(bare.max, near.max, far.max),
        backoff=_nearest(bare.backoff, near.backoff_seconds, far.backoff_seconds),
    )


def mercy_of(pipeline: MercyOptions, source: MercyOptions) -> Mercy:
    """What a pipeline spares its source: its own words, else the source's, key by key."""
    bare = Mercy()
    names = ("max_connections", "max_rows_per_second", "max_query", "max_running", "max_replica_lag")
    said = {name: _said(getattr(pipeline, name), getattr(source, name)) for name in names}
    return Mercy(
        **said,
        slow_down_at=_said(pipeline.slow_down_at, source.slow_down_at),
        max_pause=_nearest(bare.max_pause, pipeline.max_pause, source.max_pause),
        blackout=_nearest(bare.blackout, pipeline.blackouts(), source.blackouts()),
    )


def _said(*levels: T | None) -> T | None:
    return next((value for value in levels if value is not None), None)


def _nearest(built_in: T, *levels: T | None) -> T:
    found = _said(*levels)
    return built_in if found is None else found


# ---- What does not go together --------------------------------------------------------------------------


def unsuitable(name: str, options: TableOptions, pipeline: PipelineOptions) -> Iterator[Unsuitable]:
    """Everything in a table's options that cannot work together."""
    strategy = strategy_of(options)
    here: KeyPath = ("tables", name)
    if strategy is None:
        yield here, "it does not say how to find what is new", _STRATEGIES
        return
    cursor = _cursor(strategy, options, pipeline)
    yield from _missing_columns(here, strategy, options)
    yield from _query(here, strategy, options)
    yield from _pattern(here, name, options)
    yield from _columns(here, options)
    yield from _needed(here, options, cursor)
    if options.validation.freshness and not (options.validation.freshness.column or cursor.timestamp):
        place = (*here, "validation", "freshness")
        yield place, "there is no timestamp column to go by", "name one with `column`"
    if _reads_what_is_new(options, cursor):
        yield from _incremental(here, options, pipeline)
        yield from _hidden(here, options, pipeline, cursor)
    elif strategy in (Strategy.FULL_SYNC, Strategy.CUSTOM_SQL):
        yield from _whole(here, options)
    if options.default_start is not None and cursor.columns and cursor.timestamp is None:
        yield (*here, "default_start"), "there is no timestamp column to start from", None


def _missing_columns(here: KeyPath, strategy: Strategy, options: TableOptions) -> Iterator[Unsuitable]:
    if strategy in _NEEDS_TIMESTAMP and options.cdc_timestamp_column is None:
        yield here, f"{strategy.value} needs `cdc_timestamp_column`", None
    if strategy in _NEEDS_ID and options.cdc_id_column is None:
        yield here, f"{strategy.value} needs `cdc_id_column`", None
    if options.cdc_id_column is not None and options.cdc_id_column == options.cdc_timestamp_column:
        yield (*here, "cdc_id_column"), "it is the same column as `cdc_timestamp_column`", None


def _query(here: KeyPath, strategy: Strategy, options: TableOptions) -> Iterator[Unsuitable]:
    if strategy is not Strategy.CUSTOM_SQL:
        if options.query is not None:
            yield (*here, "query"), f"{strategy.value} runs no query of yours", "use cdc_strategy: custom_sql"
        return
    if options.query is None:
        yield here, "custom_sql needs `query`", None


def _pattern(here: KeyPath, name: str, options: TableOptions) -> Iterator[Unsuitable]:
    if not is_pattern(name):
        return
    for key in ("target_name", "query"):
        if getattr(options, key) is not None:
            message = f"`{name}` can stand for several tables, and they cannot all have this"
            yield (*here, key), message, "give the table an entry of its own"


def _columns(here: KeyPath, options: TableOptions) -> Iterator[Unsuitable]:
    for name in options.columns.include or ():
        if name in (options.columns.exclude or ()):
            yield (*here, "columns"), f"column `{name}` is both included and excluded", None


def _needed(here: KeyPath, options: TableOptions, cursor: Cursor) -> Iterator[Unsuitable]:
    """A key that is missing, or a cursor that is text, would not find or merge rows any more."""
    for name in dict.fromkeys((*cursor.columns, *(options.keys or ()))):
        decided = options.columns.on_lossy.get(name, OnLossy.ERROR)
        if decided is not OnLossy.ERROR:
            message = f"column `{name}` finds and merges rows: what does not fit in it is always an error"
            yield (*here, "columns", "on_lossy", name), message, "correct such values, or use another column"


def _incremental(here: KeyPath, options: TableOptions, pipeline: PipelineOptions) -> Iterator[Unsuitable]:
    if _said(options.write_mode, pipeline.write_mode) is WriteMode.REPLACE:
        place: KeyPath = here if options.write_mode else ("pipeline",)
        message = "replace would keep only the rows of the last run, since runs read only what is new"
        yield (*place, "write_mode"), message, "use merge or append, or cdc_strategy: full_sync"


def _hidden(
    here: KeyPath, options: TableOptions, pipeline: PipelineOptions, cursor: Cursor
) -> Iterator[Unsuitable]:
    """Merging compares keys and cursors at the target, so they must arrive there as they are."""
    if _said(options.write_mode, pipeline.write_mode) is WriteMode.APPEND:
        return
    for name in dict.fromkeys((*cursor.columns, *(options.keys or ()))):
        how = _how_hidden(name, options)
        if how:
            message = f"column `{name}` is {how}, but merging needs it as it is"
            yield (*here, "columns"), message, "leave it as it is, or use write_mode: append"


def _how_hidden(name: str, options: TableOptions) -> Literal["excluded", "masked", "not included"] | None:
    if name in (options.columns.exclude or ()):
        return "excluded"
    if name in options.columns.mask:
        return "masked"
    if options.columns.include is not None and name not in options.columns.include:
        return "not included"
    return None


def _whole(here: KeyPath, options: TableOptions) -> Iterator[Unsuitable]:
    """For a table that is read whole, `full_sync_mode` says how; `write_mode` may only agree."""
    wanted = options.full_sync_mode
    if options.write_mode is WriteMode.MERGE:
        message = "a table that is read whole every time is replaced or appended, not merged"
        yield (*here, "write_mode"), message, "use full_sync_mode: replace or append"
    elif options.write_mode and wanted and options.write_mode is not wanted:
        message = f"write_mode {options.write_mode.value} contradicts full_sync_mode {wanted.value}"
        yield (*here, "write_mode"), message, "leave one of them out"
    if options.default_start is not None:
        yield (*here, "default_start"), "a table that is read whole every time has no start", None
