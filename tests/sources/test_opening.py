"""From a connection in the configuration to a source."""

from __future__ import annotations

import pickle
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from tidegate.config.connection_models import MySQLSource, PostgreSQLSource, SQLiteSource, Tls
from tidegate.core.errors import ConfigError
from tidegate.reach.login import Login, login_of
from tidegate.reach.login import Tls as LoginTls
from tidegate.sources.opening import open_source


def test_opening_a_source_does_not_connect_yet() -> None:
    server = {
        "host": "nowhere.invalid",
        "database": "shop",
        "username": "me",
        "password": SecretStr("secret"),
    }
    open_source(MySQLSource.model_validate(server)).close()
    open_source(PostgreSQLSource.model_validate({**server, "schema": "sales"})).close()


def test_an_sqlite_source_is_opened_by_its_path(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    source = open_source(SQLiteSource.model_construct(path=tmp_path / "shop.db"))
    assert source.tables() == ["orders"]
    source.close()


def test_a_login_carries_what_a_reader_needs_and_shows_no_password() -> None:
    tls = Tls.model_construct(mode="verify-full", ca=Path("ca.pem"), cert=None, key=None)
    config = SimpleNamespace(
        host="db", port=1, database="shop", username="me", password=SecretStr("secret"), tls=tls
    )
    made = login_of(config)
    assert made == Login("db", 1, "shop", "me", "secret", LoginTls("verify-full", "ca.pem"))
    assert pickle.loads(pickle.dumps(made)) == made
    assert "secret" not in repr(made)


def test_an_unknown_kind_of_source_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`oracle` is not a kind of source.*mysql"):
        open_source(SimpleNamespace(type="oracle"))


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tidegate.sources.mysql")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match=r"`pymysql`.*tidegate\[mysql\]"):
        open_source(SimpleNamespace(type="mysql"))
