"""`tidegate watermark`: look at marks, and move them by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    Chosen,
    Stores,
    chosen_pipelines,
    chosen_tables,
    confirm,
    json_option,
    one_table,
    pipelines_option,
    print_json,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import TidegateError, UsageError, VerificationFailed

if TYPE_CHECKING:
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.positions import Position, Value
    from tidegate.core.watermark import Event, StreamId, Watermark
    from tidegate.state.contract import Store, Stored
    from tidegate.sync.job import TableJob
    from tidegate.sync.marks import ByHand


@click.group(cls=Group, name="watermark")
def command() -> None:
    """Look at the marks of tables, and move them by hand.

    A table has two marks: how far it was extracted from the source, and how far it was loaded. Changes by
    hand are kept in the history with their reason, and refused while a run holds the table.
    """


# --- Looking -------------------------------------------------------------------


@command.command()
@pipelines_option
@tables_option
@click.option("--show-files", is_flag=True, help="Also list the files that were loaded.")
@json_option
@click.pass_context
def get(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    show_files: bool,
    as_json: bool,
) -> None:
    """Show both marks of a table, what is pending, and who holds it."""
    invocation = invocation_of(ctx)
    items = _chosen(invocation, pipelines, tables)
    described = [_described(item, item.stored, show_files=show_files) for item in items]
    if as_json:
        print_json(described[0] if len(tables) == 1 and len(described) == 1 else described)
        return
    for item, data in zip(items, described, strict=True):
        _show(invocation, item, data)


@command.command(name="list")
@pipelines_option
@tables_option
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    as_json: bool,
) -> None:
    """Show the marks of all tables."""
    from tidegate.observe.figures import moment

    invocation = invocation_of(ctx)
    items = _chosen(invocation, pipelines, tables)
    if as_json:
        print_json([_described(item, stored) for item in items for stored in (item.stored, *item.beside)])
        return
    rows = []
    for stored in (stored for item in items for stored in (item.stored, *item.beside)):
        mark = stored.watermark
        rows.append(
            [
                stored.stream.pipeline,
                stored.stream.name,
                str(mark.extracted.position or "–") if mark else "–",
                f"{mark.extracted.rows_total:,}" if mark else "–",
                f"{mark.loaded.rows_total:,}" if mark else "–",
                f"{len(mark.pending):,}" if mark else "–",
                moment(mark.updated_at) if mark else "never ran",
            ]
        )
    headings = ["pipeline", "table", "extracted up to", "rows extracted", "rows loaded", "pending", "changed"]
    invocation.terminal.table(headings, rows)
    for damaged in _damaged(invocation, pipelines):
        invocation.terminal.warn(f"{damaged.where}: {damaged.problem}")


@command.command()
@pipelines_option
@tables_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="The newest N."
)
@json_option
@click.pass_context
def history(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    limit: int,
    as_json: bool,
) -> None:
    """Show what happened to a table: its runs, loads, failures and changes by hand."""
    from tidegate.observe.figures import moment

    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    events = sorted(
        ((stream, event) for stream in item.streams for event in item.store.history(stream, limit=limit)),
        key=lambda pair: pair[1].at,
    )[-limit:]
    if as_json:
        print_json([{"table_name": stream.name, **event.to_json()} for stream, event in events])
        return
    rows = [
        [moment(event.at), stream.name, event.kind, event.run_id or "–", _told(event)]
        for stream, event in events
    ]
    invocation.terminal.table(["at", "table", "event", "run", "what"], rows)


def _told(event: Event) -> str:
    from tidegate.core.windows import Window

    data = event.data
    match event.kind:
        case "planned":
            return f"window {Window.from_json(data['window'])}"
        case "extracted":
            return f"{data['rows']:,} rows, up to {_place(data['position'])}"
        case "loaded":
            return f"{data['rows']:,} rows in {len(data['segments']):,} files"
        case "failed":
            return str(data["error"])
        case "manual":
            to = f" to {_place(data['to'])}" if "to" in data else ""
            return f"{data['act']}{to}: {data['reason']}"
        case "schema changed":
            return "; ".join(data["changes"]) or "nothing that matters to rows"
        case "quarantined":
            why = "; ".join(data["reasons"])
            return f"{data['rows']:,} rows put aside{': ' if why else ''}{why}"
        case "rejected":
            return f"{data['rows']:,} rows break the rules: {'; '.join(data['reasons'])}"
        case "named":
            return ", ".join(f"{column} is called {name}" for column, name in data["names"].items())
        case _:
            return json.dumps(data, ensure_ascii=False)


def _place(position: list[Any] | None) -> str:
    from tidegate.core.positions import Position

    return str(Position.from_json(position)) if position else "the beginning"


def _described(item: Chosen, stored: Stored, *, show_files: bool = False) -> dict[str, Any]:
    from tidegate.state.clock import now
    from tidegate.state.process import this_process
    from tidegate.sync.marks import describe_mark, live_holder, loaded_segments

    holder = live_holder(stored, this_process("tidegate watermark"), now())
    data = describe_mark(
        stored.stream, stored.version, stored.watermark, held_by=str(holder) if holder else None
    )
    if show_files:
        segments = loaded_segments(item.store.history(stored.stream))
        data["loaded_files"] = [segment.key for segment in segments]
    return data


def _show(invocation: Invocation, item: Chosen, data: dict[str, Any]) -> None:
    from tidegate.observe.figures import moment
    from tidegate.observe.terminal import Tone

    terminal, mark = invocation.terminal, item.stored.watermark
    terminal.show(str(item.stream), Tone.STRONG)
    if mark is None:
        terminal.show("  has never run")
        return
    extracted, loaded = mark.extracted, mark.loaded
    facts = {
        "extracted": f"up to {extracted.position or 'the beginning'}, {extracted.rows_total:,} rows in all, "
        f"{extracted.rows_last_run:,} in the last run ({data['extracted']['status']})",
        "loaded": f"{loaded.rows_total:,} rows ({data['loaded']['status']}), last {moment(loaded.at)}",
        "pending": f"{len(mark.pending):,} files, {sum(s.rows for s in mark.pending):,} rows",
        "changed": f"{moment(mark.updated_at)} (version {item.stored.version})",
        "held by": data["held_by"] or "nobody",
        "last error": mark.last_error or "none",
        "by hand": mark.manual or "never moved",
    }
    for label, text in facts.items():
        terminal.show(f"  {label:<11}{text}")
    for key in [*data["pending_files"], *(data.get("loaded_files") or ())]:
        terminal.show(f"    {'pending' if key in data['pending_files'] else 'loaded ':<8}{key}")


# --- Moving --------------------------------------------------------------------

_reason = click.option("--reason", metavar="WHY", help="Why; it is kept in the history.")


@command.command(name="set")
@pipelines_option
@tables_option
@click.option("--timestamp", metavar="TS", help="Everything at or before it counts as read.")
@click.option("--id", "id_", metavar="ID", help="For tables that follow an id.")
@_reason
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
    item = one_table(invocation, pipelines, tables)
    job = _job(item)
    position = _position(job, timestamp, id_)
    before = _mark_position(item)
    _by_hand(item.store, [item.pipeline]).move(
        item.stream, position, cursor=job.order, reason=reason or "set with `tidegate watermark set`"
    )
    invocation.terminal.say(f"{item.stream}: mark moved from {before or 'the beginning'} to {position}")
    _warn_of_rereading(invocation, item, before, position)


def _job(item: Chosen) -> TableJob:
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
    if back and _is_appended(item):
        invocation.terminal.warn(
            f"{item.stream} is appended to: rows that are read again will be in the warehouse twice"
        )


def _is_appended(item: Chosen) -> bool:
    """Whether rows are only ever added at the target, as far as settings and the last run tell."""
    from tidegate.core.strategies import WriteMode
    from tidegate.core.types import Schema
    from tidegate.sync.job import target_table

    mark = item.stored.watermark
    settings = item.pipeline.settings_for(item.stream.name)
    staged = Schema.from_json(mark.schemas[-1][1]) if mark and mark.schemas else Schema(())
    return target_table(settings, item.stream, staged).mode is WriteMode.APPEND


@command.command()
@pipelines_option
@tables_option
@click.option("--extracted-only", is_flag=True, help="Read the source again from the start.")
@click.option("--loaded-only", is_flag=True, help="Load again what was loaded and still lies in staging.")
@click.option("--mysql-only", is_flag=True, hidden=True)
@click.option("--redshift-only", is_flag=True, hidden=True)
@_reason
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
    items = _chosen(invocation, pipelines, tables)
    names = ", ".join(str(item.stream) for item in items)
    confirm(f"Reset {names}?", yes=yes or force)
    why = reason or "reset with `tidegate watermark reset`"
    if loaded:
        for item in items:
            _reset_loaded(invocation, item, why)
    else:
        _reset(invocation, items, why, extracted_only=extracted)


def _reset(invocation: Invocation, items: Sequence[Chosen], reason: str, *, extracted_only: bool) -> None:
    """All tables of a store in one act: one that is held keeps the others from being reset."""
    for store in {id(item.store): item.store for item in items}.values():
        own = [item for item in items if item.store is store]
        hand = _by_hand(store, [item.pipeline for item in own])
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


def _reset_loaded(invocation: Invocation, item: Chosen, reason: str) -> None:
    from tidegate.core.strategies import WriteMode
    from tidegate.sync.library import open_staging

    settings = item.pipeline.settings_for(item.stream.name)
    replaced = not settings.incremental and settings.full_sync_mode is WriteMode.REPLACE
    staging = open_staging(item.pipeline.staging)
    for stream in item.streams:
        hand = _by_hand(item.store, [item.pipeline])
        found = hand.reset_loaded(stream, staging, replaced=replaced, reason=reason)
        if found is None:
            invocation.terminal.say(f"{stream}: has never run, so there is nothing to load again")
            continue
        rows = sum(segment.rows for segment in found.again)
        invocation.terminal.say(
            f"{stream}: {len(found.again):,} files with {rows:,} rows will be loaded again"
        )
        if found.gone:
            rows = sum(segment.rows for segment in found.gone)
            invocation.terminal.warn(
                f"{stream}: {len(found.gone):,} loaded files with {rows:,} rows are gone from staging; "
                "`watermark reset --extracted-only` reads them from the source instead"
            )
    if _is_appended(item):
        invocation.terminal.warn(
            f"{item.stream} is appended to: empty the table in the warehouse first, or rows double"
        )


@command.command()
@pipelines_option
@tables_option
@click.option("--to", required=True, metavar="RUN|TIME", help="A finished run, or a time in UTC.")
@click.option("--reason", required=True, metavar="WHY", help="Why; it is kept in the history.")
@click.pass_context
def rollback(
    ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], to: str, reason: str
) -> None:
    """Put a table's mark back to where it was after a run, or at a time."""
    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    before = _mark_position(item)
    moved = _by_hand(item.store, [item.pipeline]).rollback(item.stream, to, reason=reason)
    now_at = moved.extracted.position or "the beginning"
    invocation.terminal.say(f"{item.stream}: mark moved from {before or 'the beginning'} back to {now_at}")
    _warn_of_rereading(invocation, item, before, moved.extracted.position)


