"""What Spark needs for Delta tables: fetched once by Ivy, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests.built import cache
from tidegate.spark.delta import BROUGHT_BY_SPARK, CATALOG, EXTENSION, PACKAGE

_VERSION = PACKAGE.rpartition(":")[2]


def delta_conf() -> dict[str, str]:
    """Settings for a session that knows Delta tables, without asking Ivy again."""
    return {
        "spark.jars": ",".join(path.as_uri() for path in jars()),
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def jars() -> list[Path]:
    """The jars. Of several processes one fetches them, and the others wait for it."""
    home = cache() / f"delta-spark-{_VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            _fetch(home)
            (home / "complete").touch()
    return sorted((home / "jars").glob("*.jar"))


def _fetch(home: Path) -> None:
    """Let spark-submit fetch what it is asked for; there is nothing for it to run afterwards."""
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--packages", PACKAGE, "--exclude-packages", ",".join(BROUGHT_BY_SPARK)]
    done = subprocess.run(
        [submit, "--conf", f"spark.jars.ivy={home}", *options, "--class", "nothing.ToRun", "spark-internal"],
        env={**os.environ, "SPARK_HOME": str(submit.parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert list((home / "jars").glob("*delta-spark*.jar")), done.stdout + done.stderr


if __name__ == "__main__":
    jars()
