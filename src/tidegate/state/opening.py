"""From a URL or a configuration to a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidegate.core.errors import ConfigError
from tidegate.state.contract import Store

if TYPE_CHECKING:
    from tidegate.config.models import DeltaState, LocalState, S3State, SqlState

    StateConfig = LocalState | SqlState | S3State | DeltaState


def open_store(place: str | StateConfig) -> Store:
    """Open the store that a URL or an entry of `state:` in `connections.yml` names.

    Nothing is read, written or connected to yet.
    """
    url = place if isinstance(place, str) else _url(place)
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _STORES:
        known = ", ".join(f"{name}://" for name in _STORES)
        raise ConfigError(
            f"there is no store for `{scheme}:`" if colon else "this is not the URL of a store",
            hint=f"state can be kept at {known}",
        )
    return _STORES[scheme](url)


def _url(config: StateConfig) -> str:
    match config.type:
        case "local":
            return f"file://{quote(str(config.path.absolute()))}"
        case "sql":
            return config.url.get_secret_value()
        case "s3" | "delta":
            return f"{config.type}:"


def _local(url: str) -> Store:
    from tidegate.state.databases import path_of
    from tidegate.state.local import LocalStore

    return LocalStore(path_of(url))


def _sql(url: str) -> Store:
    from tidegate.state.sql import SqlStore

    return SqlStore(url)


_STORES: dict[str, Callable[[str], Store]] = {
    "file": _local,
    "sqlite": _sql,
    "postgresql": _sql,
    "mysql": _sql,
}
