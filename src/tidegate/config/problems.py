"""Problems in config files: where they are, in words, and how several become one error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.core.errors import ConfigError

_MOST_SHOWN = 30

KeyPath = tuple[str | int, ...]
"""The keys that lead to a value, from the top of its file."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at one place of one file. Line and column count from 1; line 0 is the whole file."""

    file: str
    line: int
    column: int
    message: str
    hint: str | None = None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    def __str__(self) -> str:
        return str(ConfigError(self.message, where=self.where, hint=self.hint))


class ConfigProblems(ConfigError):
    """A `ConfigError` that still knows the problems it was made of."""

    problems: tuple[Problem, ...] = ()


def config_error(problems: Iterable[Problem]) -> ConfigProblems:
    """One error for one or more problems, in the order of files and lines."""
    ordered = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.message))
    error = _one_error(ordered)
    error.problems = tuple(ordered)
    return error


def _one_error(ordered: list[Problem]) -> ConfigProblems:
    if len(ordered) == 1:
        return ConfigProblems(ordered[0].message, where=ordered[0].where, hint=ordered[0].hint)
    lines = [f"{len(ordered):,} problems in the configuration", *map(str, ordered[:_MOST_SHOWN])]
    if len(ordered) > _MOST_SHOWN:
        lines.append(f"and {len(ordered) - _MOST_SHOWN:,} more")
    return ConfigProblems("\n  ".join(lines))


def shown_path(path: KeyPath) -> str:
    """`tables."sales.orders".keys[0]`: a name that holds a dot is quoted, so that the path can be read."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if re.fullmatch(r"[\w*?-]+", part) else f'."{part}"'
    return text.removeprefix(".")
