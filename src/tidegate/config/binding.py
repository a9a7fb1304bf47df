"""From a file's tree to a model: variables filled in, and everything that does not fit put into words.

A message shows what stands in the file, never what a variable holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidegate.config.loading import Document, Fields, Items, Node, Scalar
from tidegate.config.problems import KeyPath, Problem
from tidegate.config.spelling import did_you_mean, listed, nearest
from tidegate.config.variables import Variables, substitute

M = TypeVar("M", bound=BaseModel)

_MOST_VALUES = 200_000
"""YAML's anchors can make a small file enormous."""
_LONGEST_WORD = 60


@dataclass
class Values:
    """A part of a file as plain data, with its variables filled in."""

    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)
    """Variables that are not defined. That hurts only those who need the value."""
    unknown: set[KeyPath] = field(default_factory=set)
    """Where these values would stand."""
    deferred: bool = False
    """Secrets stand in it that nobody has been asked for yet."""


@dataclass(frozen=True)
class Bound(Generic[M]):
    """What became of a part of a file. The model is there if there are no problems and nothing is missing."""

    model: M | None
    problems: tuple[Problem, ...] = ()
    missing: tuple[Problem, ...] = ()
    deferred: bool = False
    """It needs secrets that nobody has been asked for yet."""


@dataclass(frozen=True)
class Binder:
    """Binds the parts of one file."""

    document: Document
    variables: Variables
    root: Path

    def values(self, path: KeyPath) -> Values:
        """The part of the file at `path`; nothing where there is none."""
        found = Values()
        node = self.document.node(path)
        if node is not None:
            found.data = _Reading(self.document, self.variables, found).value(node, path)
        return found

    def bind(self, model: type[M], path: KeyPath) -> Bound[M]:
        """Make the model of the part of the file at `path`, which may say nothing."""
        values = self.values(path)
        values.data = {} if values.data is None else values.data
        return self.fit(model, path, values)

    def fit(self, model: type[M], path: KeyPath, values: Values) -> Bound[M]:
        """Make the model of values that were read at `path`."""
        fitted: M | None = None
        problems = list(values.problems)
        try:
            fitted = model.model_validate(values.data, context={"root": self.root})
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            wrong = [detail for detail in details if not _follows(detail, path, values.unknown)]
            problems += [self._problem(model, path, detail) for detail in wrong]
        complete = not problems and not values.missing and not values.deferred
        return Bound(fitted if complete else None, tuple(problems), tuple(values.missing), values.deferred)

    def _problem(self, model: type[BaseModel], base: KeyPath, detail: ErrorDetails) -> Problem:
        path = base + detail["loc"]
        if detail["type"] == "missing":
            message = f"`{path[-1]}` is missing"
            return self.document.problem(path[:-1], message, at=self.document.key_mark(path[:-1]))
        if detail["type"] == "extra_forbidden":
            message = unknown_key(model_at(model, detail["loc"][:-1]), str(path[-1]))
            return self.document.problem(path[:-1], message, at=self.document.key_mark(path))
        return self.document.problem(path, self._words(detail, self.document.node(path)))

    def _words(self, detail: ErrorDetails, node: Node | None) -> str:
        if detail["type"] == "value_error":
            return str(detail.get("ctx", {}).get("error", "is not valid"))
        choices = _choices(detail)
        if choices:
            near = did_you_mean(node.text, choices) if isinstance(node, Scalar) and node.text else ""
            return f"expected {_either(choices)}, found {found_word(node)}{near}"
        wanted = _wanted(detail)
        number = wanted.startswith(("a number", "a whole number", "true or"))
        return f"expected {wanted}, found {found_word(node) if number else found(node)}"


