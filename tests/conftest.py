"""Fixtures for all tests: real servers and one Spark session, started when the first test asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from tests import servers, spark_servers
from tests.authority import Authority
from tests.clusters.driver import Driver, driver
from tests.delta_jars import delta_conf
from tests.servers import Bastion, S3Server, Server
from tests.spark_servers import SparkServer
from tests.toxiproxy import Toxiproxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.testing.redshift import RedshiftLocal

# Some tests speak to Spark Connect in this process, others start a JVM from it: gRPC must leave a fork alone,
# or its handlers can end the child before that has become the JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A busy machine is not a failure, and what fails is shown so that it can be repeated.
_QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# The same code gets the same answer every time; `--hypothesis-profile wide` looks where nobody has looked.
settings.register_profile("tidegate", _QUIET, derandomize=True)
settings.register_profile("wide", _QUIET, max_examples=1000)
settings.load_profile("tidegate")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """What a program said before it failed belongs to the failure, though nobody asserted anything of it."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, subprocess.SubprocessError):
        for name in ("stdout", "stderr"):
            said = getattr(error, name, None) or ""
            text = said if isinstance(said, str) else said.decode(errors="replace")
            report.sections.append((f"{name} of the program", text[-10_000:]))
    return report


class _FailuresAtOnce:
    """Name a failed test when it fails: who waits for the rest, or cuts it off, knows already."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"failed at {report.when}: {report.nodeid}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # workers have none
        config.pluginmanager.register(_FailuresAtOnce(terminal))


@pytest.fixture(scope="session", autouse=True)
def commands_are_heard() -> Iterator[None]:
    """Commands that are run in this process say what they have to say where pytest keeps it for a failure."""
    invoke = CliRunner.invoke

    def heard(*args: Any, **options: Any) -> Any:
        result = invoke(*args, **options)
        print(result.output, file=sys.stderr)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CliRunner, "invoke", heard)
        yield


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """MariaDB, everything in UTC."""
    with servers.mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_east() -> Iterator[Server]:
    """MariaDB on a machine whose clock shows Tokyo's time, as do its sessions."""
    with servers.mariadb(system_timezone="Asia/Tokyo", time_zone="SYSTEM") as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """PostgreSQL, everything in UTC."""
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_standby(postgres: Server) -> Iterator[Server]:
    """A read-only standby that follows `postgres`."""
    with servers.postgres_standby(postgres) as server:
        yield server


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Signs certificates for the servers that encrypt, and for their clients."""
    return Authority()


@pytest.fixture(scope="session")
def mariadb_tls(authority: Authority) -> Iterator[Server]:
    """MariaDB with a certificate made out to `localhost`, and to no address."""
    with servers.mariadb(certificate=authority.certificate("localhost")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_tls(authority: Authority) -> Iterator[Server]:
    """PostgreSQL with a certificate made out to `localhost`, and to no address."""
    with servers.postgres(certificate=authority.certificate("localhost")) as server:
        yield server


@pytest.fixture(scope="session")
def bastion() -> Iterator[Bastion]:
    """An sshd that nobody stops."""
    with servers.bastion() as server:
        yield server


@pytest.fixture
def mariadb_database(mariadb: Server) -> Iterator[Server]:
    """A fresh database in `mariadb`."""
    with servers.fresh_database(mariadb) as database:
        yield database


@pytest.fixture
def mariadb_east_database(mariadb_east: Server) -> Iterator[Server]:
    """A fresh database in `mariadb_east`."""
    with servers.fresh_database(mariadb_east) as database:
        yield database


@pytest.fixture
def postgres_database(postgres: Server) -> Iterator[Server]:
    """A fresh database in `postgres`."""
    with servers.fresh_database(postgres) as database:
        yield database


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server."""
    with servers.s3() as server:
        yield server


@pytest.fixture
def fresh_bucket(s3: S3Server) -> Iterator[S3Server]:
    """A fresh bucket in `s3`."""
    with servers.fresh_bucket(s3) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def redshift(postgres: Server, s3: S3Server) -> Iterator[RedshiftLocal]:
    """A stand-in for Redshift, before `postgres`; a role of its may read all of `s3`."""
    from tidegate.s3 import S3Place
    from tidegate.testing.redshift import Backend, RedshiftLocal

    place = S3Place(
        "",
        region=s3.region,
        endpoint_url=s3.endpoint_url,
        access_key_id=s3.access_key_id,
        secret_access_key=s3.secret_access_key,
    )
    stand_in = RedshiftLocal(Backend(postgres.host, postgres.port, postgres.user, postgres.password), place)
    yield stand_in
    stand_in.close()


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[Toxiproxy]:
    """A proxy that slows, cuts and loses; `toxiproxy.before(port)` puts it before a server."""
    with servers.toxiproxy() as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark",
        choices=["local", "standalone", "connect"],
        default="local",
        help="where the syncs of the system tests run: in this process, on a cluster, on a server",
    )


@pytest.fixture
def spark_kind(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--spark"))


@pytest.fixture(scope="session")
def spark_standalone() -> Iterator[SparkServer]:
    """A standalone Spark master with two workers."""
    with spark_servers.standalone() as server:
        yield server


@pytest.fixture(scope="session")
def spark_connect() -> Iterator[SparkServer]:
    """A Spark Connect server."""
    with spark_servers.connect() as server:
        yield server


@pytest.fixture(scope="session")
def standalone_driver() -> Iterator[Driver]:
    """A process whose session is on the standalone master."""
    with driver() as running:
        yield running


@pytest.fixture(scope="session")
def connect_driver() -> Iterator[Driver]:
    """A process whose session is on the Spark Connect server."""
    with driver() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the tests: it knows Delta tables, and its workers can import test modules."""
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", servers.HOST)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        builder = SparkSession.Builder().master("local[2]").appName("tidegate-tests")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": servers.HOST,
            "spark.local.dir": str(home / "local"),
            "spark.sql.artifact.isolation.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            **delta_conf(),
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()
