"""From settings to a target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.servers import Server
from tidegate.core.errors import ConfigError
from tidegate.reach.login import Tls
from tidegate.targets.duckdb import DuckDbTarget
from tidegate.targets.opening import open_target
from tidegate.targets.postgresql import Postgres, PostgresTarget
from tidegate.testing.targets import ORDERS, orders


def test_a_duckdb_entry_opens_a_duckdb_target(tmp_path: Path) -> None:
    target = open_target(type="duckdb", path=tmp_path / "x.duckdb", schema="raw")
    assert isinstance(target, DuckDbTarget)
    target.prepare(orders(), ORDERS)
    assert target.count("raw.orders") == 0


def test_a_postgresql_entry_opens_a_postgresql_target(postgres_database: Server) -> None:
    settings: dict[str, Any] = {**postgres_database.config, "tls": None}
    settings["password"] = SecretStr(postgres_database.password)
    target = open_target(**settings)
    assert isinstance(target, PostgresTarget)
    target.prepare(orders(), ORDERS)
    assert target.count("public.orders") == 0


def test_tls_settings_reach_the_connection() -> None:
    tls = {"mode": "verify-full", "ca": Path("ca.pem"), "cert": None, "key": None}
    target = open_target(type="postgresql", host="h", database="d", username="u", tls=tls)
    assert isinstance(target, PostgresTarget)
    assert isinstance(target.database, Postgres)
    assert target.database.login.tls == Tls("verify-full", "ca.pem")


def test_a_delta_entry_opens_a_delta_target(tmp_path: Path) -> None:
    target = open_target(type="delta", path=str(tmp_path / "lake"))
    target.prepare(orders(), ORDERS)
    assert (tmp_path / "lake/orders/_delta_log").is_dir()


def test_an_unknown_type_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="types are duckdb, postgresql, delta"):
        open_target(type="oracle")


@pytest.mark.parametrize(
    ("kind", "driver", "settings"),
    [
        ("duckdb", "duckdb", {"path": "x.duckdb"}),
        ("postgresql", "psycopg", {"host": "h", "database": "d", "username": "u"}),
    ],
)
def test_a_missing_driver_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, kind: str, driver: str, settings: dict[str, str]
) -> None:
    monkeypatch.delitem(sys.modules, f"tidegate.targets.{kind}", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError, match=rf"tidegate\[{kind}\]"):
        open_target(type=kind, **settings)
