"""What all commands have in common: global options before and after them, and how they end.

A command returns its exit code; nothing means 0. Global options may stand anywhere on the line, and where one
stands twice, the later one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tidegate.cli.invocation import invocation_of


class Command(click.Command):
    """A command that also takes the global options, without listing them again in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *global_options(hidden=True)]

    def invoke(self, ctx: click.Context) -> Any:
        invocation_of(ctx).begin(ctx.command_path)
        code = super().invoke(ctx)
        if isinstance(code, int) and code:
            ctx.exit(code)
        return code

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text("Global options (see tidegate --help) may stand here too.")


class Group(click.Group):
    """A group whose commands take the global options, as it does itself."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, hide_globals: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *global_options(hidden=hide_globals)]


def global_options(*, hidden: bool) -> list[click.Option]:
    return [
        _option(
            ["--project"],
            _set_project,
            "The folder that holds config/. [default: the nearest parent that does]",
            hidden=hidden,
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
        ),
        _option(
            ["--config-file"],
            _set_config_file,
            "A project, by its folder or a file in its config/.",
            hidden=True,
            type=click.Path(path_type=Path),
        ),
        _option(["--debug"], _set_debug, "Show traces and what happens inside.", hidden=hidden, is_flag=True),
        _option(["--quiet", "-q"], _set_quiet, "Only warnings and errors.", hidden=hidden, is_flag=True),
        _option(
            ["--log-file"],
            _set_log_file,
            "Also write a log to this file.",
            hidden=hidden,
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
        ),
        _option(["--json-logs"], _set_json_logs, "Logs as lines of JSON.", hidden=hidden, is_flag=True),
        _option(
            ["--version"], _show_version, "Show the version.", hidden=hidden, is_flag=True, is_eager=True
        ),
    ]


def _option(
    names: list[str],
    keep: Callable[[click.Context, Any], None],
    help: str,
    *,
    hidden: bool,
    **settings: Any,
) -> click.Option:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        # An option that was not given must not undo the same option given elsewhere on the line.
        if value not in (None, False):
            keep(ctx, value)

    settings.setdefault("default", None)
    return click.Option(names, help=help, hidden=hidden, expose_value=False, callback=callback, **settings)


def _set_project(ctx: click.Context, value: Path) -> None:
    invocation_of(ctx).project_folder = value


def _set_config_file(ctx: click.Context, value: Path) -> None:
    invocation_of(ctx).project_folder = value


def _set_debug(ctx: click.Context, _: bool) -> None:  # noqa: FBT001 - click's signature
    invocation_of(ctx).debug = True


def _set_quiet(ctx: click.Context, _: bool) -> None:  # noqa: FBT001
    invocation_of(ctx).quiet = True


def _set_log_file(ctx: click.Context, value: Path) -> None:
    invocation_of(ctx).log_file = value


def _set_json_logs(ctx: click.Context, _: bool) -> None:  # noqa: FBT001
    invocation_of(ctx).json_logs = True


def _show_version(ctx: click.Context, _: bool) -> None:  # noqa: FBT001
    from tidegate import __version__

    if ctx.resilient_parsing:  # the line is being completed, not run
        return
    click.echo(f"tidegate {__version__}")
    ctx.exit()
