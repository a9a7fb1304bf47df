"""`tidegate init`: a project to edit, or a pipeline for the tables of a source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.commands import Command
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.config.connections import Connections, Section
    from tidegate.sync.suggesting import Suggestion

OWN_TABLES = ("_tidegate_", "tidegate_")
"""How tables begin that Tidegate keeps in a database which is a target or a store, too."""


@click.command(cls=Command, name="init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), metavar="[DIR]")
@click.option(
    "--from-source",
    "source",
    metavar="NAME",
    help="In a project: write a pipeline for the tables of this source, with a strategy and cursor for each.",
)
@click.option("--pipeline", "-p", metavar="NAME", help="What it is called. [default: as the source]")
@click.option("--target", metavar="NAME", help="Where it goes. [default: the only target]")
@click.option("--table", "-t", "patterns", multiple=True, metavar="NAME", help="Only these; also patterns.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    folder: Path,
    source: str | None,
    pipeline: str | None,
    target: str | None,
    patterns: Sequence[str],
) -> None:
    """Write a project to edit: config/, .env.example, .gitignore, and a small example that runs as it is.

    With --from-source, write config/pipelines/NAME.yml for the tables of a source of this project.
    """
    invocation = invocation_of(ctx)
    if source is not None:
        if folder != Path():
            raise UsageError("--from-source works in the project that is here", hint="name it with --project")
        return _pipeline(invocation, source, pipeline or source, target, patterns)
    if pipeline or target or patterns:
        raise UsageError("--pipeline, --target and --table go with --from-source")
    return _project(invocation, folder)


def _project(invocation: Invocation, folder: Path) -> None:
    from tidegate.config.scaffold import write_project

    terminal = invocation.terminal
    done = write_project(folder)
    for path in done.written:
        terminal.say(f"wrote {path}")
    for path in done.kept:
        terminal.say(f"kept  {path}")
    begin = f"cd {folder} && " if folder != Path() else ""
    terminal.say(f"next: {begin}tidegate sync, or edit config/connections.yml first")


def _pipeline(
    invocation: Invocation, source: str, name: str, target: str | None, patterns: Sequence[str]
) -> None:
    from tidegate.config.connections import Section
    from tidegate.config.scaffold import write_pipeline
    from tidegate.sync.suggesting import pipeline_text

    project = invocation.project
    connections = project.connections
    connections.source(source)  # a name that is none of them comes before the question where it goes
    described = {
        "name": name,
        "source": source,
        "target": _named(connections, Section.TARGET, target, "--target"),
        "staging": _first(connections, Section.STAGING),
        "state": _first(connections, Section.STATE),
    }
    tables = _suggested(connections, source, patterns)
    path = write_pipeline(project.root, name, pipeline_text(described, tables))
    invocation.terminal.table(
        ["table", "strategy", "by", ""],
        [
            [
                table,
                suggestion.strategy.value,
                ", ".join(filter(None, (suggestion.timestamp, suggestion.id))),
                "; ".join(suggestion.remarks),
            ]
            for table, suggestion in tables.items()
        ],
    )
    invocation.terminal.say(f"wrote {path}: go over it, then: tidegate sync -p {name} --dry-run")


def _suggested(connections: Connections, source: str, patterns: Sequence[str]) -> dict[str, Suggestion]:
    from tidegate.config.spelling import matches
    from tidegate.sync.library import source_of
    from tidegate.sync.suggesting import suggest

    with closing(source_of(connections, source)) as opened:
        found = [table for table in opened.tables() if not table.startswith(OWN_TABLES)]
        names = [table for table in found if any(matches(pattern, table) for pattern in patterns or ("*",))]
        if not names:
            what = "no such table" if patterns else "no table"
            raise UsageError(
                f"the source `{source}` shows {what}",
                hint=f"see what it may read: tidegate connections test -c {source}",
            )
        opened.discover(names)
        return {name: suggest(opened.table(name, fresh=False).schema) for name in names}


def _named(connections: Connections, section: Section, name: str | None, option: str) -> str:
    if name is not None:
        connections.get(section, name)
        return name
    names = connections.names(section)
    if len(names) != 1:
        raise UsageError(
            f"the project has {len(names)} {section.value}s",
            hint=f"choose one with {option}: {', '.join(names)}",
        )
    return names[0]


def _first(connections: Connections, section: Section) -> str:
    """The first that the file names; whoever has several goes over what was written anyway."""
    names = connections.names(section)
    if not names:
        raise UsageError(f"the project has no {section.value}", hint="add one to config/connections.yml")
    return names[0]
