"""What the commands of the archiver share: the file they are given, and what they work with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.archive.config import ArchiveConfig
    from tidegate.archive.contract import Tools
    from tidegate.cli.signals import Stop


def config_option(function: Any) -> Any:
    return click.option(
        "--config",
        "-c",
        "config_file",
        required=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The archive's configuration.",
    )(function)


def config_of(invocation: Invocation, path: Path) -> ArchiveConfig:
    try:
        from tidegate.archive import library  # noqa: F401 - to see whether everything is there
        from tidegate.archive.config import read_config
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error

    config = read_config(path)
    invocation.secrets.add(config.secrets())
    return config


def _not_installed(error: ModuleNotFoundError) -> TidegateError:
    return UsageError(
        f"the archiver needs the package `{error.name}`, which is not installed",
        hint="install it with `pip install 'tidegate[postgresql,spark]'`",
    )


@contextmanager
def tools_of(
    ctx: click.Context, path: Path, name: str, stop: Stop | None = None
) -> Iterator[tuple[Invocation, Tools, Any]]:
    invocation = invocation_of(ctx)
    config = config_of(invocation, path)
    from tidegate.archive.library import open_tools
    from tidegate.cli.archiving import Watched
    from tidegate.cli.signals import Stop as Signals

    with open_tools(config, command=name) as tools:
        yield invocation, tools, Watched(invocation, stop or Signals(gently=False))
