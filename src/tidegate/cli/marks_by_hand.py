"""`tidegate watermark set`, `reset` and `rollback`: marks that are moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidegate.cli.choosing import (
    Chosen,
    Stores,
    confirm,
    one_table_options,
    pipelines_option,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Command
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.cli.versions import (
    Followed,
    chosen_items,
    one_item,
    reset_versions,
    rollback_version,
    set_version,
)
from tidegate.core.errors import UsageError
from tidegate.observe.figures import counted

if TYPE_CHECKING:
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.positions import Position, Value
    from tidegate.core.watermark import StreamId, Watermark
    from tidegate.state.contract import Store
    from tidegate.sync.job import TableJob
    from tidegate.sync.marks import ByHand


reason_option = click.option("--reason", metavar="WHY", help="Why; it is kept in the history.")


@click.command(cls=Command, name="set")
@one_table_options
@click.option("--timestamp", metavar="TS", help="Everything at or before it counts as read.")
@click.option(
    "--id", "id_", metavar="ID", help="For tables that follow an id; of a Delta table, the version."
)
@reason_option
@click.pass_context
def set_(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    timestamp: str | None,
    id_: str | None,
    reason: str | None,
) -> None:
    """Move a table's mark: the next sync reads what comes after it."""
    invocation = invocation_of(ctx)
    if timestamp is None and id_ is None:
        raise click.UsageError("say where to with --timestamp, --id or both")
    item = one_item(invocation, pipelines, tables)
    reason = reason or "set with `tidegate watermark set`"
    if isinstance(item, Followed):
        set_version(invocation, item, timestamp, id_, reason)
        return
    job = described_job(item)
    position = _position(job, timestamp, id_)
    before = _mark_position(item)
    by_hand(item.store, [item.pipeline]).move(item.stream, position, cursor=job.order, reason=reason)
    invocation.terminal.say(f"{item.stream}: mark moved from {before or 'the beginning'} to {position}")
    _warn_of_rereading(invocation, item, before, position)


def described_job(item: Chosen) -> TableJob:
    """The source says what the cursor's columns hold; a mark of another kind would compare with nothing."""
    from tidegate.sync.job import describe
    from tidegate.sync.library import open_parts

    parts = open_parts(item.pipeline, command="tidegate watermark")
    try:
        return describe(parts.source(), item.pipeline.settings_for(item.stream.name), item.stream)
    finally:
        parts.close()


def _position(job: TableJob, timestamp: str | None, id_: str | None) -> Position:
    from tidegate.core.positions import Position
    from tidegate.sync.planning import parse_id, parse_timestamp, timestamp_value

    cursor = job.settings.cursor
    if not job.settings.incremental:
        raise UsageError("this table is read whole every time: it has no mark to move", where=str(job.stream))
    values: list[Value] = []
    if timestamp is not None:
        if cursor.timestamp is None:
            raise UsageError(f"this table follows {cursor.id}, which is no timestamp", hint="use --id")
        values.append(timestamp_value(job, parse_timestamp(timestamp)))
    elif cursor.timestamp is not None:
        raise UsageError(
            f"this table follows {cursor.timestamp} first", hint="use --timestamp, with or without --id"
        )
    if id_ is not None:
        if cursor.id is None:
            raise UsageError(f"this table follows {cursor.timestamp} alone", hint="leave --id out")
        values.append(parse_id(id_, job.relation.schema.column(cursor.id).type.kind))
    return Position(tuple(values))


def _warn_of_rereading(
    invocation: Invocation, item: Chosen, before: Position | None, position: Position | None
) -> None:
    back = before is not None and (position is None or position.precedes(before))
    if back and (appended := _appended(item)):
        invocation.terminal.warn(
            f"{item.stream} {appended}: rows that are read again will be in the warehouse twice"
        )


def _appended(item: Chosen) -> str | None:
    return appended_in_words(item.pipeline, item.stream, item.stored.watermark)


def appended_in_words(pipeline: Pipeline, table: StreamId, mark: Watermark | None) -> str | None:
    """How rows are only ever added at the target, as settings and the last run tell; None: they are not."""
    from tidegate.core.strategies import WriteMode
    from tidegate.core.types import Schema
    from tidegate.sync.job import target_table

    try:
        settings = pipeline.settings_for(table.name)
    except UsageError:  # only the state knows of this table any more: nothing is synced to it
        return None
    seen = Schema.from_json(mark.schemas[-1][1]) if mark and mark.schemas else None
    if target_table(settings, table, seen or Schema(())).mode is not WriteMode.APPEND:
        return None
    decided = seen is not None or not settings.incremental or settings.write_mode is not None
    return "is appended to" if decided else "is appended to if it has no primary key"


