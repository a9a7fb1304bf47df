"""Variables: the process environment, then `.env`, and `${VAR}` in text.

`${VAR}` is the variable's value, `${VAR:-default}` the default where it is missing or empty,
`${provider:reference}` a secret that is kept elsewhere, and `$${` stands for `${` itself. Values are taken as
they are: a `${` inside a value is not looked at again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate.config.problems import Problem, config_error
from tidegate.config.secrets import NoSecret, Providers

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^{}]*)\}|\$\{")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_SECRET = re.compile(r"(?P<provider>[a-z][a-z0-9_-]*):(?P<reference>[^-\s][^\n]*)")


@dataclass(frozen=True)
class Variables:
    """What `${VAR}` can refer to. The process environment wins over `.env`."""

    environ: Mapping[str, str] = field(repr=False, default_factory=dict)
    dotenv: Mapping[str, str] = field(repr=False, default_factory=dict)
    unread_lines: tuple[int, ...] = ()
    """Lines of `.env` that say nothing to us; worth a word when a variable is missing."""
    providers: Providers | None = field(repr=False, default=None)
    """Who is asked for secrets; None: nobody yet."""

    def asking(self, providers: Providers) -> Variables:
        return replace(self, providers=providers)

    def get(self, name: str) -> str | None:
        return self.environ.get(name, self.dotenv.get(name))

    @property
    def names(self) -> list[str]:
        return [*self.dotenv, *self.environ]


@dataclass(frozen=True)
class Substituted:
    """Text with its variables filled in, and those that could not be."""

    text: str
    missing: tuple[str, ...] = ()
    malformed: bool = False
    deferred: bool = False
    """A secret stands in it, and nobody was to be asked for it yet."""
    refused: tuple[str, ...] = ()
    """Why secrets could not be had."""


def substitute(text: str, variables: Variables) -> Substituted:
    """Fill in the variables of one piece of text."""
    missing: list[str] = []
    refused: list[str] = []
    malformed = deferred = False

    def value(token: re.Match[str]) -> str:
        nonlocal malformed, deferred
        if token[0] == "$${":
            return "${"
        kept = _SECRET.fullmatch(token["body"] or "")
        if kept is not None and variables.providers is None:
            deferred = True
            return ""
        if kept is not None and variables.providers is not None:
            try:
                return variables.providers.fetch(kept["provider"], kept["reference"])
            except NoSecret as error:
                refused.append(str(error))
                return ""
        body = _BODY.fullmatch(token["body"] or "")
        if body is None:
            malformed = True
            return ""
        found = variables.get(body["name"])
        if body["default"] is not None:
            return found or body["default"]
        if found is None:
            missing.append(body["name"])
        return found or ""

    filled = _TOKEN.sub(value, text)
    return Substituted(filled, tuple(missing), malformed, deferred, tuple(refused))


def read_variables(path: Path, environ: Mapping[str, str]) -> Variables:
    """The environment and the `.env` file at `path`, which need not exist."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return Variables(environ)
    except UnicodeDecodeError as error:
        raise config_error([Problem(path.name, 0, 0, "the file is not UTF-8 text")]) from error
    except OSError as error:
        raise config_error([Problem(path.name, 0, 0, f"cannot be read: {error.strerror}")]) from error
    return _parse(text, environ)


def _parse(text: str, environ: Mapping[str, str]) -> Variables:
    from dotenv.parser import parse_stream
    from dotenv.variables import parse_variables

    found: dict[str, str] = {}
    unread: list[int] = []
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            unread.append(_line(binding.original.string, binding.original.line))
        elif binding.key is not None and binding.value is not None:
            known: dict[str, str | None] = {**found, **environ}
            found[binding.key] = "".join(atom.resolve(known) for atom in parse_variables(binding.value))
    return Variables(environ, found, tuple(unread))


def _line(original: str, first: int) -> int:
    """A binding begins with the blank lines before it."""
    blank = len(original) - len(original.lstrip())
    return first + original[:blank].count("\n")
