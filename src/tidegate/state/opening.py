"""From a URL or a configuration to a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidegate.core.errors import ConfigError
from tidegate.reach.login import way_of
from tidegate.s3 import S3Place, storage_options
from tidegate.state.contract import Store

if TYPE_CHECKING:
    from tidegate.config.connection_models import DeltaState, LocalState, S3State, SqlState
    from tidegate.reach.login import Login

    StateConfig = LocalState | SqlState | S3State | DeltaState


def open_store(place: str | StateConfig) -> Store:
    """Open the store that a URL or an entry of `state:` in `connections.yml` names.

    Nothing is read, written or connected to yet.
    """
    return _at(place) if isinstance(place, str) else _of(place)


def server_of(config: StateConfig) -> tuple[str, Login] | None:
    """The kind of server that a store lies on, and how to reach it; None for one that is no server."""
    from tidegate.state.databases import Mysql, Postgres, database

    if config.type != "sql":
        return None
    found = database(config.url.get_secret_value(), way_of(config))
    return (found.address.scheme, found.login) if isinstance(found, Mysql | Postgres) else None


def _at(url: str) -> Store:
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _STORES:
        known = ", ".join(f"{name}://" for name in _STORES)
        raise ConfigError(
            f"there is no store for `{scheme}:`" if colon else "this is not the URL of a store",
            hint=f"state can be kept at {known}",
        )
    return _STORES[scheme](url)


def _of(config: StateConfig) -> Store:
    match config.type:
        case "local":
            return _at(f"file://{quote(str(config.path.absolute()))}")
        case "sql":
            return _server(config)
        case "s3":
            from tidegate.state.s3 import S3Store

            return S3Store(S3Place.of(config))
        case "delta":
            if "://" in config.path:
                return _at(f"delta+{config.path}")
            return _at(f"delta://{quote(str(Path(config.path).absolute()))}")


def _server(config: SqlState) -> Store:
    from tidegate.state.sql import SqlStore

    return SqlStore(config.url.get_secret_value(), way=way_of(config))


def _local(url: str) -> Store:
    from tidegate.state.databases import path_of
    from tidegate.state.local import LocalStore

    return LocalStore(path_of(url))


def _sql(url: str) -> Store:
    from tidegate.state.sql import SqlStore

    return SqlStore(url)


def _s3(url: str) -> Store:
    from tidegate.state.s3 import S3Store

    return S3Store(S3Place.at(url))


def _delta(url: str) -> Store:
    from tidegate.state.databases import path_of
    from tidegate.state.delta import DeltaStore

    return DeltaStore(path_of(url))


def _delta_on_s3(url: str) -> Store:
    from tidegate.state.delta import DeltaStore
    from tidegate.state.s3 import S3Store

    place = S3Place.at(url.removeprefix("delta+"))
    leases = S3Store(replace(place, prefix=place.key("_leases")))
    return DeltaStore(str(place).rstrip("/"), leases=leases, options=storage_options(place))


_STORES: dict[str, Callable[[str], Store]] = {
    "file": _local,
    "sqlite": _sql,
    "postgresql": _sql,
    "mysql": _sql,
    "s3": _s3,
    "delta": _delta,
    "delta+s3": _delta_on_s3,
}
