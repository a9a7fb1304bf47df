"""`tidegate status`: all tables at a glance. It asks the stores alone, and no source or target."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import Stores, json_option, pipelines_option, print_json, tables_option
from tidegate.cli.commands import Command
from tidegate.cli.invocation import invocation_of
from tidegate.cli.versions import Followed, Item, chosen_items, chosen_of_all_kinds

if TYPE_CHECKING:
    from tidegate.observe.terminal import Cell
    from tidegate.state.contract import Stored


@click.command(cls=Command, name="status")
@pipelines_option
@tables_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    as_json: bool,
) -> None:
    """Show all tables at a glance: both marks, lag, what is pending, the last run, who holds them."""
    from tidegate.state.clock import now

    invocation = invocation_of(ctx)
    stores = Stores()
    chosen = chosen_of_all_kinds(invocation, pipelines)
    at = now()
    facts = [
        _facts(item, stored, at)
        for item in chosen_items(invocation, pipelines, tables, stores)
        for stored in (item.stored, *item.beside)
    ]
    damaged = {record.where: record for pipeline in chosen for record in stores.listing(pipeline).damaged}
    if as_json:
        problems = [{"where": record.where, "problem": record.problem} for record in damaged.values()]
        print_json({"at": at.isoformat(), "tables": facts, "damaged": problems})
        return
    headings = [
        "pipeline",
        "table",
        "extracted up to",
        "loaded up to",
        "lag",
        "pending",
        "last run",
        "state",
        "held by",
    ]
    invocation.terminal.table(headings, [_row(fact) for fact in facts])
    for fact in facts:
        if fact["last_error"]:
            invocation.terminal.show(f"{fact['pipeline']}/{fact['table']}: {fact['last_error']}")
    for record in damaged.values():
        invocation.terminal.error(
            f"{record.where}: {record.problem}", "`tidegate watermark check` tells more"
        )


def _facts(item: Item, stored: Stored, at: datetime) -> dict[str, Any]:
    from tidegate.state.process import this_process
    from tidegate.sync.checking import ahead_of
    from tidegate.sync.marks import extracted_status, live_holder

    mark = stored.watermark
    holder = live_holder(stored, this_process("tidegate status"), at)
    position = mark.extracted.position if mark else None
    ahead = ahead_of(position, _zone(item), at)
    run = mark.run if mark else None
    return {
        "pipeline": stored.stream.pipeline,
        "table": stored.stream.name,
        "extracted": str(position) if position else None,
        "loaded": str(mark.loaded.position) if mark and mark.loaded.position else None,
        "lag_seconds": None if ahead is None else round(-ahead.total_seconds(), 1),
        "pending_files": len(mark.pending) if mark else 0,
        "pending_rows": sum(segment.rows for segment in mark.pending) if mark else 0,
        "last_run": (run.finished_at or run.started_at).isoformat() if run else None,
        "status": extracted_status(mark, held=holder is not None),
        "last_error": mark.last_error if mark else None,
        "held_by": str(holder) if holder else None,
    }


def _row(fact: dict[str, Any]) -> list[Cell]:
    from tidegate.observe.figures import moment, span
    from tidegate.observe.terminal import Tone, Toned

    tones = {"failed": Tone.BAD, "interrupted": Tone.WARN, "running": Tone.GOOD, "never": Tone.FAINT}
    lag = fact["lag_seconds"]
    last = fact["last_run"]
    return [
        fact["pipeline"],
        fact["table"],
        fact["extracted"] or "–",
        fact["loaded"] or "–",
        "–" if lag is None else span(max(lag, 0.0)),
        f"{fact['pending_files']:,}",
        moment(datetime.fromisoformat(last)) if last else "–",
        Toned(fact["status"], tones.get(fact["status"], Tone.PLAIN)),
        fact["held_by"] or "–",
    ]


def _zone(item: Item) -> str:
    from tidegate.core.errors import TidegateError

    if isinstance(item, Followed):
        return "UTC"
    try:
        return item.pipeline.settings_for(item.stream.name).cursor.zone
    except TidegateError:  # the table has left the pipeline, and only its state is still there
        return "UTC"
