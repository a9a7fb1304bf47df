from __future__ import annotations

import json
import pickle

import pytest
from pydantic import SecretStr

from tests.config.conftest import CONNECTIONS, Folder
from tests.config.test_project import ENVIRON, EVERYTHING
from tidegate.config.connection_models import MySQLSource
from tidegate.config.problems import Problem, config_error
from tidegate.config.showing import shown, without_secrets

SECRETS = [value for name, value in ENVIRON.items() if "PASSWORD" in name]


@pytest.fixture
def folder_with_secrets(folder: Folder) -> Folder:
    folder.connections(
        EVERYTHING.replace(
            "spark.sql.ansi.enabled: true",
            'spark.sql.ansi.enabled: true, spark.hadoop.fs.s3a.secret.key: "${DB_PASSWORD}"',
        )
    )
    folder.table("cdc_id_column: id", "staging: files")
    return folder


def test_everything_is_shown_but_secrets(folder_with_secrets: Folder) -> None:
    described = folder_with_secrets.load(ENVIRON).describe()
    text = json.dumps(described)
    assert not [secret for secret in SECRETS if secret in text]
    assert described["connections"]["sources"]["shop"] == {
        "type": "mysql",
        "host": "127.0.0.1",
        "database": "shop",
        "username": "reader",
        "password": "***",
        "port": 3306,
    }
    assert described["state"]["shared"] == {
        "type": "sql",
        "url": "postgresql://app:***@db/state",
        "lease_seconds": 60,
    }
    assert described["spark"]["conf"] == {
        "spark.sql.ansi.enabled": "true",
        "spark.hadoop.fs.s3a.secret.key": "***",
    }
    shop = described["pipelines"]["shop"]
    assert (shop["state"], shop["tables"]["orders"]["strategy"]) == ("default", "id_only")
    assert shop["processing"]["strategy"] == "sequential"


def test_what_cannot_be_had_is_shown_as_a_problem(folder_with_secrets: Folder) -> None:
    described = folder_with_secrets.load().describe()
    assert "the variable `DB_USER` is not defined" in described["connections"]["sources"]["shop"]["problem"]
    assert described["connections"]["sources"]["local"]["type"] == "sqlite"


def test_repr_shows_no_secret(folder_with_secrets: Folder) -> None:
    project = folder_with_secrets.load(ENVIRON)
    pipeline = project.pipeline("shop")
    texts = [repr(project), repr(pipeline), *map(repr, project.connections.models())]
    assert not [secret for secret in SECRETS for text in texts if secret in text]


def test_the_known_secrets_can_be_kept_out_of_logs(folder_with_secrets: Folder) -> None:
    assert folder_with_secrets.load(ENVIRON).secrets() >= set(SECRETS)
    assert folder_with_secrets.load().secrets() == set()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p/w@x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("sc://h:15002/;token=abc;user_id=u", "sc://h:15002/;token=***;user_id=u"),
        ("postgresql://h/d?user=u&password=p", "postgresql://h/d?user=u&password=***"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("a: b@c", "a: b@c"),
    ],
)
def test_addresses_are_shown_without_their_passwords(address: str, expected: str) -> None:
    assert without_secrets(address) == expected


def test_a_password_that_looks_like_an_address_is_hidden_all_the_same() -> None:
    source = MySQLSource(host="h", database="d", password=SecretStr("x://y"))
    assert shown(source)["password"] == "***"


def test_connections_travel_to_other_processes() -> None:
    source = MySQLSource(host="h", database="d", password=SecretStr("x"))
    assert pickle.loads(pickle.dumps(source)) == source


def test_errors_travel_to_other_processes() -> None:
    error = config_error([Problem("a.yml", 1, 2, "wrong", "right it"), Problem("b.yml", 0, 0, "gone")])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).splitlines()[1:] == ["  a.yml:1:2: wrong (right it)", "  b.yml: gone"]


def test_no_unused_default_stands_in_the_way(folder: Folder) -> None:
    folder.connections(CONNECTIONS)
    assert folder.load().describe()["connections"]["targets"]["warehouse"] == {
        "type": "duckdb",
        "path": str(folder.root / "warehouse.duckdb"),
        "schema": "main",
        "wait": 30.0,
    }
