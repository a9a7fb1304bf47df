"""From a connection in the configuration to a source. A new source is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.reach.login import login_of
from tidegate.sources.contract import Source
from tidegate.sources.discovery import SchemaCache
from tidegate.sources.sql import Database, SqlSource


def open_source(config: Any, primary: Any = None, known: SchemaCache | None = None) -> Source:
    """A source that connects when it is first asked something.

    `primary` is the connection of the server that is written to, where `config` is a replica of it. `known`
    is what was found out about its tables before.
    """
    opener = _OPENERS.get(config.type)
    if opener is None:
        kinds = ", ".join(sorted(_OPENERS))
        raise ConfigError(f"`{config.type}` is not a kind of source", hint=f"there are {kinds}")
    try:
        return SqlSource(opener(config, primary), known)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "tidegate":
            raise
        raise ConfigError(
            f"sources of type {config.type} need the package `{error.name}`, which is not installed",
            hint=f"install it with `pip install 'tidegate[{config.type}]'`",
        ) from error


def _mysql(config: Any, primary: Any) -> Database:
    from tidegate.sources.mysql import MySQL

    return MySQL(login_of(config), login_of(primary) if primary else None)


def _postgresql(config: Any, primary: Any) -> Database:
    from tidegate.sources.postgresql import PostgreSQL

    schema = getattr(config, "schema_name", "public")
    return PostgreSQL(login_of(config), schema, login_of(primary) if primary else None)


def _sqlite(config: Any, primary: Any) -> Database:
    del primary
    from tidegate.sources.sqlite import SQLite

    return SQLite(str(config.path))


_OPENERS: dict[str, Callable[[Any, Any], Database]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}
