"""`tidegate watermark check`, `export` and `import`: whether kept marks can be right, and copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    Chosen,
    FiniteRange,
    Stores,
    confirm,
    json_option,
    pipelines_option,
    print_json,
    read_json,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Command
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.cli.marks_by_hand import appended_in_words, by_hand, reason_option
from tidegate.cli.versions import Followed, Item, chosen_items, chosen_of_all_kinds, restore_versions
from tidegate.core.errors import TidegateError, UsageError, VerificationFailed
from tidegate.observe.figures import counted

if TYPE_CHECKING:
    from tidegate.cli.older import TakingOver
    from tidegate.config.deltas import DeltaPipeline
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.watermark import StreamId, Watermark


@click.command(cls=Command)
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
    findings = list(damaged(damaged_records(invocation, pipelines)))
    items = chosen_items(invocation, pipelines, tables, Stores())
    for item in items:
        findings += _checked(item)
    if as_json:
        print_json([{"where": f.where, "problem": f.problem, "repair": f.repair} for f in findings])
    elif findings:
        for finding in findings:
            invocation.terminal.error(f"{finding.where}: {finding.problem}", finding.repair)
    else:
        invocation.terminal.say(f"{counted(len(items), 'table')} checked, nothing wrong")
    return VerificationFailed.exit_code if findings else 0


def _checked(item: Item) -> list[Any]:
    from tidegate.state.clock import now
    from tidegate.state.process import this_process
    from tidegate.sync.checking import Checked, check_stream
    from tidegate.sync.library import open_staging

    me = this_process("tidegate watermark check")
    if isinstance(item, Followed):
        alone = Checked(item.stored, None, again="tidegate delta run")
        return list(check_stream(alone, item.store, me, now()))
    staging = open_staging(item.pipeline.staging)
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


_format = click.option(
    "--format",
    "form",
    type=click.Choice(["s3-redshift-v1", "s3-redshift-v2"]),
    help="The form of the S3-Redshift backup tool, version 1 or 2: a file for a table, or a folder of them.",
)


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@pipelines_option
@tables_option
@click.option("--all", "everything", is_flag=True, help="Every pipeline of the project.")
@_format
@click.pass_context
def export(
    ctx: click.Context,
    /,
    *,
    file: Path,
    pipelines: Sequence[str],
    tables: Sequence[str],
    everything: bool,
    form: str | None,
) -> None:
    """Save marks to a file, as a backup or in the form of an older tool."""
    from tidegate.cli.sync import write_json
    from tidegate.state.clock import now
    from tidegate.sync.marks import backup

    _demand_choice(pipelines, tables, everything=everything)
    invocation = invocation_of(ctx)
    if form is not None:
        from tidegate.cli.older import hand_back
        from tidegate.core.older import OlderFormat

        items = [
            item for item in chosen_items(invocation, pipelines, tables, Stores()) if isinstance(item, Chosen)
        ]
        hand_back(invocation, items, OlderFormat(form), file)
        return
    for damaged in damaged_records(invocation, pipelines):
        invocation.terminal.warn(f"left out: {damaged.where}: {damaged.problem}")
    marks = [
        stored.watermark
        for item in chosen_items(invocation, pipelines, tables, Stores())
        for stored in (item.stored, *item.beside)
        if stored.watermark is not None
    ]
    write_json(file, backup(marks, now()))
    invocation.terminal.say(f"{len(marks):,} marks saved to {file}")


@click.command(cls=Command, name="import")
@click.argument("file", type=click.Path(path_type=Path))
@pipelines_option
@tables_option
@click.option("--all", "everything", is_flag=True, help="Everything that the file holds.")
@_format
@click.option("--begin", metavar="TS", help="With --format: read again after this timestamp or id.")
@click.option(
    "--look-back",
    type=FiniteRange(min=0),
    metavar="HOURS",
    help="With --format: how far before the mark rows are read again, where they are merged. [default: 24]",
)
@reason_option
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
    form: str | None,
    begin: str | None,
    look_back: float | None,
    reason: str | None,
    yes: bool,
    force: bool,
) -> None:
    """Put marks back from a file that `export` has written, or begin where an older tool has stopped.

    What they replace is kept in the history.
    """
    invocation = invocation_of(ctx)
    if form is not None:
        taking = _taking_over(invocation, form, pipelines, begin, look_back)
        taking.run(file, tables, reason, yes=yes or force)
        return
    if begin is not None or look_back is not None:
        raise click.UsageError("--begin and --look-back go with --format")
    _demand_choice(pipelines, tables, everything=everything)
    chosen = {pipeline.name: pipeline for pipeline in chosen_of_all_kinds(invocation, pipelines)}
    marks = [mark for mark in _backup(file) if mark.stream.pipeline in chosen and _named(mark.stream, tables)]
    if not marks:
        raise UsageError("the file holds no mark of what was asked for", where=str(file))
    names = ", ".join(str(mark.stream) for mark in marks)
    confirm(f"Replace the marks of {names}?", yes=yes or force)
    stores = Stores()
    for name, pipeline in chosen.items():
        own = [mark for mark in marks if mark.stream.pipeline == name]
        _restore(invocation, pipeline, stores, own, reason or f"imported from {file.name}")
    invocation.terminal.say(f"{len(marks):,} marks restored from {file}")


def _restore(
    invocation: Invocation,
    pipeline: Pipeline | DeltaPipeline,
    stores: Stores,
    marks: Sequence[Watermark],
    reason: str,
) -> None:
    from tidegate.config.pipelines import Pipeline

    if isinstance(pipeline, Pipeline):
        older = by_hand(stores.of(pipeline), [pipeline]).restore(marks, reason=reason)
        _warn_of_doubles(invocation, pipeline, [mark for mark in marks if mark.stream in older])
    elif marks:
        restore_versions(invocation, pipeline, stores.of(pipeline), marks, reason)


def _warn_of_doubles(invocation: Invocation, pipeline: Pipeline, older: Sequence[Watermark]) -> None:
    from tidegate.sync.streams import owner

    for mark in older:
        if appended := appended_in_words(pipeline, owner(mark.stream), mark):
            invocation.terminal.warn(
                f"{mark.stream} has run since this was saved, and {appended}: rows that are read again "
                "will be in the warehouse twice"
            )


def _taking_over(
    invocation: Invocation, form: str, pipelines: Sequence[str], begin: str | None, look_back: float | None
) -> TakingOver:
    from datetime import timedelta

    from tidegate.cli.older import TakingOver
    from tidegate.core.older import OlderFormat
    from tidegate.sync.takeover import Wish

    hours = Wish.lookback if look_back is None else timedelta(hours=look_back)
    return TakingOver(invocation, OlderFormat(form), pipelines, Wish(begin, hours))


def _backup(file: Path) -> list[Watermark]:
    from tidegate.sync.marks import read_backup

    return read_backup(read_json(file), str(file))


def _named(stream: StreamId, tables: Sequence[str]) -> bool:
    from tidegate.config.spelling import matches
    from tidegate.sync.streams import owner

    own = owner(stream).name
    return not tables or any(matches(name, own) for name in tables)


def _demand_choice(pipelines: Sequence[str], tables: Sequence[str], *, everything: bool) -> None:
    if not everything and not pipelines and not tables:
        raise click.UsageError("say which with -p and -t, or --all")


def damaged_records(invocation: Invocation, pipelines: Sequence[str]) -> list[Any]:
    """Damaged records, each once, although several pipelines may share a store."""
    stores = Stores()
    found: dict[str, Any] = {}
    for pipeline in chosen_of_all_kinds(invocation, pipelines):
        found.update({record.where: record for record in stores.listing(pipeline).damaged})
    return list(found.values())
