"""`tidegate config`: look at the configuration, and check it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidegate.cli.choosing import json_option, pipelines_option, print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import invocation_of

if TYPE_CHECKING:
    from tidegate.config.project import Project


@click.group(cls=Group, name="config")
def command() -> None:
    """Look at the configuration, and check it."""


@command.command()
@pipelines_option
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, pipelines: Sequence[str], as_json: bool) -> None:
    """Show the configuration as it applies, with all defaults filled in and secrets hidden."""
    invocation = invocation_of(ctx)
    data = invocation.project.describe()
    if pipelines:
        names = [invocation.project.named(name) for name in pipelines]
        data["pipelines"] = {name: data["pipelines"][name] for name in names}
    if as_json:
        print_json(data)
        return
    import yaml

    invocation.terminal.show(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100).rstrip())


@command.command()
@click.pass_context
def validate(ctx: click.Context) -> None:
    """Check every file, and that every variable is defined. Connects to nothing."""
    from tidegate.observe.figures import counted

    invocation = invocation_of(ctx)
    project = invocation.project
    project.validate()
    found = counted(len(project.pipelines), "pipeline")
    invocation.terminal.say(f"{project.root}: {found}, nothing wrong")


@command.command(name="list-pipelines")
@json_option
@click.pass_context
def list_pipelines(ctx: click.Context, /, *, as_json: bool) -> None:
    """List the pipelines of the project."""
    from tidegate.core.errors import ConfigError

    invocation = invocation_of(ctx)
    facts: list[dict[str, object]] = []
    for name in invocation.project.pipelines:
        try:
            facts.append({"pipeline": name, **_facts(invocation.project, name)})
        except ConfigError as error:
            facts.append({"pipeline": name, "problem": str(error)})
    if as_json:
        print_json(facts)
        return
    headings = ["pipeline", "source", "target", "tables", "file"]
    rows = [[str(fact.get(key, "–")) for key in headings] for fact in facts]
    invocation.terminal.table(headings, rows)
    for fact in facts:
        if "problem" in fact:
            invocation.terminal.warn(str(fact["problem"]))


def _facts(project: Project, name: str) -> dict[str, object]:
    if project.is_delta(name):
        delta = project.delta_pipeline(name)
        found = delta.pattern.place if delta.pattern else "upstreams"
        return {
            "source": found,
            "target": delta.target_name,
            "tables": len(delta.upstreams),
            "file": delta.file,
        }
    pipeline = project.pipeline(name)
    return {
        "source": pipeline.source_name,
        "target": pipeline.target_name,
        "tables": len(pipeline.tables),
        "file": pipeline.file,
    }