# --- Checking and keeping ------------------------------------------------------


@command.command()
@pipelines_option
@tables_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    as_json: bool,
) -> int:
    """Look for what cannot be right, and say how to repair it. Exits 4 if anything is found."""
    from tidegate.sync.checking import damaged

    invocation = invocation_of(ctx)
    findings = list(damaged(_damaged(invocation, pipelines)))
    items = _chosen(invocation, pipelines, tables)
    for item in items:
        findings += _checked(item)
    if as_json:
        print_json([{"where": f.where, "problem": f.problem, "repair": f.repair} for f in findings])
    elif findings:
        for finding in findings:
            invocation.terminal.error(f"{finding.where}: {finding.problem}", finding.repair)
    else:
        invocation.terminal.say(f"{len(items):,} tables checked, nothing wrong")
    return VerificationFailed.exit_code if findings else 0


def _checked(item: Chosen) -> list[Any]:
    from tidegate.state.clock import now
    from tidegate.state.process import this_process
    from tidegate.sync.checking import Checked, check_stream
    from tidegate.sync.library import open_staging

    staging = open_staging(item.pipeline.staging)
    me = this_process("tidegate watermark check")
    zone = _zone(item)
    return [
        finding
        for stored in (item.stored, *item.beside)
        for finding in check_stream(Checked(stored, staging, zone), item.store, me, now())
    ]


