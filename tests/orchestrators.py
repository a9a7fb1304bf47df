"""A Python that has Airflow and Dagster: made once from a lock, and kept in the user's cache.

They pin what they need so narrowly that nothing else can live with them. Only PyPI is asked.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.built import cache

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).parent / "orchestrators.lock"


def python() -> Path:
    """The interpreter. Of several processes one makes it, and the others wait."""
    return _home() / "bin" / "python"


def airflow_database() -> Path:
    """An empty database of Airflow; making one takes longer than a test."""
    return _home() / "airflow.db"


def environment(airflow_home: Path) -> dict[str, str]:
    """What programs of that Python need: our package, and an Airflow that reports to nobody."""
    shutil.copy(airflow_database(), airflow_home / "airflow.db")
    return {**os.environ, **_airflow(airflow_home), "PYTHONPATH": str(ROOT / "src")}


def _airflow(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
        "SCARF_NO_ANALYTICS": "true",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def _home() -> Path:
    digest = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache() / f"orchestrators-{digest}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (cache() / "orchestrators.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            _make(home)
            (home / "complete").touch()
    return home


def _make(home: Path) -> None:
    _run(sys.executable, "-m", "venv", home)
    _run(home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    _run(home / "bin/uv", "pip", "install", "--quiet", "--python", home / "bin/python", "-r", LOCK)
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **_airflow(Path(folder))}
        _run(home / "bin/airflow", "db", "migrate", environ=environ)
        shutil.copy(Path(folder) / "airflow.db", home / "airflow.db")


def _run(*command: str | Path, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
