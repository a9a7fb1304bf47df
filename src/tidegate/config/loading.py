"""YAML files as trees whose every value knows its line.

A scalar stays the text that stands in the file; the model that wants a number or a date reads it from there.
So `007` as a password keeps its zeros, and `no` as a table's name stays a name. Only an unquoted null (or
nothing at all) is no value. The same key twice is an error: which of the two was meant is not for us to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import yaml

from tidegate.config.problems import KeyPath, Problem, config_error, shown_path

if TYPE_CHECKING:
    from tidegate.core.errors import ConfigError

_DEEPEST = 50
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    mark: Mark
    text: str | None


@dataclass(frozen=True, slots=True)
class Items:
    mark: Mark
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    mark: Mark
    fields: dict[str, tuple[Mark, Node]]
    """Each key with the place where it stands."""


Node = Scalar | Items | Fields


@dataclass(frozen=True, slots=True)
class Document:
    """A file that could be read, and the problems that did not keep it from being read."""

    file: str
    root: Fields
    problems: tuple[Problem, ...] = ()

    def node(self, path: KeyPath) -> Node | None:
        node: Node | None = self.root
        for part in path:
            if isinstance(node, Fields) and part in node.fields:
                node = node.fields[str(part)][1]
            elif isinstance(node, Items) and isinstance(part, int) and part < len(node.items):
                node = node.items[part]
            else:
                return None
        return node

    def key_mark(self, path: KeyPath) -> Mark:
        """Where the last key of `path` stands; for one that is not there, its parent's place."""
        for end in range(len(path), 0, -1):
            parent = self.node(path[: end - 1])
            if isinstance(parent, Fields) and path[end - 1] in parent.fields:
                return parent.fields[str(path[end - 1])][0]
        return self.root.mark

    def value_mark(self, path: KeyPath) -> Mark:
        node = self.node(path)
        # An empty value, or one that begins on a line of its own, is easier to find by its key.
        if isinstance(node, Scalar) and node.text:
            return node.mark
        return self.key_mark(path)

    def problem(
        self, path: KeyPath, message: str, *, hint: str | None = None, at: Mark | None = None
    ) -> Problem:
        mark = at or self.value_mark(path)
        text = f"{shown_path(path)}: {message}" if path else message
        return Problem(self.file, mark.line, mark.column, text, hint)


def read_document(path: Path, file: str) -> Document:
    """Read one YAML file; `file` is what messages call it."""
    text = _read_text(path, file)
    odd = _UNPRINTABLE.search(text)
    if odd:
        line, column = _position(text, odd.start())
        name = f"the character U+{ord(odd[0]):04X}"
        raise config_error([Problem(file, line, column, f"{name} cannot stand in YAML")])
    try:
        return _Composer(file, yaml.parse(text, Loader=_Loader)).document()
    except yaml.YAMLError as error:
        # Not chained: what PyYAML says may quote the file, and the file may hold a password.
        raise _unreadable(error, text, file) from None


