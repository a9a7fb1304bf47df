"""`tidegate init`: a project to edit."""

from __future__ import annotations

from pathlib import Path

import click

from tidegate.cli.commands import Command
from tidegate.cli.invocation import invocation_of


@click.command(cls=Command, name="init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), metavar="[DIR]")
@click.pass_context
def command(ctx: click.Context, /, *, folder: Path) -> None:
    """Write a project to edit: config/, .env.example, .gitignore, and a small example that runs as it is."""
    from tidegate.config.scaffold import write_project

    terminal = invocation_of(ctx).terminal
    done = write_project(folder)
    for path in done.written:
        terminal.say(f"wrote {path}")
    for path in done.kept:
        terminal.say(f"kept  {path}")
    begin = f"cd {folder} && " if folder != Path() else ""
    terminal.say(f"next: {begin}tidegate sync, or edit config/connections.yml first")