@dataclass
class _Reading:
    """One walk over a tree."""

    document: Document
    variables: Variables
    result: Values
    count: int = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > _MOST_VALUES:
            return self._too_many(path)
        match node:
            case Scalar(text=text):
                return self._text(text, path) if text and "${" in text else text
            case Items(items=items):
                return [self.value(item, (*path, index)) for index, item in enumerate(items)]
            case Fields(fields=fields):
                return {key: self.value(value, (*path, key)) for key, (_, value) in fields.items()}

    def _text(self, text: str, path: KeyPath) -> str:
        filled = substitute(text, self.variables)
        if filled.malformed:
            hint = "write ${VAR}, ${VAR:-default} or ${provider:secret}, and $${ for a plain ${"
            self.result.problems.append(self.document.problem(path, "a `${` that is no variable", hint=hint))
        for name in filled.missing:
            self.result.missing.append(missing_variable(self.document, path, name, self.variables))
        for reason in filled.refused:
            self.result.missing.append(self.document.problem(path, reason))
        self.result.deferred = self.result.deferred or filled.deferred
        if filled.malformed or filled.missing or filled.refused or filled.deferred:
            self.result.unknown.add(path)
        return filled.text

    def _too_many(self, path: KeyPath) -> None:
        if self.count == _MOST_VALUES + 1:
            message = f"more than {_MOST_VALUES:,} values, counting those that anchors repeat"
            self.result.problems.append(self.document.problem(path[:1], message))


def missing_variable(document: Document, path: KeyPath, name: str, variables: Variables) -> Problem:
    near = did_you_mean(name, variables.names)
    unread = f"; line {variables.unread_lines[0]} of .env cannot be read" if variables.unread_lines else ""
    hint = f"define it in the environment or in .env beside config/{unread}"
    return document.problem(path, f"the variable `{name}` is not defined{near}", hint=hint)


def unknown_key(model: type[BaseModel] | None, key: str) -> str:
    """What to say of a key that `model` does not have."""
    if model is None:
        return f"unknown key `{key}`"
    nested = {name: inner for name, inner in _nested(model).items() if key in keys_of(inner)}
    if nested:
        return f"unknown key `{key}`: it belongs under `{next(iter(nested))}`"
    near = nearest(key, keys_of(model))
    if near:
        return f"unknown key `{key}`: did you mean `{near}`?"
    return f"unknown key `{key}`: there are {listed(sorted(keys_of(model)))}"


def keys_of(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def model_at(model: type[BaseModel], path: Iterable[str | int]) -> type[BaseModel] | None:
    """The model of the mapping that lies at `path` inside a model."""
    here: type[BaseModel] | None = model
    for part in path:
        here = _nested(here).get(str(part)) if here is not None else None
    return here


def found(node: Node | None) -> str:
    """What stands in the file, for a message. Text is not shown: it could be a password in a wrong place."""
    match node:
        case Scalar(text=str() as text):
            return "text" if text else "an empty text"
        case Items():
            return "a list"
        case Fields():
            return "keys and values"
        case _:
            return "nothing"


def found_word(node: Node | None) -> str:
    """The same, showing what stands where a word or a number should; variables as they are written."""
    if isinstance(node, Scalar) and node.text and len(node.text) <= _LONGEST_WORD and "\n" not in node.text:
        return f"`{node.text}`"
    return found(node)


def _nested(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    return {
        info.alias or name: part
        for name, info in model.model_fields.items()
        for part in (info.annotation, *get_args(info.annotation))
        if isinstance(part, type) and issubclass(part, BaseModel)
    }


def _follows(detail: ErrorDetails, base: KeyPath, unknown: set[KeyPath]) -> bool:
    """Whether an error comes of a value that could not be filled in, and says nothing of its own."""
    path = base + detail["loc"]
    inside = any(path[: len(place)] == place for place in unknown)
    return inside or (detail["type"] == "value_error" and any(p[: len(path)] == path for p in unknown))


def _choices(detail: ErrorDetails) -> list[str]:
    if detail["type"] not in ("enum", "literal_error"):
        return []
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def _either(choices: list[str]) -> str:
    quoted = [f"`{choice}`" for choice in choices]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]


_WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "string": "text",
    "path": "a path",
    "tuple": "a list",
    "list": "a list",
    "dict": "keys and values",
    "mapping": "keys and values",
    "model": "keys and values",
}
_LIMITS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def _wanted(detail: ErrorDetails) -> str:
    """What a type error wants, in words."""
    kind: str = detail["type"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    for limit, words in _LIMITS.items():
        if kind.startswith(("greater_than", "less_than")) and limit in context:
            return f"a number {words} {context[limit]:,.0f}"
    if kind == "string_too_short":
        return "text"
    if kind == "string_too_long":
        return f"at most {context.get('max_length')} characters"
    return _WANTED.get(kind.split("_", 1)[0], "something else")
