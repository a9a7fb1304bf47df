"""Where Spark is to be found, what is said when it is not there, and how its workers come to be."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast
from zipfile import ZipFile

import pytest
from pyspark.errors import PySparkException

from tests.config.conftest import CONNECTIONS
from tests.servers import closed_port
from tests.test_documents import blocks
from tidegate.config.project import Project
from tidegate.core.errors import ConnectError
from tidegate.spark import session as session_module
from tidegate.spark.parcel import parcel
from tidegate.spark.remote import endpoint
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.sync.library import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nobody listens."""
    with closed_port() as port:
        yield f"127.0.0.1:{port}"


def test_a_connect_server_that_does_not_answer_is_an_error_at_once_and_shows_no_token(nowhere: str) -> None:
    session = LazySession(SparkSettings(remote=f"sc://{nowhere}/;token=hunter2;use_ssl=true"))

    with pytest.raises(ConnectError, match="the Spark Connect server does not answer") as raised:
        session.get()

    assert raised.value.where == nowhere
    assert "hunter2" not in str(raised.value)


def test_a_connect_server_that_is_gone_between_two_jobs_went_away(nowhere: str, spark: SparkSession) -> None:
    session = LazySession(SparkSettings(remote=f"sc://{nowhere}"), spark)

    with pytest.raises(ConnectError, match="the Spark Connect server went away") as raised:
        session.get()

    assert "run it again" in str(raised.value.hint)


def test_a_server_that_goes_away_while_its_session_is_looked_at_went_away() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    class Closing:
        @property
        def is_stopped(self) -> bool:
            listener.close()
            return True

    address = f"127.0.0.1:{listener.getsockname()[1]}"
    session = LazySession(SparkSettings(remote=f"sc://{address}"), cast("SparkSession", Closing()))

    with pytest.raises(ConnectError, match="the Spark Connect server went away"):
        session.get()


def test_a_server_that_goes_away_while_it_is_sent_the_package_went_away(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut:
        def addArtifacts(self, *_: str, pyfile: bool) -> None:  # noqa: N802 - PySpark's name
            raise PySparkException(f"Socket closed ({pyfile})")

    monkeypatch.setattr(session_module, "connect", lambda *_: Cut())
    session = LazySession(SparkSettings(remote=f"sc://{nowhere}"))

    with pytest.raises(ConnectError, match="the Spark Connect server went away"):
        session.get()


@pytest.mark.parametrize(
    "said",
    [
        "<_InactiveRpcError ...>\n\tstatus = StatusCode.UNAVAILABLE",
        "[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted.",
        "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND from the server",
    ],
)
def test_a_server_that_is_back_already_and_knows_nothing_went_away_all_the_same(
    said: str, spark: SparkSession
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"sc://127.0.0.1:{listener.getsockname()[1]}"
        lost = LazySession(SparkSettings(remote=address), spark).lost(PySparkException(said))

        assert "the Spark Connect server went away" in str(lost)
        assert lost is not None
        assert lost.transient


def test_whatever_a_job_fails_with_a_server_that_is_gone_is_named(nowhere: str, spark: SparkSession) -> None:
    session = LazySession(SparkSettings(remote=f"sc://{nowhere}"), spark)

    lost = session.lost(OSError("Connection reset by peer"))

    assert str(lost).startswith(f"{nowhere}: the Spark Connect server went away")


def test_a_standalone_master_that_does_not_answer_is_an_error_at_once(nowhere: str) -> None:
    # In a process of its own: here another test may have a session, which would be used.
    asking = (
        "from tidegate.spark.session import LazySession, SparkSettings\n"
        f"LazySession(SparkSettings(master='spark://{nowhere}')).get()"
    )
    asked = subprocess.run(
        [sys.executable, "-c", asking], check=False, capture_output=True, text=True, timeout=600
    )

    assert f"ConnectError: {nowhere}: the standalone Spark master does not answer" in asked.stderr


def test_a_session_that_the_process_has_is_used_from_every_thread(spark: SparkSession) -> None:
    with ThreadPoolExecutor() as threads:
        found = threads.submit(LazySession(SparkSettings(master="local[1]")).get).result()

    assert found is spark


def test_workers_find_all_imported_outside_the_garbage_and_memory_to_use_again() -> None:
    # In a process of its own: the session of the other tests is not one that Tidegate has started.
    asking = (
        "import gc, os, sys\n"
        "import pyarrow as pa\n"
        "from tidegate.spark.session import SparkSettings, start\n"
        "def look(batches):\n"
        "    imported = {'connectorx', 'tidegate.sources.readers.postgresql'} <= sys.modules.keys()\n"
        "    reused = 'tcache_count' in os.environ['GLIBC_TUNABLES']\n"
        "    found = [imported, gc.get_freeze_count() > 10_000, reused]\n"
        "    yield from (pa.RecordBatch.from_pydict({'found': [str(found)]}) for _ in batches)\n"
        "session = start(SparkSettings(master='local[1]'))\n"
        "print(session.range(1).mapInArrow(look, 'found string').first().found)\n"
        "session.stop()"
    )
    asked = subprocess.run(
        [sys.executable, "-c", asking], check=False, capture_output=True, text=True, timeout=600
    )

    assert asked.stdout.strip() == "[True, True, True]", asked.stderr


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
