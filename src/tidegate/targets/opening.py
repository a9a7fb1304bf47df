"""From a target's settings to a target. A new target is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.reach.login import login_of
from tidegate.s3 import S3Place, storage_options
from tidegate.targets.contract import Target


def open_target(type: str, **settings: Any) -> Target:
    """The target that an entry of `connections.yml` describes. Nothing is connected to yet.

    Settings that are None count as not given, and a secret may come wrapped.
    """
    opener = _TARGETS.get(type)
    if opener is None:
        raise ConfigError(f"there is no target of type `{type}`", hint=f"types are {', '.join(_TARGETS)}")
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return opener(**given)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a target of type `{type}` needs the package {error.name}, which is not installed",
            hint=f"pip install 'tidegate[{type}]'",
        ) from error


def _duckdb(path: str | Path, schema: str = "main", wait: timedelta = timedelta(seconds=30)) -> Target:
    from tidegate.targets.duckdb import DuckDbTarget

    return DuckDbTarget(path, schema, wait=wait.total_seconds())


def _postgresql(*, schema: str = "public", **server: Any) -> Target:
    from tidegate.targets.postgresql import PostgresTarget

    return PostgresTarget(login_of(server, port=5432), schema=schema)


def _delta(path: str | Path, **access: Any) -> Target:
    from tidegate.targets.delta import DeltaTarget

    if "://" not in str(path):
        return DeltaTarget(path)
    place = S3Place.at(str(path)).with_access(**access)
    return DeltaTarget(str(place).rstrip("/"), storage_options(place))


def _redshift(
    *,
    schema: str = "public",
    iam_role: str | None = None,
    query_group: str | None = None,
    statement_timeout: timedelta | None = None,
    **server: Any,
) -> Target:
    from tidegate.targets.redshift import RedshiftTarget
    from tidegate.targets.redshift_line import Line

    seconds = None if statement_timeout is None else statement_timeout.total_seconds()
    line = Line(login_of(server, port=5439), query_group=query_group, statement_timeout=seconds)
    return RedshiftTarget(line, schema=schema, iam_role=iam_role)


_TARGETS: dict[str, Callable[..., Target]] = {
    "duckdb": _duckdb,
    "postgresql": _postgresql,
    "delta": _delta,
    "redshift": _redshift,
}