def _zone(item: Chosen) -> str:
    try:
        return item.pipeline.settings_for(item.stream.name).cursor.zone
    except TidegateError:  # the table has left the pipeline, and only its state is still there
        return "UTC"


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@pipelines_option
@tables_option
@click.option("--all", "everything", is_flag=True, help="Every pipeline of the project.")
@click.pass_context
def export(
    ctx: click.Context,
    /,
    *,
    file: Path,
    pipelines: Sequence[str],
    tables: Sequence[str],
    everything: bool,
) -> None:
    """Save marks to a file, as a backup."""
    from tidegate.cli.sync import write_json
    from tidegate.state.clock import now
    from tidegate.sync.marks import backup

    _demand_choice(pipelines, tables, everything=everything)
    invocation = invocation_of(ctx)
    for damaged in _damaged(invocation, pipelines):
        invocation.terminal.warn(f"left out: {damaged.where}: {damaged.problem}")
    marks = [
        stored.watermark
        for item in _chosen(invocation, pipelines, tables)
        for stored in (item.stored, *item.beside)
        if stored.watermark is not None
    ]
    write_json(file, backup(marks, now()))
    invocation.terminal.say(f"{len(marks):,} marks saved to {file}")


@command.command(name="import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@pipelines_option
@tables_option
@click.option("--all", "everything", is_flag=True, help="Everything that the file holds.")
@_reason
@yes_option
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    *,
    file: Path,
    pipelines: Sequence[str],
    tables: Sequence[str],
    everything: bool,
    reason: str | None,
    yes: bool,
    force: bool,
) -> None:
    """Put marks back from a file that `export` has written. What they replace is kept in the history."""
    _demand_choice(pipelines, tables, everything=everything)
    invocation = invocation_of(ctx)
    chosen = {pipeline.name: pipeline for pipeline in chosen_pipelines(invocation, pipelines)}
    marks = [mark for mark in _backup(file) if mark.stream.pipeline in chosen and _named(mark.stream, tables)]
    if not marks:
        raise UsageError("the file holds no mark of what was asked for", where=str(file))
    names = ", ".join(str(mark.stream) for mark in marks)
    confirm(f"Replace the marks of {names}?", yes=yes or force)
    stores = Stores()
    for name, pipeline in chosen.items():
        own = [mark for mark in marks if mark.stream.pipeline == name]
        hand = _by_hand(stores.of(pipeline), [pipeline])
        hand.restore(own, reason=reason or f"imported from {file.name}")
    invocation.terminal.say(f"{len(marks):,} marks restored from {file}")


