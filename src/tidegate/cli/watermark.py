"""`tidegate watermark`: look at marks, and move them by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    Stores,
    json_option,
    one_table_options,
    pipelines_option,
    print_json,
    tables_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.failures import FAILED, say
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.cli.marks_by_hand import reset, rollback, set_
from tidegate.cli.marks_kept import check, damaged_records, export, import_
from tidegate.cli.versions import Item, chosen_items, one_item
from tidegate.core.errors import DamagedRecord
from tidegate.observe.figures import counted

if TYPE_CHECKING:
    from tidegate.core.watermark import Event
    from tidegate.state.contract import Stored


@click.group(cls=Group, name="watermark")
def command() -> None:
    """Look at the marks of tables, and move them by hand.

    A table has two marks: how far it was extracted from the source, and how far it was loaded. Changes by
    hand are kept in the history with their reason, and refused while a run holds the table.
    """


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
    items, damaged = _readable(chosen_items(invocation, pipelines, tables, Stores()))
    described = [_described(item, item.stored, show_files=show_files) for item in items]
    if as_json:
        print_json(described[0] if len(tables) == 1 and len(described) == 1 else described)
    else:
        for item, data in zip(items, described, strict=True):
            _show(invocation, item, data)
    for error in damaged:
        say(invocation, error)
    if damaged:
        ctx.exit(FAILED)


def _readable(items: Sequence[Item]) -> tuple[list[Item], list[DamagedRecord]]:
    """A listing has no mark for a damaged record, which must not look as if the table had never run."""
    readable: list[Item] = []
    damaged: list[DamagedRecord] = []
    for item in items:
        try:
            if item.stored.watermark is None:
                item.store.read(item.stream)
        except DamagedRecord as error:
            damaged.append(error)
        else:
            readable.append(item)
    return readable, damaged


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
    items = chosen_items(invocation, pipelines, tables, Stores())
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
    for damaged in damaged_records(invocation, pipelines):
        invocation.terminal.warn(f"{damaged.where}: {damaged.problem}")


@command.command()
@one_table_options
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
    item = one_item(invocation, pipelines, tables)
    events = sorted(
        ((stream, event) for stream in item.streams for event in item.store.history(stream, limit=limit)),
        key=lambda pair: pair[1].at,
    )[-limit:]
    if as_json:
        print_json([{"table_name": stream.name, **event.to_json()} for stream, event in events])
        return
    if not events:
        invocation.terminal.say(f"{item.stream} has never run")
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
        case "planned" | "started" | "retried":
            return f"window {Window.from_json(data['window'])}"
        case "completed":
            return f"{counted(data['rows'], 'row')}, up to {_place(data['window']['high'])}"
        case "extracted":
            lossy = sum(data.get("lossy", {}).values())
            unfit = f", {counted(lossy, 'value')} did not fit and became NULL" if lossy else ""
            return f"{counted(data['rows'], 'row')}, up to {_place(data['position'])}{unfit}"
        case "loaded":
            return f"{counted(data['rows'], 'row')} in {counted(len(data['segments']), 'file')}"
        case "failed":
            return str(data["error"])
        case "manual":
            to = f" to {_place(data['to'])}" if "to" in data else ""
            return f"{data['act']}{to}: {data['reason']}"
        case "job":
            return f"{data['act']}: {len(data['segments']):,} files"
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


def _described(item: Item, stored: Stored, *, show_files: bool = False) -> dict[str, Any]:
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


def _show(invocation: Invocation, item: Item, data: dict[str, Any]) -> None:
    from tidegate.observe.figures import moment
    from tidegate.observe.terminal import Tone

    terminal, mark = invocation.terminal, item.stored.watermark
    terminal.show(str(item.stream), Tone.STRONG)
    if mark is None:
        terminal.show("  has never run")
        return
    extracted, loaded = mark.extracted, mark.loaded
    waiting = sum(segment.rows for segment in mark.pending)
    facts = {
        "extracted": f"up to {extracted.position or 'the beginning'}, {extracted.rows_total:,} rows in all, "
        f"{extracted.rows_last_run:,} in the last run ({data['extracted']['status']})",
        "loaded": f"{loaded.rows_total:,} rows ({data['loaded']['status']}), last {moment(loaded.at)}",
        "pending": f"{counted(len(mark.pending), 'file')}, {counted(waiting, 'row')}",
        "changed": f"{moment(mark.updated_at)} (version {item.stored.version})",
        "held by": data["held_by"] or "nobody",
        "last error": mark.last_error or "none",
        "by hand": mark.manual or "never moved",
    }
    if extracted.lossy:
        counts = [f"{column} {values:,}" for column, values in extracted.lossy]
        facts["made NULL"] = f"{', '.join(counts)}: values that did not fit"
    for label, text in facts.items():
        terminal.show(f"  {label:<11}{text}")
    for key in [*data["pending_files"], *(data.get("loaded_files") or ())]:
        terminal.show(f"    {'pending' if key in data['pending_files'] else 'loaded ':<8}{key}")


for each in (set_, reset, rollback, check, export, import_):
    command.add_command(each)
