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
from typing import TYPE_CHECKING

from tidegate.core.errors import ConnectError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLDEST_JAVA = 17


@dataclass(frozen=True)
class SparkSettings:
    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> int | None:
        """How many tasks a local session runs at once; None: only the cluster knows."""
        found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", self.master)
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
            return self._session

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None


def start(settings: SparkSettings) -> SparkSession:
    """A session as configured, or the one this process already has."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError("Spark is not installed", hint="pip install 'tidegate[spark]'") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if settings.remote:
        builder = SparkSession.builder.remote(settings.remote)
        for key, value in settings.conf.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    _demand_java()
    return _start_jvm(settings)


def _start_jvm(settings: SparkSettings) -> SparkSession:
    """Start the driver's JVM with its chatter kept away from the user's terminal."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # Tasks must find the packages the driver has; on a cluster the archive recipe sets these.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf().setMaster(settings.master).setAppName("tidegate")
    conf.setAll([*{**_defaults(), **settings.conf}.items()])
    with tempfile.TemporaryFile() as chatter:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stderr": chatter, "stdout": chatter}
            )
            SparkContext(conf=conf, gateway=gateway)
        except PySparkRuntimeError as error:
            chatter.seek(0)
            said = chatter.read().decode(errors="replace").strip().splitlines()
            raise ConnectError(
                f"Spark did not start: {said[-1] if said else error}",
                where=settings.master,
                hint="check `spark:` in config/connections.yml and the Java installation",
            ) from error
    return SparkSession.builder.getOrCreate()


def _defaults() -> dict[str, str]:
    """Rows do not pass through the JVM, so it is kept small, quick to start and quiet."""
    logging = files("tidegate.spark").joinpath("log4j2.properties")
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
        "spark.sql.shuffle.partitions": "4",
        "spark.python.worker.reuse": "true",
    }


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
