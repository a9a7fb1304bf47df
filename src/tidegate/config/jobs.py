"""The `job` of a pipeline: fill a temporary table, move it on, and empty it."""

from __future__ import annotations

import shlex
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from tidegate.config.kinds import Duration, Model, Names, ProjectPath, Text


def _words(value: Any) -> Any:
    """A command may be written as one line; no shell ever reads it."""
    return shlex.split(value) if isinstance(value, str) else value


def _something(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words:
        raise ValueError("there is no command in it")
    return words


Command = Annotated[tuple[Text, ...], BeforeValidator(_words), AfterValidator(_something)]


class DownloadOptions(Model):
    command: Command
    timeout: Duration = timedelta(hours=1)
    environment: dict[Text, SecretStr] = Field(default_factory=dict)
    """Beside what tidegate's own environment has."""
    directory: ProjectPath | None = None
    """None: the folder that holds `config/`."""


class ToldBy(StrEnum):
    """What tells that a temporary row is still the one that was synced."""

    VERSION = "version"
    """The columns of its cursor, where one of them is a timestamp."""
    CONTENTS = "contents"
    """All that it holds."""


class JobOptions(Model):
    write_connection: Text
    """The source under whose name the temporary rows are deleted."""
    tables: Names | None = None
    """None: all tables of the pipeline."""
    download: DownloadOptions | None = None
    told_by: ToldBy = ToldBy.VERSION
    batch_size: Annotated[int, Field(ge=1, le=5000)] = 500
    """Rows that one DELETE names: its transaction is short, and a statement holds only so much."""
