"""From a URL or a configuration to a store."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from tidegate.config.connection_models import DeltaState, LocalState, S3State, SqlState
from tidegate.core.errors import ConfigError
from tidegate.state.local import LocalStore
from tidegate.state.opening import open_store
from tidegate.state.sql import SqlStore
from tidegate.testing.stores import STREAM, take


def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space")
    assert isinstance(store, LocalStore)
    take(store)
    assert (tmp_path / "with space" / "watermarks").is_dir()


@pytest.mark.parametrize("slashes", ["sqlite://", "sqlite:///"])
def test_a_sqlite_url_opens_a_file_with_three_slashes_or_four(tmp_path: Path, slashes: str) -> None:
    with closing(open_store(f"{slashes}{tmp_path}/new/state.db")) as store:
        assert isinstance(store, SqlStore)
        take(store)
    assert (tmp_path / "new" / "state.db").is_file()


@pytest.mark.parametrize("url", ["postgresql://u@nowhere.invalid/db", "mysql://u@nowhere.invalid/db"])
def test_opening_connects_to_nothing(url: str) -> None:
    with closing(open_store(url)) as store:
        assert isinstance(store, SqlStore)


def test_configurations_are_opened(tmp_path: Path) -> None:
    assert repr(open_store(LocalState(path=tmp_path))) == f"LocalStore('{tmp_path}')"
    with closing(open_store(SqlState(url=SecretStr(f"sqlite://{tmp_path}/x.db")))) as store:
        assert store.read(STREAM).version == 0


@pytest.mark.parametrize("url", ["oracle://x/y", "state", ""])
def test_what_is_not_supported_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    for supported in ("file://", "sqlite://", "postgresql://", "mysql://", "s3://", "delta://"):
        assert supported in str(raised.value)


def test_a_bucket_is_opened_by_its_url_or_its_configuration() -> None:
    assert repr(open_store("s3://tide/prod?region=eu-west-1")) == "S3Store('s3://tide/prod/')"
    config = S3State(bucket="tide", access_key_id=SecretStr("key"), secret_access_key=SecretStr("hush"))
    assert repr(open_store(config)) == "S3Store('s3://tide/')"
    with pytest.raises(ConfigError, match="names no bucket"):
        open_store("s3://")


@pytest.mark.parametrize(
    "url", ["file://relative", "file://", "file:///", "sqlite://x.db", "sqlite:///x.db?mode=ro", "file:x"]
)
def test_a_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="absolute/path"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://u@h/db", "psycopg", "tidegate[postgresql]"),
        ("mysql://u@h/db", "pymysql", "tidegate[mysql]"),
    ],
)
def test_a_missing_driver_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert f"pip install '{extra}'" in str(raised.value)


def test_delta_tables_are_opened_by_their_url_or_their_configuration(tmp_path: Path) -> None:
    assert repr(open_store(f"delta://{tmp_path}")) == f"DeltaStore('{tmp_path}')"
    assert repr(open_store(DeltaState(path=str(tmp_path)))) == f"DeltaStore('{tmp_path}')"
    on_s3 = "s3://tide/prod?region=eu-west-1"
    for place in (f"delta+{on_s3}", DeltaState(path=on_s3)):
        assert repr(open_store(place)) == "DeltaStore('s3://tide/prod')"
