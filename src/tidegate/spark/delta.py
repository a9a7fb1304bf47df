"""What a session needs to read and write Delta tables. Only pipelines of kind delta ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tidegate.core.errors import ConnectError
from tidegate.spark import s3a
from tidegate.spark.session import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Made for the PySpark that is installed; Ivy fetches it when a session first asks for it."""
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

BROUGHT_BY_SPARK = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:parquet-hadoop",
    "org.slf4j:slf4j-api",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "org.roaringbitmap:RoaringBitmap",
    "io.unitycatalog:unitycatalog-client",
    "io.unitycatalog:unitycatalog-hadoop",
)
"""What the package asks for and Spark has already, in versions of its own, or nobody here calls."""

_REMOTE = "SPARK_CONNECT_MODE_ENABLED"
_EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog.spark_catalog"
_PACKAGES, _EXCLUDES = "spark.jars.packages", "spark.jars.excludes"
_JARS = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")


def with_delta(settings: SparkSettings) -> SparkSettings:
    """The same settings, for a session that knows Delta tables. What is configured goes before.

    A Spark Connect server has what it was started with, so nothing is added for one.
    """
    if settings.remote is not None:
        return settings
    conf = {**_small(settings), **settings.conf, **_extended(settings.conf), **_fetched(settings.conf)}
    return replace(settings, conf=conf)


def _small(settings: SparkSettings) -> dict[str, str]:
    """On one machine, the log of a table is not worth the fifty tasks that Delta would read it with."""
    return {"spark.databricks.delta.snapshotPartitions": str(settings.cores)} if settings.cores else {}


def _extended(conf: Mapping[str, str]) -> dict[str, str]:
    return {
        _EXTENSIONS: _added(conf.get(_EXTENSIONS), EXTENSION),
        _CATALOG: conf.get(_CATALOG, CATALOG),
    }


def _fetched(conf: Mapping[str, str]) -> dict[str, str]:
    """Packages that Ivy is to fetch, and what of all they ask for it is to leave out."""
    packages: list[str] = []
    left_out: list[str] = []
    if not any("delta-spark" in conf.get(name, "") for name in _JARS):
        packages.append(PACKAGE)
        left_out += BROUGHT_BY_SPARK
    if s3a.lacks_parts(conf.get(_PACKAGES, "").split(",")):
        packages += s3a.PARTS
        left_out += s3a.LEFT_OUT
    if not packages:
        return {}
    return {
        _PACKAGES: _added(conf.get(_PACKAGES), *packages),
        _EXCLUDES: _added(conf.get(_EXCLUDES), *left_out),
    }


def _added(listed: str | None, *items: str) -> str:
    names = [name.strip() for name in (listed or "").split(",")]
    return ",".join(dict.fromkeys(name for name in (*names, *items) if name))


def apart(session: SparkSession) -> SparkSession:
    """Another session of the same application, with settings and views of its own."""
    if not _is_remote(session):
        return session.newSession()
    made: SparkSession = cast("Any", session).cloneSession()
    return made


def _is_remote(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextmanager
def spoken(session: SparkSession) -> Iterator[None]:
    """What `pyspark.sql.functions` makes meanwhile is what the session understands.

    PySpark decides that for the whole process, and we do not let a Spark Connect server decide it for good.
    """
    before = os.environ.get(_REMOTE)
    if _is_remote(session):
        os.environ[_REMOTE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_REMOTE, None)


def demand_delta(session: SparkSession) -> None:
    """Raise `ConnectError` if the session cannot read Delta tables: one that others have started may not."""
    if EXTENSION in (session.conf.get(_EXTENSIONS, "") or "") or _understands(session):
        return
    raise ConnectError(
        "the Spark session does not know Delta tables",
        hint=f"start it with {PACKAGE} in spark.jars.packages and {EXTENSION} in {_EXTENSIONS}",
    )


def _understands(session: SparkSession) -> bool:
    """Whether the session takes a statement that only Delta knows: where it is built in, no setting tells."""
    from pyspark.errors import ParseException, PySparkException

    try:
        session.sql("VACUUM delta.`/there/is/no/such/table` DRY RUN")
    except ParseException:
        return False
    except PySparkException:
        pass  # it has been understood, and there is no such table
    return True
