"""`tidegate` itself: the table of commands, each imported when it is called, and how errors end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from tidegate.cli.commands import Group
from tidegate.cli.failures import ended
from tidegate.cli.invocation import invocation_of


@dataclass(frozen=True)
class Entry:
    """Where a command lives, and what the overview says of it without importing it."""

    module: str
    help: str = ""
    """Empty: an old name that keeps working and is not listed."""
    name: str = "command"


COMMANDS = {
    "demo": Entry("demo", "See the whole product at work on generated data."),
    "init": Entry("init", "Write a project to edit."),
    "sync": Entry("sync", "Move what is new from source to warehouse."),
    "job": Entry("job", "Fill a temporary table, move it on, and empty it."),
    "watermark": Entry("watermark", "Look at the marks of tables, and move them by hand."),
    "staging": Entry("staging", "Look at staged files, and clean up."),
    "quarantine": Entry("quarantine", "Look at rows that were put aside, and decide about them."),
    "status": Entry("status", "All tables at a glance."),
    "columns": Entry("columns", "Look at what columns are called at the target, and map them."),
    "delta": Entry("delta", "Follow Delta tables: plan ranges of versions, process them once."),
    "archive": Entry("archive", "Pack files that a table lists into shards."),
    "alerts": Entry("alerts", "Try out who is told when something is wrong."),
    "config": Entry("config", "Look at the configuration, and check it."),
    "connections": Entry("connections", "Look at connections, and try them."),
    "redshift-local": Entry("redshift_local", "Stand in for Redshift, to try a pipeline without a cluster."),
    "backup": Entry("sync", name="backup"),
    "s3clean": Entry("staging"),
}


class Root(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name, entry in COMMANDS.items() if entry.help]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(import_module(f"tidegate.cli.{entry.module}"), entry.name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.help])

    def invoke(self, ctx: click.Context) -> Any:
        ctx.call_on_close(invocation_of(ctx).end)
        with ended(ctx):
            return super().invoke(ctx)


@click.group(cls=Root, hide_globals=False, context_settings={"help_option_names": ["--help", "-h"]})
def tidegate() -> None:
    """Tidegate moves data past a watermark, exactly once, on Spark:
    database tables, through Parquet files, into a warehouse.

    Begin with `tidegate demo`, or with `tidegate init` for a project of your own.
    """