def _read_text(path: Path, file: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise config_error([Problem(file, 0, 0, f"cannot be read: {error.strerror}")]) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        line, column = _position(before, len(before))
        hint = "save the file as UTF-8"
        raise config_error([Problem(file, line, column, "the file is not UTF-8 text", hint)]) from None


def _position(text: str, index: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, index) + 1
    return text.count("\n", 0, index) + 1, index - start + 1


class _Composer:
    """Builds the tree from YAML's events, to a bounded depth: PyYAML's own composer has no bound."""

    def __init__(self, file: str, events: Iterator[yaml.Event]) -> None:
        self._file = file
        self._events = events
        self._anchors: dict[str, Node] = {}
        self._problems: list[Problem] = []

    def document(self) -> Document:
        root: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(event, "a second document begins here", "keep one YAML document in a file")
            elif not isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent):
                root = self._node(event, 0)
        return Document(self._file, self._top(root), tuple(self._problems))

    def _top(self, root: Node | None) -> Fields:
        if isinstance(root, Fields):
            return root
        if root is None or (isinstance(root, Scalar) and root.text is None):
            return Fields(Mark(1, 1), {})
        message = "expected keys and values, such as `pipeline:`, at the top of the file"
        raise config_error([Problem(self._file, root.mark.line, root.mark.column, message)])

    def _node(self, event: yaml.Event, depth: int) -> Node:
        if depth > _DEEPEST:
            self._stop(event, "values are nested too deeply")
        match event:
            case yaml.ScalarEvent():
                node: Node = self._scalar(event)
            case yaml.SequenceStartEvent():
                node = self._items(event, depth)
            case yaml.MappingStartEvent():
                node = self._fields(event, depth)
            case yaml.AliasEvent():
                return self._alias(event)
            case _:
                self._stop(event, "this is not valid YAML")
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        self._no_tag(event)
        empty = event.implicit[0] and event.value in _NULLS
        return Scalar(_mark(event), None if empty else event.value)

    def _items(self, event: yaml.SequenceStartEvent, depth: int) -> Items:
        self._no_tag(event)
        items = []
        while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(following, depth + 1))
        return Items(_mark(event), tuple(items))

    def _fields(self, event: yaml.MappingStartEvent, depth: int) -> Fields:
        self._no_tag(event)
        fields: dict[str, tuple[Mark, Node]] = {}
        merged: list[Fields] = []
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            name = self._key(key)
            value = self._node(next(self._events), depth + 1)
            if name == "<<" and isinstance(key, yaml.ScalarEvent) and key.implicit[0]:
                merged.extend(self._merged(key, value))
            elif name in fields:
                self._twice(key, name, fields[name][0])
            else:
                fields[name] = (_mark(key), value)
        for other in merged:
            fields = other.fields | fields
        return Fields(_mark(event), fields)

    def _key(self, event: yaml.Event) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._stop(event, "a key must be plain text", "quote a key that begins with `[`, `{` or `*`")
        self._no_tag(event)
        if event.anchor is not None:
            self._stop(event, "a key cannot have an anchor", "quote a key that begins with `&`")
        if not event.value:
            self._stop(event, "a key cannot be empty")
        return event.value

    def _merged(self, key: yaml.Event, value: Node) -> list[Fields]:
        """The mappings behind `<<`, so that the first of them wins when they are laid over each other."""
        parts = value.items if isinstance(value, Items) else (value,)
        found = [part for part in parts if isinstance(part, Fields)]
        if len(found) != len(parts):
            self._stop(key, "`<<` takes keys and values from elsewhere, and this is something else")
        return found

    def _twice(self, event: yaml.Event, name: str, first: Mark) -> None:
        mark = _mark(event)
        message = f"the key `{name}` stands here twice, first on line {first.line}"
        self._problems.append(Problem(self._file, mark.line, mark.column, message))

    def _alias(self, event: yaml.AliasEvent) -> Node:
        node = self._anchors.get(event.anchor or "")
        if node is None:
            self._stop(event, "`*` refers to an anchor that is not there", "quote text that begins with `*`")
        return node

    def _no_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None and event.tag != "!":
            self._stop(event, "YAML tags have no meaning here", "quote text that begins with `!`")

    def _stop(self, event: yaml.Event, message: str, hint: str | None = None) -> NoReturn:
        mark = _mark(event)
        raise config_error([*self._problems, Problem(self._file, mark.line, mark.column, message, hint)])


def _mark(event: yaml.Event) -> Mark:
    place = event.start_mark
    return Mark(place.line + 1, place.column + 1) if place else Mark(1, 1)


def _unreadable(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    lines = text.splitlines() or [""]
    row = min(mark.line, len(lines) - 1) if mark else 0
    column = mark.column if mark and mark.line == row else len(lines[row])
    message, hint = _in_words(str(getattr(error, "problem", None)), error, lines[row], column)
    return config_error([Problem(file, row + 1, column + 1, message, hint)])


def _in_words(problem: str, error: yaml.YAMLError, line: str, column: int) -> tuple[str, str | None]:
    """The scanner's problem for people; its own words may quote the file, so they are not passed on."""
    began = getattr(error, "context_mark", None)
    since = f" that began on line {began.line + 1}" if began else ""
    sign = line[column : column + 1]
    if "cannot start any token" in problem and sign == "\t":
        return "a tab stands where YAML wants spaces", "indent with spaces"
    if "cannot start any token" in problem:
        return f"a value cannot begin with `{sign}`", "put it in quotes"
    if "mapping values are not allowed" in problem:
        hint = "check the indentation; text that contains `: ` needs quotes"
        return "a second `:` stands where no key can be", hint
    if "',' or" in problem:
        quotes = 'in { } and [ ] a variable needs quotes: "${VAR}"'
        hint = quotes if "${" in line else "close it, or add a comma"
        return f"the list or mapping in brackets{since} does not end properly", hint
    if "end of stream" in problem:
        return f"the quoted text{since} never ends", None
    if "expected" in problem and ("key" in problem or "block end" in problem or "'-'" in problem):
        hint = "check the indentation and the quotes of this line and the one above"
        return "this does not fit what stands above it", hint
    return "this is not valid YAML", "check the indentation, quotes and brackets around it"
