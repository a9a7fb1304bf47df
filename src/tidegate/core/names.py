"""What tables and columns are called at a target.

A name changes only where it must. PostgreSQL and DuckDB take any name in quotes, so there it changes if it is
too long, or if the target could not tell two names apart. Redshift and Delta are stricter, and there it also
becomes one that needs no quotes. What a name becomes depends on the name alone, except where two names meet:
then the column that was there first keeps its name, and the other one's ends in a digest of what it was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.core import reserved
from tidegate.core.types import Schema

RUN_COLUMN = "_tidegate_run"
"""Merged tables carry the number of the run that brought each row: of two versions with the same cursor,
the later run's is the newer."""

_DIGEST = 8


def fold_ascii(name: str) -> str:
    """The name as those compare it to whom the case of A to Z does not count."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _printable(name: str) -> str:
    """No target takes U+0000, and none should be given what nobody can see."""
    return "".join(letter if letter.isprintable() else "_" for letter in name) or "_"


def _quotable(name: str) -> str:
    return name.replace("\0", "_") or "_"


def _redshift(name: str) -> str:
    """A standard identifier: letters, digits, `_` and `$`, not beginning with a digit, in small letters.

    Characters beyond ASCII are letters to Redshift, but their case stays as it is.
    """
    plain = re.sub(r"[^\w$\u0080-\U0010ffff]", "_", fold_ascii(_printable(name)))
    return f"_{plain}" if re.match(r"[0-9$]", plain) else plain


def _delta_column(name: str) -> str:
    """Parquet files of a Delta table take none of ` ,;{}()=` and no white space in a column's name."""
    return re.sub(r"[\s,;{}()=.`]", "_", _printable(name))


def _delta_table(name: str) -> str:
    """A Delta table is a folder: what a file system or a URL would misread is left out."""
    plain = re.sub(r"[^\w-]", "_", _printable(name))
    return f"t{plain}" if plain.startswith(("_", "-")) else plain


@dataclass(frozen=True, slots=True)
class NameRules:
    """What a target lets a name be."""

    fold: Callable[[str], str]
    """Two names that fold to the same are the same to this target."""
    longest: int
    """In bytes."""
    column: Callable[[str], str]
    """A column's name without anything the target does not take; the same, if it takes all of it."""
    table: Callable[[str], str]
    reserved: frozenset[str]
    """Words that have to be quoted in queries."""
    avoided: frozenset[str] = frozenset()
    """Words that are not used as names, even though quotes would allow it."""
    taken: frozenset[str] = frozenset({RUN_COLUMN})
    """Names that no column can have."""

    def safe_table(self, name: str) -> str:
        return self._safe(self.table(name), name, self.avoided)

    def safe_column(self, name: str) -> str:
        return self._safe(self.column(name), name, self.avoided | self.taken)

    def needs_quotes(self, name: str) -> bool:
        """Whether people have to quote a name in queries."""
        return not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name in self.reserved

    def digested(self, safe: str, name: str) -> str:
        """The safe form of a name, with what tells it from other names of the same form."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        return f"{_cut(safe, self.longest - _DIGEST - 1)}_{digest}"

    def wrong(self, name: str) -> str | None:
        """Why somebody's own choice cannot be a column's name here; None if it can."""
        if not name or "\0" in name:
            return "is not a name"
        if len(name.encode()) > self.longest:
            return f"is longer than {self.longest} bytes"
        if self.fold(name) in self.taken:
            return "is a name that the target or Tidegate has for itself"
        if self.fold(self.column(name)) != self.fold(name):
            return f"is not a name that the target takes; `{self.column(name)}` would be"
        return None

    def _safe(self, cleaned: str, name: str, taken: frozenset[str]) -> str:
        safe = f"{cleaned}_" if self.fold(cleaned) in taken else cleaned
        return safe if len(safe.encode()) <= self.longest else self.digested(safe, name)


def _cut(text: str, size: int) -> str:
    """No more than so many bytes, and no half character."""
    return text.encode()[:size].decode(errors="ignore")


_ANYTHING = NameRules(str, 2**16, _quotable, _quotable, frozenset())

RULES: dict[str, NameRules] = {
    "duckdb": NameRules(fold_ascii, 2**16, _quotable, _quotable, reserved.DUCKDB),
    "postgresql": NameRules(
        str,
        63,
        _quotable,
        _quotable,
        reserved.POSTGRESQL,
        taken=reserved.POSTGRESQL_COLUMNS | {RUN_COLUMN},
    ),
    "redshift": NameRules(
        fold_ascii,
        127,
        _redshift,
        _redshift,
        reserved.REDSHIFT,
        avoided=reserved.REDSHIFT,
        taken=reserved.REDSHIFT_COLUMNS | {RUN_COLUMN},
    ),
    # Spark takes reserved words in backticks, and by default without; other readers of the table take any.
    "delta": NameRules(str.casefold, 255, _delta_column, _delta_table, reserved.SPARK),
}


def rules_for(target: str) -> NameRules:
    """The rules of a type of target; one that is not known here is taken to quote anything."""
    return RULES.get(target, _ANYTHING)


@dataclass(frozen=True, slots=True)
class Clash:
    """Two columns that would share a name."""

    name: str
    columns: tuple[str, str]


class NamesClash(ValueError):
    """A mapping gives one name to two columns."""

    def __init__(self, clash: Clash) -> None:
        super().__init__(f"{' and '.join(clash.columns)} would both be called {clash.name}")
        self.clash = clash


def name_columns(
    columns: Sequence[str],
    rules: NameRules,
    *,
    mapped: Mapping[str, str] | None = None,
    remembered: Mapping[str, str] | None = None,
    there: Collection[str] = (),
) -> dict[str, str]:
    """What each column of the source is called at the target.

    `mapped` is what somebody has decided, `remembered` what was decided before, and `there` are the columns
    that the table has. No column's name changes because another column has come: those in `remembered` keep
    theirs, and of two that only the target takes for the same, the one that is there as it is spelled.

    Raises `NamesClash` if the mapping itself gives two columns one name.
    """
    decided = {**(remembered or {}), **(mapped or {})}
    names: dict[str, str] = {}
    owners: dict[str, str] = {}

    def give(column: str, name: str) -> None:
        names[column] = name
        owners[rules.fold(name)] = column

    for column in [name for name in columns if name in decided]:
        owner = owners.get(rules.fold(decided[column]))
        if owner is not None:
            raise NamesClash(Clash(decided[column], (owner, column)))
        give(column, decided[column])
    # Names of columns that are gone are still theirs: their values are in the table.
    for gone, name in decided.items():
        owners.setdefault(rules.fold(name), gone)
    free = [name for name in columns if name not in decided]
    free.sort(key=lambda name: (rules.safe_column(name) != name, name not in there))  # stable
    for column in free:
        safe = rules.safe_column(column)
        give(column, rules.digested(safe, column) if rules.fold(safe) in owners else safe)
    return {column: names[column] for column in columns}


def changed_names(names: Mapping[str, str]) -> dict[str, str]:
    """Only the names that are not the source's own."""
    return {column: name for column, name in names.items() if column != name}


def named_schema(schema: Schema, names: Mapping[str, str]) -> Schema:
    """A schema of the source's names, in the target's."""
    return Schema(
        tuple(replace(column, name=names[column.name]) for column in schema.columns),
        tuple(names[name] for name in schema.key),
    )