def _backup(file: Path) -> list[Watermark]:
    from tidegate.sync.marks import read_backup

    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=str(file)) from error
    except ValueError as error:
        raise UsageError("the file is not JSON", where=str(file)) from error
    return read_backup(data, str(file))


def _named(stream: StreamId, tables: Sequence[str]) -> bool:
    from tidegate.config.spelling import matches
    from tidegate.sync.streams import owner

    own = owner(stream).name
    return not tables or any(matches(name, own) for name in tables)


def _demand_choice(pipelines: Sequence[str], tables: Sequence[str], *, everything: bool) -> None:
    if not everything and not pipelines and not tables:
        raise click.UsageError("say which with -p and -t, or --all")


def _chosen(invocation: Invocation, pipelines: Sequence[str], tables: Sequence[str]) -> list[Chosen]:
    return chosen_tables(chosen_pipelines(invocation, pipelines), tables, Stores())


def _damaged(invocation: Invocation, pipelines: Sequence[str]) -> list[Any]:
    """Damaged records, each once, although several pipelines may share a store."""
    stores = Stores()
    found: dict[str, Any] = {}
    for pipeline in _pipelines(invocation, pipelines):
        found.update({record.where: record for record in stores.listing(pipeline).damaged})
    return list(found.values())


def _pipelines(invocation: Invocation, names: Sequence[str]) -> list[Pipeline]:
    return chosen_pipelines(invocation, names)


def _mark_position(item: Chosen) -> Position | None:
    return item.stored.watermark.extracted.position if item.stored.watermark else None


def _by_hand(store: Store, pipelines: Sequence[Pipeline]) -> ByHand:
    from tidegate.state.clock import new_token, now
    from tidegate.state.process import this_process
    from tidegate.sync.library import target_of
    from tidegate.sync.marks import ByHand

    targets = {pipeline.name: pipeline.target for pipeline in pipelines}
    return ByHand(
        store, lambda name: target_of(targets[name]), this_process("tidegate watermark"), now, new_token
    )
