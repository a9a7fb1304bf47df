"""One call of the command line: its global options, and what commands share while it lasts."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.observe.logs import Secrets, configure, remove
from tidegate.observe.terminal import Terminal

if TYPE_CHECKING:
    from tidegate.config.project import Project


@dataclass
class Invocation:
    project_folder: Path | None = None
    debug: bool = False
    quiet: bool = False
    log_file: Path | None = None
    json_logs: bool = False
    machine_output: bool = False
    """Standard output belongs to a program: people read on standard error."""
    secrets: Secrets = field(default_factory=Secrets)
    _handlers: list[logging.Handler] = field(default_factory=list)

    def begin(self, command: str) -> None:
        """All options are known: set up what depends on them."""
        if not self._handlers:
            self._handlers = configure(
                debug=self.debug, file=self.log_file, as_json=self.json_logs, secrets=self.secrets
            )
        logging.getLogger("tidegate.cli").info("%s", command)

    def end(self) -> None:
        remove(self._handlers)
        self._handlers = []

    @cached_property
    def terminal(self) -> Terminal:
        out = sys.stderr if self.machine_output else sys.stdout
        return Terminal(out, sys.stderr, quiet=self.quiet, hidden=self.secrets.hidden)

    @cached_property
    def project(self) -> Project:
        """The project of this call, loaded when the first command asks for it."""
        from tidegate.config.project import Project

        if self.project_folder is not None:
            project = Project.load(self.project_folder)
        else:
            project = Project.find(Path.cwd())
        self.secrets.add(project.secrets())
        return project


def invocation_of(ctx: click.Context) -> Invocation:
    invocation: Invocation = ctx.find_root().ensure_object(Invocation)
    return invocation
