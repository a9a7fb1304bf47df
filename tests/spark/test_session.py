"""Where Spark is to be found, and what is said when it is not there. No JVM is started here."""

from __future__ import annotations

import socket
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.config.conftest import CONNECTIONS
from tests.test_documents import blocks
from tidegate.config.project import Project
from tidegate.core.errors import ConnectError
from tidegate.spark.parcel import parcel
from tidegate.spark.remote import endpoint
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.sync.library import spark_settings


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_connect_server_that_does_not_answer_is_an_error_at_once_and_shows_no_token(nowhere: str) -> None:
    session = LazySession(SparkSettings(remote=f"sc://{nowhere}/;token=hunter2;use_ssl=true"))

    with pytest.raises(ConnectError, match="the Spark Connect server does not answer") as raised:
        session.get()

    assert raised.value.where == nowhere
    assert "hunter2" not in str(raised.value)


def test_a_standalone_master_that_does_not_answer_is_an_error_at_once(nowhere: str) -> None:
    with pytest.raises(ConnectError, match="the standalone Spark master does not answer") as raised:
        LazySession(SparkSettings(master=f"spark://{nowhere}")).get()

    assert raised.value.where == nowhere


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("sc://spark.example.com", "spark.example.com:15002"),
        ("sc://spark.example.com:443/;token=secret", "spark.example.com:443"),
        ("sc://[::1]:15002", "[::1]:15002"),
        ("sc://[::1]", "[::1]:15002"),
    ],
)
def test_an_address_is_host_and_port(address: str, found: str) -> None:
    assert endpoint(address) == found


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        (SparkSettings(master="local"), 1),
        (SparkSettings(master="local[3]"), 3),
        (SparkSettings(master="local[3,2]"), 3),
        (SparkSettings(master="local-cluster[2,1,1024]"), None),
        (SparkSettings(master="spark://h:7077"), None),
        (SparkSettings(master="yarn"), None),
        (SparkSettings(remote="sc://h"), None),
    ],
)
def test_only_a_local_master_shares_our_cores_and_our_packages(
    settings: SparkSettings, cores: int | None
) -> None:
    assert settings.cores == cores


def test_the_token_of_a_connect_server_counts_as_a_secret(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    text = f"{CONNECTIONS}spark: {{remote: 'sc://h/;token=${{TOKEN}};use_ssl=true'}}\n"
    (tmp_path / "config/connections.yml").write_text(text)

    project = Project.load(tmp_path, {"TOKEN": "hunter2"})

    assert "hunter2" in project.secrets()
    assert "hunter2" not in str(project.describe())


@pytest.mark.parametrize("example", blocks("docs/how-to/run-on-a-cluster.md", "yaml"))
def test_the_examples_of_the_guide_are_valid(tmp_path: Path, example: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/connections.yml").write_text(f"{CONNECTIONS}{example}")

    spark = spark_settings(Project.load(tmp_path, {"SPARK_TOKEN": "x"}))

    assert spark.cores is None


def test_the_parcel_holds_every_module_and_nothing_compiled() -> None:
    source = Path(__file__).parents[2] / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "tidegate").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(parcel()) as file:
        assert set(file.namelist()) == expected
