"""Upstreams and marks in a bucket: planning needs nothing but the store."""

from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.conftest import FEED, Lake
from tests.servers import S3Server
from tidegate.core.errors import SourceError
from tidegate.s3 import S3Place, storage_options


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


def test_a_bucket_without_the_table_says_so(lake: Lake, fresh_bucket: S3Server, query: str) -> None:
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake}\n"
        f"upstreams: {{orders: {{path: 's3://{fresh_bucket.bucket}/orders?{query}'}}}}\n",
    )
    with pytest.raises(SourceError, match="there is no Delta table"):
        lake.plans().prepare()
