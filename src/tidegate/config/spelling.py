"""Names: what a person probably meant, and the patterns that stand for several."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

_SYNONYMS = {
    "mariadb": "mysql",
    "pg": "postgresql",
    "postgres": "postgresql",
    "sqlite3": "sqlite",
    "file": "local",
    "fs": "local",
    "upsert": "merge",
    "overwrite": "replace",
    "user": "username",
}


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be, if one is close."""
    from difflib import get_close_matches

    by_shape = {_shape(choice): choice for choice in choices}
    synonym = _SYNONYMS.get(_shape(word))
    if synonym in by_shape:
        return by_shape[synonym]
    found = get_close_matches(_shape(word), by_shape, n=1)
    return by_shape[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The question to put behind an unknown word; empty where nothing is close."""
    near = nearest(word, choices)
    return f": did you mean `{near}`?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names for a sentence: `a`, `b` and `c`; "none" if there are none."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:  # noqa: PLR2004 - one name needs no "and"
        return quoted[0] if quoted else "none"
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def matches(pattern: str, table: str) -> bool:
    """`orders_*` matches tables of the connection's own schema, `sales.*` those of the schema `sales`.

    A `*` does not reach over the first dot: or else it would take in every schema of the server.
    """
    if pattern == table:
        return True
    dots = pattern.count(".")
    if dots == 0:
        return "." not in table and fnmatchcase(table, pattern)
    parts, wanted = table.split(".", dots), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _shape(word: str) -> str:
    return word.casefold().replace("-", "_").replace(" ", "_")
