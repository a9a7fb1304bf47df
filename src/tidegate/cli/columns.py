"""`tidegate columns`: what columns are called at the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    chosen_pipelines,
    chosen_tables,
    json_option,
    one_table,
    one_table_options,
    pipelines_option,
    print_json,
    tables_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of

if TYPE_CHECKING:
    from tidegate.config.pipelines import Pipeline
    from tidegate.sync.columns import NamedColumn, TableColumns


@click.group(cls=Group, name="columns")
def command() -> None:
    """Look at what columns are called at the target, and decide otherwise.

    A name changes only where the target does not take it as it is. Mappings are kept in column_mappings/ and
    used by every later sync.
    """


@command.command()
@pipelines_option
@tables_option
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], as_json: bool) -> None:
    """Show the columns of tables and their names at the target."""
    from tidegate.cli.choosing import Stores

    invocation = invocation_of(ctx)
    found = []
    for item in chosen_tables(chosen_pipelines(invocation, pipelines), tables, Stores()):
        with _columns(item.pipeline, item.stream.name) as columns:
            found.append((item, columns.named()))
    if as_json:
        print_json(
            [
                {
                    "pipeline": item.stream.pipeline,
                    "table": item.stream.name,
                    "columns": [_json(column) for column in named],
                }
                for item, named in found
            ]
        )
        return
    rows = [[item.stream.name, *_cells(column)] for item, named in found for column in named]
    invocation.terminal.table(["table", "column", "type", "at the target", "type there", "name", ""], rows)


@command.command(name="map")
@one_table_options
@click.argument("column")
@click.argument("name")
@click.pass_context
def map_(
    ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], column: str, name: str
) -> None:
    """Call COLUMN of one table NAME at the target, from the next sync on.

    A column whose rows have arrived under another name is refused: they would stay behind. Rename it at the
    target first. To let a column that was renamed at the source go on where the old one ended, map its new
    name to the old one before the next sync.
    """
    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    with _columns(item.pipeline, item.stream.name) as columns:
        columns.map(column, name)
    _say_saved(invocation, item.pipeline, item.stream.name, f"{column} is called {name} at the target")


@command.command()
@one_table_options
@click.argument("column")
@click.pass_context
def unmap(ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], column: str) -> None:
    """Leave the name of COLUMN to the rules again."""
    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    with _columns(item.pipeline, item.stream.name) as columns:
        name = columns.unmap(column)
    _say_saved(invocation, item.pipeline, item.stream.name, f"{column} is called {name} at the target again")


@command.command()
@one_table_options
@click.option("--reason", metavar="WHY", help="Why, for the history.")
@click.pass_context
def accept(
    ctx: click.Context, /, *, pipelines: Sequence[str], tables: Sequence[str], reason: str | None
) -> None:
    """Let one table go on although its columns have become narrower, or hold something else.

    A sync stops at such a change, since rows that it has read before may not be the same any more.
    """
    from tidegate.state.clock import new_token, now

    invocation = invocation_of(ctx)
    item = one_table(invocation, pipelines, tables)
    why = reason or "accepted with `tidegate columns accept`"
    with _columns(item.pipeline, item.stream.name) as columns:
        changes = columns.accept(reason=why, clock=now, token=new_token)
    if not changes:
        invocation.terminal.say(f"{item.stream}: nothing has changed since its last run")
        return
    for change in changes:
        invocation.terminal.say(f"{item.stream}: {change}")
    invocation.terminal.say("accepted; the next sync goes on")


@contextmanager
def _columns(pipeline: Pipeline, table: str) -> Iterator[TableColumns]:
    from tidegate.sync.columns import TableColumns
    from tidegate.sync.library import open_parts

    parts = open_parts(pipeline, command="tidegate columns")
    try:
        yield TableColumns(pipeline, table, parts)
    finally:
        parts.close()


def _say_saved(invocation: Invocation, pipeline: Pipeline, table: str, text: str) -> None:
    path = pipeline.mappings.path(table)
    where = path.relative_to(invocation.project.root).as_posix()
    invocation.terminal.say(f"{text}; {where} says so" if path.exists() else text)


def _cells(column: NamedColumn) -> list[str]:
    notes = ["" if column.there else "not there yet", "quote it in queries" if column.needs_quotes else ""]
    return [
        column.column.name,
        column.column.native or str(column.column.type),
        column.name,
        column.native,
        column.origin.value,
        ", ".join(note for note in notes if note),
    ]


def _json(column: NamedColumn) -> dict[str, Any]:
    return {
        "column": column.column.name,
        "type": column.column.native or str(column.column.type),
        "name": column.name,
        "target_type": column.native,
        "origin": column.origin.value.replace(" ", "_"),
        "there": column.there,
        "needs_quotes": column.needs_quotes,
    }
