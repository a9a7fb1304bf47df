"""Machines that run tasks need no Tidegate: the driver brings it along. What they lack is said in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.spark_servers import SparkServer, bare_python
from tests.system.conftest import Build, DistantPlace
from tidegate.core.errors import SourceError, StagingError
from tidegate.spark.session import LazySession
from tidegate.staging.local import LocalStaging
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(build: Build) -> DistantPlace:
    made = build("mariadb-duckdb")
    assert isinstance(made, DistantPlace)
    made.shop.create()
    made.shop.insert(100)
    made.configure()
    return made


# --- By itself -----------------------------------------------------------------


def _origin(session: LazySession) -> set[str]:
    """Where tasks import Tidegate from."""

    def task(rows: Any) -> Any:
        import pyarrow as pa

        import tidegate

        for _ in rows:
            yield pa.RecordBatch.from_pydict({"origin": [tidegate.__file__]})

    found = session.get().range(0, 4, 1, 4).mapInArrow(task, "origin string").collect()
    return {row["origin"] for row in found}


def test_tasks_import_what_the_driver_brought_along(place: DistantPlace, server: SparkServer) -> None:
    python = server.folder / "python/bin/python"
    alone = subprocess.run([python, "-c", "import tidegate"], capture_output=True, text=True, check=False)
    assert "No module named 'tidegate'" in alone.stderr

    for origin in place.driver.ask(_origin, place.folder):
        assert origin.endswith("/tidegate.zip/tidegate/__init__.py")


def _forgotten(session: LazySession) -> set[str]:
    """What a session, and one that is made later, do when the server has forgotten the one there was."""
    session.get().client.release_session()
    renewed = _origin(session)
    session.get().client.release_session()
    return renewed | _origin(LazySession(session.settings))


@pytest.mark.parametrize("spark_kind", ["connect"], indirect=True)
def test_a_session_that_the_server_has_forgotten_is_made_anew(place: DistantPlace) -> None:
    before = place.driver.ask(_origin, place.folder)

    after = place.driver.ask(_forgotten, place.folder)

    assert len(after - before) == 2
    place.synced()
    place.agree()


# --- What is missing -------------------------------------------------------------


@dataclass(frozen=True)
class _Homemade(LocalStaging):
    """Of a module that tasks cannot import."""


def _use_homemade(parts: Parts) -> None:
    assert isinstance(parts.staging, LocalStaging)
    parts.staging = _Homemade(parts.staging.root)


def test_a_package_that_tasks_lack_is_named(place: DistantPlace) -> None:
    result, _ = place.driver.sync(place.folder, Request(), _use_homemade)

    error = result.tables["orders"].error
    assert isinstance(error, SourceError)
    assert error.message == "a Spark task failed: ModuleNotFoundError: No module named 'tests'"
    assert "run-on-a-cluster" in str(error.hint)


def test_a_folder_that_machines_do_not_share_is_no_staging(place: DistantPlace) -> None:
    # This path leads to another folder for every process.
    place.sections["staging"] = {"files": {"type": "local", "path": "/proc/self/cwd/staging"}}
    place.configure()

    error = place.sync().tables["orders"].error

    assert isinstance(error, StagingError)
    assert "cannot be seen" in error.message
    assert "all machines share" in str(error.hint)
    assert place.mark().extracted.rows_total == 0
    del place.sections["staging"]
    place.configure()
    place.synced()
    place.agree()


# --- By recipe -------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(_uv(), "build", "--wheel", "--out-dir", str(folder), str(ROOT))
    [built] = folder.glob("tidegate-*.whl")
    return built


def _uv() -> str:
    found = subprocess.run(
        [ROOT / "scripts/setup", "which-uv"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return str(ROOT / found.stdout.strip())


def _run(*command: str, **environ: str) -> None:
    unset = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(command, env={**inherited, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("spark_kind", ["standalone"], indirect=True)
def test_an_installed_wheel_and_an_archive_of_its_packages_are_enough(
    place: DistantPlace, server: SparkServer, wheel: Path, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "installed")
    _run(_uv(), "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel))
    archive = _archive(tmp_path)
    conf = {
        **server.spark["conf"],
        "spark.archives": f"{archive}#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    place.sections["spark"] = {**server.spark, "conf": conf}
    place.configure()

    _run(str(python.parent / "tidegate"), "sync", "--project", str(place.folder))

    place.agree()


def _archive(folder: Path) -> Path:
    """An environment in one file. Its packages lie elsewhere on this machine, which saves packing them."""
    bare_python(folder / "environment")
    path = folder / "environment.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for part in (folder / "environment").iterdir():
            file.add(part, part.name)
    return path


@pytest.mark.parametrize("spark_kind", ["standalone"], indirect=True)
def test_a_script_can_be_submitted_with_the_wheel_beside_it(
    place: DistantPlace, server: SparkServer, wheel: Path, tmp_path: Path
) -> None:
    place.sections["spark"] = {}  # the command line says where to run
    place.configure()
    script = tmp_path / "job.py"
    script.write_text("import sys, tidegate\nsys.exit(tidegate.sync(project=sys.argv[1]).exit_code)\n")
    conf = [word for name, value in server.spark["conf"].items() for word in ("--conf", f"{name}={value}")]
    python = str(server.folder / "python/bin/python")

    _run(
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", server.spark["master"]),
        *conf,
        *("--py-files", str(wheel)),
        str(script),
        str(place.folder),
        PYSPARK_PYTHON=python,
    )

    place.agree()
    assert _applications(server)[-1] == "tidegate"


def _applications(server: SparkServer) -> list[str]:
    with urllib.request.urlopen(f"{server.pages[0]}/json/", timeout=120) as answer:
        return [application["name"] for application in reversed(json.load(answer)["completedapps"])]
