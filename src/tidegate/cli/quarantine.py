"""`tidegate quarantine`: rows that were put aside because they break the rules of their table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    chosen_pipelines,
    chosen_tables,
    confirm,
    json_option,
    one_table,
    one_table_options,
    pipelines_option,
    print_json,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of

if TYPE_CHECKING:
    from tidegate.cli.choosing import Chosen
    from tidegate.sync.quarantine import Quarantine, Quarantined


@click.group(cls=Group, name="quarantine")
def command() -> None:
    """Look at rows that were put aside because they break the rules of their table, and decide about them."""


@command.command(name="list")
@pipelines_option
@tables_option
@json_option
@click.pass_context
def list_(ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], as_json: bool) -> None:
    """List files of rows that were put aside. Each row carries its reason in `_tidegate_reason`."""
    from tidegate.cli.choosing import Stores
    from tidegate.observe.figures import moment

    invocation = invocation_of(ctx)
    found: list[Quarantined] = []
    for item in chosen_tables(chosen_pipelines(invocation, pipelines), tables, Stores()):
        with _quarantine(item) as quarantine:
            found += quarantine.files()
    if as_json:
        print_json([_json(file) for file in found])
        return
    rows = [
        [
            str(file.stream),
            moment(file.at),
            file.run_id or "–",
            f"{file.segment.rows:,}",
            "; ".join(file.reasons) or "each row has its own",
            file.segment.key,
        ]
        for file in found
    ]
    invocation.terminal.table(["table", "since", "run", "rows", "reason", "file"], rows)


def _changing(function: Any) -> Any:
    for option in (
        click.option("--reason", metavar="WHY", help="Why, for the history."),
        click.option("--run", metavar="ID", help="Only rows of this run. [default: all]"),
        one_table_options,
    ):
        function = option(function)
    return function


@command.command()
@_changing
@click.option("--as-they-are", is_flag=True, help="Without judging them again.")
@yes_option
@click.pass_context
def redrive(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    run: str | None,
    reason: str | None,
    as_they_are: bool,
    yes: bool,
    force: bool,
) -> None:
    """Let the rows of one table that break no rule any more be loaded by the next sync.

    They are judged by the rules of today; those that break one stay. Versions of rows that are older than
    what has arrived since lose, where rows are merged.
    """
    from tidegate.observe.figures import counted
    from tidegate.sync.sifting import Sieve

    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    with _quarantine(item) as quarantine:
        files = _asked(invocation, quarantine, run)
        if not files:
            return
        what = "that break its rules" if as_they_are else "as far as they break its rules no more"
        confirm(f"Load {_rows(files)} rows of {item.stream} {what}?", yes=yes or force)
        settings = item.pipeline.settings_for(item.stream.name)
        sieve = None if as_they_are else Sieve(quarantine.parts.staging, settings, quarantine.token)
        why = reason or "redriven with `tidegate quarantine redrive`"
        rows = quarantine.redrive(files, settings, reason=why, sieve=sieve)
        left = sum(file.segment.rows for file in quarantine.files(run))
    if rows:
        invocation.terminal.say(f"{counted(rows, 'row')} to be loaded by `tidegate sync --load-only`")
    if left:
        invocation.terminal.say(f"{counted(left, 'row')} left in quarantine: --as-they-are would bring them")


@command.command()
@_changing
@yes_option
@click.pass_context
def discard(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    run: str | None,
    reason: str | None,
    yes: bool,
    force: bool,
) -> None:
    """Give up the rows of one table. Their files stay until `tidegate staging clean`."""
    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    with _quarantine(item) as quarantine:
        files = _asked(invocation, quarantine, run)
        if not files:
            return
        confirm(f"Give up {_rows(files)} rows of {item.stream}?", yes=yes or force)
        quarantine.discard(files, reason=reason or "discarded with `tidegate quarantine discard`")
    invocation.terminal.say(f"{_rows(files)} rows given up")


def _asked(invocation: Invocation, quarantine: Quarantine, run: str | None) -> list[Quarantined]:
    files = quarantine.files(run)
    if not files:
        invocation.terminal.say("there is nothing in quarantine")
    return files


def _rows(files: Sequence[Quarantined]) -> str:
    return f"{sum(file.segment.rows for file in files):,}"


@contextmanager
def _quarantine(item: Chosen) -> Iterator[Quarantine]:
    from tidegate.state.clock import new_token, now
    from tidegate.sync.library import open_parts
    from tidegate.sync.quarantine import Quarantine

    parts = open_parts(item.pipeline, command="tidegate quarantine")
    try:
        yield Quarantine(parts, item.stream, now, new_token)
    finally:
        parts.close()


def _json(file: Quarantined) -> dict[str, Any]:
    return {
        "pipeline": file.stream.pipeline,
        "table": file.stream.name,
        "run": file.run_id,
        "since": file.at.isoformat(),
        "rows": file.segment.rows,
        "reasons": list(file.reasons),
        "file": file.segment.key,
    }
