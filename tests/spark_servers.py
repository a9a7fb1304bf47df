"""Spark as others run it, from the PySpark that is installed: a standalone master with two workers, and a
Spark Connect server. Like the servers of `tests.servers`: private ports, gone when the process is gone.

Their tasks run in a Python that has what Tidegate depends on, but not Tidegate.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.delta_jars import delta_conf
from tests.servers import HOST, START_TIMEOUT, _folder, _Home, _listens, _running, _wait_until, free_port

_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_WORKERS = 2


@dataclass(frozen=True)
class SparkServer:
    """Where Spark runs, with event log and web pages."""

    folder: Path
    """Logs and working folders of all its processes lie in here."""
    spark: dict[str, Any]
    """The section `spark` of connections.yml."""
    pages: tuple[str, ...]
    """The addresses of web pages about it, and about the first application on it."""
    pids: tuple[int, ...]
    """The processes that start others to run tasks in."""


@dataclass(frozen=True)
class _Listening:
    port: int
    pid: int

    def answers(self) -> bool:
        return _listens(self.port)


@dataclass(frozen=True)
class _Starting:
    """A worker, whose master tells when it is there."""

    pid: int

    def answers(self) -> bool:
        return True


@contextmanager
def standalone() -> Iterator[SparkServer]:
    """A standalone master and two workers, with room for several applications of two small executors."""
    with _folder() as home, ExitStack() as running:
        python, pages = bare_python(home.path / "python"), free_port()
        environ = {**_environ(python), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _QUICK}

        def master(port: int) -> list[str]:
            address = ["--host", HOST, "--port", str(port), "--webui-port", str(pages)]
            return [_spark("spark-class"), "org.apache.spark.deploy.master.Master", *address]

        def listening(port: int, pid: int) -> _Listening:
            return _Listening(port, pid)

        ready = running.enter_context(_running(home, master, listening, signal.SIGTERM, environ))
        pids = []
        for number in range(_WORKERS):
            worker = _Worker(home, number, f"spark://{HOST}:{ready.port}")
            started = running.enter_context(
                _running(home, worker.command, worker.started, signal.SIGTERM, environ)
            )
            pids.append(started.pid)
        page = f"http://{HOST}:{pages}"
        _wait_until(lambda: _alive_workers(page) == _WORKERS, START_TIMEOUT, "the workers to register")
        conf = {
            **watched(home.path),
            "spark.driver.host": HOST,
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.pyspark.python": str(python),
        }
        spark = {"master": f"spark://{HOST}:{ready.port}", "conf": conf}
        pages_of_first = f"http://{HOST}:{conf['spark.ui.port']}"
        yield SparkServer(home.path, spark, (page, pages_of_first), tuple(pids))


@dataclass(frozen=True)
class _Worker:
    home: _Home
    number: int
    master: str

    def command(self, port: int) -> list[str]:
        work = self.home.path / f"worker-{self.number}"
        size = ["--cores", "8", "--memory", "8g", "--work-dir", str(work)]
        address = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
        return [
            _spark("spark-class"), "org.apache.spark.deploy.worker.Worker", *size, *address, self.master
        ]  # fmt: skip

    def started(self, _port: int, pid: int) -> _Starting:
        return _Starting(pid)


def _alive_workers(page: str) -> int:
    try:
        with urllib.request.urlopen(f"{page}/json/", timeout=60) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):  # it has not quite started
        return 0


@contextmanager
def connect() -> Iterator[SparkServer]:
    """A Spark Connect server that runs its tasks itself and knows Delta tables."""
    with _folder() as home:
        python = bare_python(home.path / "python")
        conf = {
            **watched(home.path),
            **delta_conf(),
            "spark.connect.grpc.binding.address": HOST,
            "spark.driver.host": HOST,
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.local.dir": str(home.path / "local"),
            "spark.sql.warehouse.dir": str(home.path / "warehouse"),
        }

        def command(port: int) -> list[str]:
            settings = {**conf, "spark.connect.grpc.binding.port": str(port)}
            options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
            server = "org.apache.spark.sql.connect.service.SparkConnectServer"
            return [
                _spark("spark-submit"),
                "--class",
                server,
                "--master",
                "local[2]",
                *options,
                "spark-internal",
            ]

        def listening(port: int, pid: int) -> _Listening:
            return _Listening(port, pid)

        with _running(home, command, listening, signal.SIGTERM, _environ(python)) as ready:
            spark = {"remote": f"sc://{HOST}:{ready.port}"}
            yield SparkServer(home.path, spark, (f"http://{HOST}:{conf['spark.ui.port']}",), (ready.pid,))


def watched(folder: Path) -> dict[str, str]:
    """Settings with which Spark tells all it knows: web pages, and a log of events in the folder."""
    events = folder / "events"
    events.mkdir()
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }


def bare_python(folder: Path) -> Path:
    """A Python with the packages of this environment, but none of those that are installed to be edited.

    What a `.pth` file leads to is searched for packages, and not for further `.pth` files.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (inside / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _environ(python: Path) -> dict[str, str]:
    return {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": str(python), "PYTHONPATH": "", "SPARK_HOME": _home()}


def _home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def _spark(program: str) -> str:
    found = shutil.which(program, path=f"{_home()}/bin")
    assert found is not None
    return found
