"""A table travels through S3, exactly once."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
import yaml

from tests.servers import S3Server
from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO
from tests.toxiproxy import Toxiproxy
from tidegate.config.settings import Layout
from tidegate.core.errors import StagingError
from tidegate.staging.layout import is_marker
from tidegate.sync.pipeline import Scope

ROUTES = ["sqlite-duckdb", "mariadb-duckdb", "mariadb-postgres", "postgres-duckdb", "postgres-postgres"]


def _through(place: Place, bucket: S3Server) -> Place:
    place.sections = {"staging": {"files": {**bucket.config, "prefix": "incremental/"}}}
    place.shop.create()
    place.shop.insert(250)
    place.configure(processing={"batch_size": 100})
    return place


@pytest.fixture(params=ROUTES)
def place(request: pytest.FixtureRequest, build: Build, fresh_bucket: S3Server) -> Place:
    return _through(build(request.param), fresh_bucket)


@pytest.fixture
def small(build: Build, fresh_bucket: S3Server) -> Place:
    return _through(build("sqlite-duckdb"), fresh_bucket)


def test_rows_arrive_once_and_only_what_is_new_the_next_time(place: Place, fresh_bucket: S3Server) -> None:
    first = place.synced()
    place.agree()
    place.shop.insert(30, first=1_000, at=LONG_AGO + timedelta(days=1))
    second = place.synced()

    place.agree()
    assert (first.rows_extracted, first.files_created, second.rows_extracted) == (250, 3, 30)
    keys = fresh_bucket.keys()
    assert all(key.startswith("incremental/") for key in keys)
    assert len([key for key in keys if key.endswith(".parquet")]) == 4
    assert len([key for key in keys if is_marker(key)]) == 2
    assert len(keys) == 6
    assert place.mark().pending == ()


def test_requests_grow_with_the_segments_alone(small: Place, fresh_bucket: S3Server) -> None:
    """For each segment it and its receipt are written, the receipt is read and the segment looked at; then
    it is looked at once more and loaded. Beside that there is a listing now and then, and the marker."""
    small.configure(processing={"batch_size": 10})
    before = fresh_bucket.requests()
    began = time.monotonic()
    small.synced(scope=Scope.EXTRACT)
    seconds = time.monotonic() - began
    made = fresh_bucket.requests() - before
    before += made
    small.synced(scope=Scope.LOAD)
    loading = fresh_bucket.requests() - before

    segments = 25
    assert made["PutObject"] == 2 * segments + 1
    assert made["GetObject"] <= segments
    assert made["HeadObject"] <= segments + 1
    assert made["ListObjectsV2"] <= seconds + 5
    assert made["DeleteObjects"] == 1
    assert made.total() <= 4 * segments + seconds + 10
    assert loading == {"HeadObject": segments, "GetObject": segments, "ListObjectsV2": 1}


@pytest.mark.parametrize(
    ("layout", "codec"),
    [(Layout.DATETIME, "gzip"), (Layout.TABLE, "lz4"), (Layout.HYBRID, "brotli")],
)
def test_snapshots_layouts_prefixes_and_codecs_pass_too(
    small: Place, fresh_bucket: S3Server, layout: Layout, codec: str
) -> None:
    chosen = {"isolation_prefix": "shop/", "partition_strategy": layout.value, "compression": codec}
    small.configure({"orders": FULL_SYNC}, processing={"batch_size": 60}, s3=chosen)
    small.synced(scope=Scope.EXTRACT)
    small.synced(scope=Scope.LOAD)

    small.agree()
    keys = fresh_bucket.keys()
    assert all(key.startswith("incremental/shop/") for key in keys)


def test_a_segment_that_was_tampered_with_is_not_loaded(small: Place, fresh_bucket: S3Server) -> None:
    small.synced(scope=Scope.EXTRACT)
    first = small.mark().pending[0]
    client, bucket = fresh_bucket.client(), fresh_bucket.bucket
    data = client.get_object(Bucket=bucket, Key=f"incremental/{first.key}")["Body"].read()
    flipped = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    client.put_object(Bucket=bucket, Key=f"incremental/{first.key}", Body=flipped)

    [table] = small.sync(scope=Scope.LOAD).tables.values()

    assert isinstance(table.error, StagingError)
    assert "digest" in str(table.error)
    client.put_object(Bucket=bucket, Key=f"incremental/{first.key}", Body=data)
    small.synced(scope=Scope.LOAD)
    small.agree()


def test_the_marker_names_files_by_keys_that_readers_can_open(small: Place, fresh_bucket: S3Server) -> None:
    small.synced()
    [marker] = filter(is_marker, fresh_bucket.keys())
    body = fresh_bucket.client().get_object(Bucket=fresh_bucket.bucket, Key=marker)["Body"].read()
    files = json.loads(body)["files"]
    staging = small.parts().staging
    assert {file["key"]: file["bytes"] for file in files} == {
        key: found.bytes for key, found in staging.stat_all([file["key"] for file in files]).items()
    }
    assert sum(file["rows"] for file in files) == 250


def test_older_files_bring_staging_and_state_in_one_bucket(build: Build, fresh_bucket: S3Server) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(50)
    place.configure()
    file = place.folder / "config" / "connections.yml"
    connections = yaml.safe_load(file.read_text())
    keys = {name: value for name, value in fresh_bucket.config.items() if name not in ("type", "bucket")}
    older = {"bucket_name": fresh_bucket.bucket, "incremental_path": "incremental/", **keys}
    del connections["staging"], connections["state"]
    file.write_text(yaml.safe_dump({**connections, "s3_configs": {"s3_qa": older}}))
    pipeline = place.folder / "config" / "pipelines" / "shop.yml"
    described = yaml.safe_load(pipeline.read_text())
    del described["pipeline"]["staging"], described["pipeline"]["state"]
    pipeline.write_text(yaml.safe_dump(described))

    place.synced()

    place.agree()
    folders = {key.split("/")[0] for key in fresh_bucket.keys()}  # noqa: SIM118 - it is no dictionary
    assert folders == {"incremental", "watermarks"}


def test_a_server_that_goes_away_in_the_middle_costs_nothing(
    small: Place, fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        behind = fresh_bucket.behind(proxied.port)
        small.sections = {"staging": {"files": {**behind.config, "prefix": "incremental/"}}}
        quick = {"retries": {"max": 0}, "processing": {"batch_size": 25}}
        small.configure({"orders": {**HYBRID, "write_mode": "append"}}, **quick)
        with proxied.toxic("limit_data", bytes=2_000):
            result = small.sync()
        assert result.exit_code in (1, 5)
        assert str(result.tables["orders"].error)
        small.synced()
    small.agree()
