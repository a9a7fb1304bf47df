"""The Spark session: started when there is data to move, and only then."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, TypeGuard

from tidegate.core.errors import ConnectError, UsageError
from tidegate.core.secrecy import hidden, names_a_secret
from tidegate.spark.parcel import parcel
from tidegate.spark.reaching import demand_reachable
from tidegate.spark.remote import connect, gone, renewed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLDEST_JAVA = 17
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")
"""A master that runs its tasks on this machine, in Python workers of this environment."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, whose command line then decides where Spark runs."""


@dataclass(frozen=True)
class SparkSettings:
    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> int | None:
        """How many tasks a local session runs at once; None: only the cluster knows."""
        found = _LOCAL.fullmatch(self.master)
        if self.remote or not found:
            return None
        size = found[1] or "1"
        return (os.cpu_count() or 1) if size == "*" else int(size)


@dataclass
class LazySession:
    """A session that does not exist until somebody asks for it."""

    settings: SparkSettings
    _session: SparkSession | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def started(self) -> bool:
        return self._session is not None

    def get(self) -> SparkSession:
        with self._starting:  # several tables may ask at once
            if self._session is None:
                self._session = start(self.settings)
            elif self.settings.remote:
                session = renewed(self._session, self.settings.remote, self.settings.conf)
                if session is not self._session:
                    self._session = _equipped(session, self.settings)
            return self._session

    def lost(self, error: BaseException) -> ConnectError | None:
        """What there is to say if a job failed with `error` because its server went away."""
        return gone(error, self.settings.remote) if self.started and self.settings.remote else None

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None


def start(settings: SparkSettings) -> SparkSession:
    """A session as configured, or the one this process already has, equipped."""
    if settings.remote:
        session = connect(settings.remote, settings.conf)
    else:
        session = _running() or _start_jvm(settings)
    return _equipped(session, settings)


def _equipped(session: SparkSession, settings: SparkSettings) -> SparkSession:
    """The session, whose tasks can import this package."""
    if _is_local(session):
        return session
    try:
        session.addArtifacts(str(parcel()), pyfile=True)
    except Exception as error:
        lost = gone(error, settings.remote) if settings.remote else None
        if lost is not None:
            raise lost from error
        raise
    return session


def _running() -> SparkSession | None:
    """The session there is already: a notebook's, or that of a script which was handed to spark-submit.

    Not only that of this thread: tables of one sync have threads of their own.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError("Spark is not installed", hint="pip install 'tidegate[spark]'") from error
    if _SUBMITTED in os.environ:
        return SparkSession.builder.getOrCreate()
    try:
        return SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None


def _is_local(session: object) -> bool:
    """Whether tasks run in the driver's own environment. Those behind Spark Connect run in the server's."""
    return is_classic(session) and bool(_LOCAL.fullmatch(session.conf.get("spark.master") or ""))


def is_classic(session: object) -> TypeGuard[SparkSession]:
    """Whether its driver is in this process, and not behind Spark Connect."""
    from pyspark.sql import SparkSession

    return isinstance(session, SparkSession)


def _start_jvm(settings: SparkSettings) -> SparkSession:
    """Start the driver's JVM with its chatter kept away from the user's terminal."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _demand_java()
    _demand_master(settings.master)
    _choose_python(settings)
    said = {**_defaults(), **(_ON_THIS_MACHINE if settings.cores else {}), **settings.conf}
    conf = SparkConf().setMaster(settings.master).setAppName("tidegate").setAll([*said.items()])
    shown = SparkConf().setAll([(key, value) for key, value in conf.getAll() if _may_be_seen(key, value)])
    with tempfile.TemporaryFile() as chatter:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                shown,  # on a command line, which everybody on this machine can read
                {"stderr": chatter, "stdout": chatter},
            )
            SparkContext(conf=conf, gateway=gateway)
        except (PySparkRuntimeError, Py4JError) as error:
            chatter.seek(0)
            raise ConnectError(
                f"Spark did not start: {_cause(error, chatter.read().decode(errors='replace'))}",
                where=settings.master,
                hint="check `spark:` in config/connections.yml and the Java installation",
            ) from error
    return SparkSession.builder.getOrCreate()


def _may_be_seen(key: str, value: str) -> bool:
    """Whether a setting can stand on a command line. The JVM's own options can stand nowhere else."""
    return key == "spark.driver.extraJavaOptions" or not (names_a_secret(key) or hidden(value) != value)


def _cause(error: Exception, chatter: str) -> str:
    """What the JVM complained about, in the exception it threw or in what it wrote before it ended."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        return str(java.toString())
    said = [line for line in chatter.splitlines() if line.strip() and "WARN" not in line]
    thrown = [line for line in said if line.startswith("Exception in thread")]
    return (thrown or said or [str(error)])[0]


def _demand_master(master: str) -> None:
    """A standalone master that does not answer would keep Spark waiting for a minute and more."""
    if master.startswith("spark://"):
        demand_reachable(
            master.removeprefix("spark://").split(","), "the standalone Spark master", "spark.master"
        )


def _choose_python(settings: SparkSettings) -> None:
    """The Python of tasks: as configured; else, on this machine, the one that runs this.

    PySpark reads it from the environment alone. A cluster's own default is `python3`.
    """
    chosen = settings.conf.get("spark.pyspark.python")
    if chosen:
        os.environ["PYSPARK_PYTHON"] = chosen
    elif settings.cores:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _defaults() -> dict[str, str]:
    """Rows do not pass through the JVM, so it is kept small, quick to start and quiet."""
    logging = files("tidegate.spark").joinpath("log4j2.properties")
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
        "spark.sql.shuffle.partitions": "4",
        "spark.python.worker.reuse": "true",
    }


_MALLOC = "GLIBC_TUNABLES"
_REUSED = (
    "glibc.malloc.tcache_count=127:glibc.malloc.mmap_threshold=33554432:"
    "glibc.malloc.trim_threshold=134217728:glibc.malloc.arena_max=2"
)
"""Workers allocate and free the same few megabytes for every batch.

As it comes, the C library gives such memory back to the system and gets it anew, empty, each time; it keeps
too few small pieces at hand for a driver that frees the values of 32 rows at once; and what is left over lies
in as many arenas as there were threads together. Another C library knows nothing of these words.
"""

_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "tidegate.spark.daemon",
    f"spark.executorEnv.{_MALLOC}": os.environ.get(_MALLOC, _REUSED),
}
"""Where all of Spark is one process, nobody else has to reach it, and its workers have this package."""


def _demand_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    hint = "install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    if not java or not shutil.which(java):
        raise ConnectError("Spark needs Java, and none was found", hint=hint)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr)
    if found and int(found[1]) < _OLDEST_JAVA:
        raise ConnectError(f"Spark needs Java {_OLDEST_JAVA} or 21, {java} is {found[1]}", hint=hint)
