"""What Spark needs for Delta tables, on disk and on S3: fetched once by Ivy, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.built import cache
from tidegate.spark import s3a
from tidegate.spark.delta import BROUGHT_BY_SPARK, CATALOG, EXTENSION, PACKAGE


def delta_conf() -> dict[str, str]:
    """Settings for a session that knows Delta tables, without asking Ivy again."""
    return {
        "spark.jars": ",".join(path.as_uri() for path in jars()),
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def jars() -> list[Path]:
    return [*_jars([PACKAGE], BROUGHT_BY_SPARK), *_jars([s3a.PACKAGE, *s3a.PARTS], s3a.LEFT_OUT)]


def _jars(packages: Sequence[str], left_out: Sequence[str]) -> list[Path]:
    """The jars of packages. Of several processes one fetches them, and the others wait for it."""
    _, name, version = packages[0].split(":")
    home = cache() / f"{name.partition('_')[0]}-{version}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            _fetch(home, packages, left_out)
            (home / "complete").touch()
    return sorted((home / "jars").glob("*.jar"))


def _fetch(home: Path, packages: Sequence[str], left_out: Sequence[str]) -> None:
    """Let spark-submit fetch what it is asked for; there is nothing for it to run afterwards."""
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--packages", ",".join(packages), "--exclude-packages", ",".join(left_out)]
    done = subprocess.run(
        [submit, "--conf", f"spark.jars.ivy={home}", *options, "--class", "nothing.ToRun", "spark-internal"],
        env={**os.environ, "SPARK_HOME": str(submit.parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    wanted = packages[0].split(":")[1]
    assert list((home / "jars").glob(f"*{wanted}*.jar")), done.stdout + done.stderr


if __name__ == "__main__":
    jars()
