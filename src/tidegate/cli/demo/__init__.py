"""`tidegate demo`: the whole product at work on generated data."""

from __future__ import annotations

from pathlib import Path

import click

from tidegate.cli.commands import Command
from tidegate.cli.invocation import invocation_of

FEWEST_ROWS = 1_000
MOST_ROWS = 50_000_000


@click.command(cls=Command, name="demo")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidegate-demo"),
    show_default=True,
    metavar="DIR",
    help="Where the demo's project is written: a new, an empty, or an earlier demo's folder.",
)
@click.option(
    "--rows",
    type=click.IntRange(FEWEST_ROWS, MOST_ROWS),
    default=300_000,
    show_default=True,
    metavar="N",
    help="How many orders the shop has to begin with.",
)
@click.pass_context
def command(ctx: click.Context, /, *, folder: Path, rows: int) -> int:
    """See the whole product at work on generated data; nothing else is needed.

    A shop's tables travel to a warehouse; then rows change; then a run is killed half-way and run again. In
    the end source and warehouse are compared, value by value.
    """
    from tidegate.cli.demo.story import tell

    return tell(invocation_of(ctx), folder, rows)
