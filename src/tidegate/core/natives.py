"""What a source's own words say about two types that travel alike.

A type that no target has travels as text, and several travel as one kind of integer. A column can change from
one of them to another without a change in how it travels, and its values may still have been cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tidegate.core.mappings import MOST_DIGITS

PLAIN_TEXTS = frozenset(
    {
        *("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
        *("character", "character varying", "bpchar", "name", "citext"),
    }
)
PLAIN_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bytea"})
"""Types that are nothing but text, or bytes; their length travels with the column."""

_TRIMMED = frozenset({"char", "character", "bpchar"})
"""Texts that lose the blanks at their ends."""
_CUT = "name"
"""A text of PostgreSQL that keeps 63 bytes of what is put into it."""
_FILLED = "binary"
"""Bytes that MySQL fills up with zeros to the length of the column."""

_ONE_TEXT = frozenset({"numeric", "bit", "bit varying", "macaddr", "macaddr8"})
"""Types whose values PostgreSQL writes in one way only, whatever is set: a column of text holds the same."""

_INTEGERS = {"tinyint": 1, "year": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
"""In the order of what they hold. In brackets they have how wide they are shown, which is no size."""
_SECONDS = frozenset({"time", "datetime", "timestamp", "interval"})
_MOST_SECOND_DIGITS = 6
_LABELLED = re.compile(r"(enum|set)\((.*)\)(\[\])?", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_SIZES = re.compile(r"\(\s*(-?\d+)(?:\s*,\s*(-?\d+))?\s*\)")
_COMMENT = re.compile(r"/\*.*?\*/")
_UNSIGNED = re.compile(r"\b(unsigned|zerofill)\b")
_OF_DIGITS = frozenset({"numeric", "decimal", "float", "double"})


class Relation(StrEnum):
    """What the second of two types is to the first."""

    SAME = "same"
    """As far as one can tell by their names."""
    WIDER = "wider"
    NARROWER = "narrower"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class _Native:
    family: str
    """The type without its sizes: `numeric`, `time with time zone`, `character varying[]`."""
    sizes: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    unsigned: bool = False

    @classmethod
    def of(cls, native: str) -> _Native:
        labelled = _LABELLED.fullmatch(native.strip())
        if labelled:
            labels = tuple(label.replace("''", "'") for label in _LABEL.findall(labelled[2]))
            return cls(f"{labelled[1].lower()}{labelled[3] or ''}", labels=labels)
        words = _COMMENT.sub("", native.lower())
        sizes = _SIZES.search(words)
        family = " ".join(_UNSIGNED.sub("", _SIZES.sub(" ", words)).split()).replace(" []", "[]")
        found = tuple(int(size) for size in sizes.groups() if size) if sizes else ()
        return cls(family, found, unsigned=_UNSIGNED.search(words) is not None)


def relation(source: str, before: str, after: str) -> Relation:
    """Compares two declarations of a column. SQLite's bind no value, and of others' nothing is known."""
    if source not in ("mysql", "postgresql") or not before or not after or before == after:
        return Relation.SAME
    old, new = _Native.of(before), _Native.of(after)
    if old.labels and new.labels:
        return _of_labels(old, new)
    if old.labels and new.family in PLAIN_TEXTS and not old.family.endswith("[]"):
        return _of_longest(old, new)
    if source == "postgresql" and old.family in _ONE_TEXT and new.family in PLAIN_TEXTS and not new.sizes:
        return Relation.WIDER
    if new.unsigned and not old.unsigned:
        return Relation.NARROWER
    families = {old.family, new.family}
    if families <= _INTEGERS.keys():
        return _ordered(_INTEGERS[old.family], _INTEGERS[new.family])
    if families <= PLAIN_TEXTS or families <= PLAIN_BYTES:
        return Relation.SAME if _keeps_values(old, new) else Relation.NARROWER
    if old.family != new.family:
        return Relation.WIDER if new.family == "geometry" else Relation.OTHER
    return _of_sizes(source, old, new)


def outgrown(source: str, before: str, after: str) -> bool:
    """Whether decimals became too wide for any target, so that they travel as text, and as the same text."""
    old, new = _Native.of(before), _Native.of(after)
    decimals = {old.family, new.family} <= {"numeric", "decimal"} and bool(old.sizes and new.sizes)
    same_scale = decimals and _digits(old.sizes)[1] == _digits(new.sizes)[1]
    return same_scale and relation(source, before, after) is Relation.WIDER


def is_wide_decimal(native: str) -> bool:
    """Whether a column is declared with more digits than any target's decimals have."""
    declared = _Native.of(native)
    whole, scale = _digits(declared.sizes)
    digits = max(whole, scale, whole + scale)
    return declared.family in ("numeric", "decimal") and MOST_DIGITS < digits < float("inf")


def _keeps_values(old: _Native, new: _Native) -> bool:
    """Whether texts or bytes are the same after they have moved into a column of another declaration."""
    if new.family == _FILLED:
        return (old.family, old.sizes) == (new.family, new.sizes)
    if new.family in _TRIMMED:
        return old.family in _TRIMMED
    return new.family != _CUT or old.family == _CUT


def _of_labels(old: _Native, new: _Native) -> Relation:
    if new.family != old.family:
        return Relation.OTHER
    if old.family == "set" and [label for label in new.labels if label in old.labels] != list(old.labels):
        return Relation.NARROWER  # its text has its labels in the order of the declaration
    if set(old.labels) == set(new.labels):
        return Relation.SAME
    return Relation.WIDER if set(old.labels) < set(new.labels) else Relation.NARROWER


def _of_longest(old: _Native, new: _Native) -> Relation:
    """From labels to a text that may be long enough for each of them, or for all of a set."""
    lengths = [len(label) for label in old.labels]
    longest = sum(lengths) + len(lengths) - 1 if old.family == "set" else max(lengths)
    return Relation.NARROWER if new.sizes and new.sizes[0] < longest else Relation.WIDER


def _of_sizes(source: str, old: _Native, new: _Native) -> Relation:
    element = old.family.replace("[]", "")
    if old.sizes == new.sizes:
        return Relation.SAME
    if element in _OF_DIGITS:
        return _of_digits(old, new)
    if source == "postgresql" and element == "bit":
        return Relation.NARROWER  # it has just as many as are declared
    without = _without_sizes(source, element)
    return _ordered(old.sizes[0] if old.sizes else without, new.sizes[0] if new.sizes else without)


def _without_sizes(source: str, element: str) -> float:
    """What a type holds that says nothing of sizes."""
    if element.split(maxsplit=1)[0] in _SECONDS:
        return 0 if source == "mysql" else _MOST_SECOND_DIGITS
    return 1 if element in ("bit", "character") else float("inf")


def _of_digits(old: _Native, new: _Native) -> Relation:
    """Digits before and behind the point; without sizes there may be any number of either."""
    before, after = (_digits(each.sizes) for each in (old, new))
    fewer = after[0] < before[0] or after[1] < before[1]
    return Relation.NARROWER if fewer else Relation.WIDER


def _digits(sizes: tuple[int, ...]) -> tuple[float, float]:
    if not sizes:
        return float("inf"), float("inf")
    precision, scale = (*sizes, 0)[:2]
    return precision - scale, scale


def _ordered(before: float, after: float) -> Relation:
    if before == after:
        return Relation.SAME
    return Relation.WIDER if before < after else Relation.NARROWER