@click.command(cls=Command)
@pipelines_option
@tables_option
@click.option("--extracted-only", is_flag=True, help="Read the source again from the start.")
@click.option("--loaded-only", is_flag=True, help="Load again what was loaded and still lies in staging.")
@click.option("--mysql-only", is_flag=True, hidden=True)
@click.option("--redshift-only", is_flag=True, hidden=True)
@reason_option
@yes_option
@click.pass_context
def reset(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    extracted_only: bool,
    loaded_only: bool,
    mysql_only: bool,
    redshift_only: bool,
    reason: str | None,
    yes: bool,
    force: bool,
) -> None:
    """Start a table over: the next sync reads it from the beginning. What is pending is given up."""
    extracted, loaded = extracted_only or mysql_only, loaded_only or redshift_only
    if extracted and loaded:
        raise click.UsageError(
            "--extracted-only and --loaded-only exclude each other; a plain reset does both"
        )
    if not pipelines and not tables:
        raise click.UsageError("name what to reset with -p, -t or both")
    invocation = invocation_of(ctx)
    items = chosen_items(invocation, pipelines, tables, Stores())
    names = ", ".join(str(item.stream) for item in items)
    confirm(f"Reset {names}?", yes=yes or force)
    why = reason or "reset with `tidegate watermark reset`"
    followed = [item for item in items if isinstance(item, Followed)]
    moved = [item for item in items if isinstance(item, Chosen)]
    if followed and (extracted or loaded):
        raise UsageError("what is not staged has one mark", where=str(followed[0].stream), hint="reset it")
    if loaded:
        for item in moved:
            _reset_loaded(invocation, item, why)
    else:
        _reset(invocation, moved, why, extracted_only=extracted)
        reset_versions(invocation, followed, why)


def _reset(invocation: Invocation, items: Sequence[Chosen], reason: str, *, extracted_only: bool) -> None:
    """All tables of a store in one act: one that is held keeps the others from being reset."""
    for store in {id(item.store): item.store for item in items}.values():
        own = [item for item in items if item.store is store]
        hand = by_hand(store, [item.pipeline for item in own])
        act = hand.reset_extracted if extracted_only else hand.reset
        found = act([stream for item in own for stream in item.streams], reason=reason)
        for place in found.aside.values():
            invocation.terminal.warn(f"a damaged record was put aside: {place}")
        for item in own:
            known = {*found.streams, *found.aside}
            _tell_reset(invocation, item, known=bool(known & set(item.streams)), kept=extracted_only)


def _tell_reset(invocation: Invocation, item: Chosen, *, known: bool, kept: bool) -> None:
    if not known:
        invocation.terminal.say(f"{item.stream}: has never run, so there is nothing to reset")
        return
    pending = " (what is pending will still be loaded)" if kept else ""
    invocation.terminal.say(f"{item.stream}: the next sync reads it from the beginning{pending}")
    if appended := _appended(item):
        invocation.terminal.warn(
            f"{item.stream} {appended}: empty the table in the warehouse first, or rows double"
        )


def _reset_loaded(invocation: Invocation, item: Chosen, reason: str) -> None:
    from tidegate.core.strategies import WriteMode
    from tidegate.sync.library import open_staging

    settings = item.pipeline.settings_for(item.stream.name)
    replaced = not settings.incremental and settings.full_sync_mode is WriteMode.REPLACE
    staging = open_staging(item.pipeline.staging)
    for stream in item.streams:
        hand = by_hand(item.store, [item.pipeline])
        found = hand.reset_loaded(stream, staging, replaced=replaced, reason=reason)
        if found is None:
            invocation.terminal.say(f"{stream}: has never run, so there is nothing to load again")
            continue
        rows = sum(segment.rows for segment in found.again)
        invocation.terminal.say(
            f"{stream}: {counted(len(found.again), 'file')} with {counted(rows, 'row')} will be loaded again"
        )
        if found.gone:
            rows = sum(segment.rows for segment in found.gone)
            invocation.terminal.warn(
                f"{stream}: {counted(len(found.gone), 'loaded file')} with {counted(rows, 'row')} "
                f"{'is' if len(found.gone) == 1 else 'are'} gone from staging; "
                "`watermark reset --extracted-only` reads them from the source instead"
            )
    if appended := _appended(item):
        invocation.terminal.warn(
            f"{item.stream} {appended}: empty the table in the warehouse first, or rows double"
        )


@click.command(cls=Command)
@one_table_options
@click.option("--to", required=True, metavar="RUN|TIME", help="A finished run, or a time in UTC.")
@click.option("--reason", required=True, metavar="WHY", help="Why; it is kept in the history.")
@click.pass_context
def rollback(
    ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], to: str, reason: str
) -> None:
    """Put a table's mark back to where it was after a run, or at a time."""
    invocation = invocation_of(ctx)
    item = one_item(invocation, pipelines, tables)
    if isinstance(item, Followed):
        rollback_version(invocation, item, to, reason)
        return
    before = _mark_position(item)
    moved = by_hand(item.store, [item.pipeline]).rollback(item.stream, to, reason=reason)
    now_at = moved.extracted.position or "the beginning"
    invocation.terminal.say(f"{item.stream}: mark moved from {before or 'the beginning'} back to {now_at}")
    _warn_of_rereading(invocation, item, before, moved.extracted.position)


def _mark_position(item: Chosen) -> Position | None:
    return item.stored.watermark.extracted.position if item.stored.watermark else None


def by_hand(store: Store, pipelines: Sequence[Pipeline]) -> ByHand:
    from tidegate.state.clock import new_token, now
    from tidegate.state.process import this_process
    from tidegate.sync.library import target_of
    from tidegate.sync.marks import ByHand

    targets = {pipeline.name: pipeline.target for pipeline in pipelines}
    return ByHand(
        store, lambda name: target_of(targets[name]), this_process("tidegate watermark"), now, new_token
    )
