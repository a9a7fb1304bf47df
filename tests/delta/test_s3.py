"""Upstreams, targets and marks in a bucket: planning needs the store alone, processing Spark's own way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.conftest import FEED, Lake
from tests.delta.test_running import Gold
from tests.servers import S3Server
from tidegate.core.errors import SourceError
from tidegate.s3 import S3Place, storage_options
from tidegate.spark import s3a
from tidegate.spark.delta import BROUGHT_BY_SPARK, PACKAGE, with_delta
from tidegate.spark.session import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def query(fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", fresh_bucket.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", fresh_bucket.secret_access_key)
    return f"region={fresh_bucket.region}&endpoint_url={quote(fresh_bucket.endpoint_url, safe='')}"


def test_tables_in_a_bucket_are_found_planned_and_looked_after(
    lake: Lake, fresh_bucket: S3Server, query: str
) -> None:
    base = f"s3://{fresh_bucket.bucket}"
    options = storage_options(S3Place.at(f"{base}?{query}"))
    for name in ("orders", "customers", "tmp_orders"):
        rows = pa.table({"id": [1]})
        write_deltalake(f"{base}/silver/{name}", rows, configuration=FEED, storage_options=options)
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake}\n"
        f"upstreams: {{from: '{base}/silver/*?{query}', exclude: ['tmp_*']}}\n",
        f"state: {{lake: {{type: delta, path: '{base}/state?{query}'}}}}\n",
    )
    plans = lake.plans()
    first = plans.prepare()
    assert [(item.name, item.end_version) for item in first.work] == [("customers", 0), ("orders", 0)]
    plans.complete(first.run_id)
    orders = DeltaTable(f"{base}/silver/orders", storage_options=options)
    orders.create_checkpoint()
    write_deltalake(orders, pa.table({"id": [2]}), mode="append")
    second = plans.prepare()
    assert [(item.name, item.start_version, item.end_version) for item in second.work] == [("orders", 1, 1)]
    plans.complete(second.run_id)
    write_deltalake(orders, pa.table({"id": [3]}), mode="append")
    write_deltalake(orders, pa.table({"id": [4]}), mode="overwrite")
    orders.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    blocked = plans.prepare()
    assert blocked.run_id is None
    assert "VACUUM has taken" in str(next(i for i in blocked.upstreams if i.name == "orders").error_message)
    assert plans.latest_versions(["customers"]) == {"customers": 0}


def test_changes_of_a_table_in_a_bucket_reach_a_target_in_a_bucket(
    tmp_path: Path, spark: SparkSession, fresh_bucket: S3Server, query: str
) -> None:
    base, access = f"s3://{fresh_bucket.bucket}", s3a_of(fresh_bucket)
    options = storage_options(S3Place.at(f"{base}?{query}"))
    gold = Gold(tmp_path, spark=spark)
    gold.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        f"upstreams: {{orders: {{path: '{base}/silver/orders?{query}', keys: [id]}}}}\n",
        f"connections: {{targets: {{lake: {{type: delta, path: '{base}/gold', region: {fresh_bucket.region}, "
        f"endpoint_url: '{fresh_bucket.endpoint_url}'}}}}}}\n"
        f"state: {{lake: {{type: delta, path: '{base}/state?{query}'}}}}\n",
    )
    rows = pa.table({"id": [1, 2, 3], "state": ["new", "new", "new"]})
    write_deltalake(f"{base}/silver/orders", rows, configuration=FEED, storage_options=options)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - what spark.conf sets when it starts
    for name, value in access.items():
        hadoop.set(name, value)
    try:
        gold.completed()
        orders = DeltaTable(f"{base}/silver/orders", storage_options=options)
        orders.delete("id = 1")
        orders.update(updates={"state": "'paid'"}, predicate="id = 2")
        done = gold.completed()
    finally:
        for name in access:
            hadoop.unset(name)
    assert done.upstreams[0].records_processed == 2
    there = DeltaTable(f"{base}/gold/orders", storage_options=options)
    assert sorted(row["state"] for row in there.to_pyarrow_table().to_pylist()) == ["new", "paid"]
    assert there.transaction_version("tidegate:gold/orders") == done.upstreams[0].number


def s3a_of(bucket: S3Server) -> dict[str, str]:
    """How Spark gets to a bucket."""
    return {
        f"fs.s3a.bucket.{bucket.bucket}.{name}": value
        for name, value in {
            "endpoint": bucket.endpoint_url,
            "endpoint.region": bucket.region,
            "path.style.access": "true",
            "access.key": bucket.access_key_id,
            "secret.key": bucket.secret_access_key,
        }.items()
    }


def test_the_module_for_s3_comes_with_parts_of_the_sdk_and_not_with_all_of_it() -> None:
    said = {"spark.jars.packages": s3a.PACKAGE, "spark.jars.excludes": "some:thing"}
    conf = with_delta(SparkSettings(conf=said)).conf
    assert conf["spark.jars.packages"].split(",") == [s3a.PACKAGE, PACKAGE, *s3a.PARTS]
    left_out = conf["spark.jars.excludes"].split(",")
    assert left_out[0] == "some:thing"
    assert {"software.amazon.awssdk:bundle", *BROUGHT_BY_SPARK} <= set(left_out)
    whole = f"{s3a.PACKAGE},software.amazon.awssdk:bundle:2.35.4"
    conf = with_delta(SparkSettings(conf={"spark.jars.packages": whole})).conf
    assert conf["spark.jars.packages"] == f"{whole},{PACKAGE}"


def test_a_bucket_without_the_table_says_so(lake: Lake, fresh_bucket: S3Server, query: str) -> None:
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake}\n"
        f"upstreams: {{orders: {{path: 's3://{fresh_bucket.bucket}/orders?{query}'}}}}\n",
    )
    with pytest.raises(SourceError, match="there is no Delta table"):
        lake.plans().prepare()
