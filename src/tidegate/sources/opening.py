"""From a connection in the configuration to a source. A new source is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.reach.login import Login, login_of
from tidegate.sources.contract import Source
from tidegate.sources.discovery import SchemaCache
from tidegate.sources.sql import Database, SqlSource


def open_source(
    config: Any,
    primary: Any = None,
    known: SchemaCache | None = None,
    *,
    max_query: timedelta | None = None,
) -> Source:
    """A source that connects when it is first asked something.

    `primary` is the connection of the server that is written to, where `config` is a replica of it. `known`
    is what was found out about its tables before. A query that runs longer than `max_query` is ended by the
    server.
    """
    opener = _OPENERS.get(config.type)
    if opener is None:
        kinds = ", ".join(sorted(_OPENERS))
        raise ConfigError(f"`{config.type}` is not a kind of source", hint=f"there are {kinds}")
    try:
        return SqlSource(opener(config, primary, max_query), known)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "tidegate":
            raise
        raise ConfigError(
            f"sources of type {config.type} need the package `{error.name}`, which is not installed",
            hint=f"install it with `pip install 'tidegate[{config.type}]'`",
        ) from error


def _mysql(config: Any, primary: Any, max_query: timedelta | None) -> Database:
    from tidegate.sources.mysql import MySQL

    return MySQL(*_logins(config, primary, max_query))


def _postgresql(config: Any, primary: Any, max_query: timedelta | None) -> Database:
    from tidegate.sources.postgresql import PostgreSQL

    here, there = _logins(config, primary, max_query)
    return PostgreSQL(here, getattr(config, "schema_name", "public"), there)


def _logins(config: Any, primary: Any, max_query: timedelta | None) -> tuple[Login, Login | None]:
    seconds = max_query.total_seconds() if max_query else None
    here = replace(login_of(config), max_query=seconds)
    return here, replace(login_of(primary), max_query=seconds) if primary else None


def _sqlite(config: Any, primary: Any, max_query: timedelta | None) -> Database:
    del primary, max_query  # its reads run in our own process
    from tidegate.sources.sqlite import SQLite

    return SQLite(str(config.path))


_OPENERS: dict[str, Callable[[Any, Any, timedelta | None], Database]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}
