"""`tidegate staging` where the files lie in S3, and where there are very many of them."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run, Shop
from tests.lost_answers import watching
from tests.servers import S3Server
from tests.staging.test_s3 import PART, staging_in
from tidegate.core.positions import Position
from tidegate.staging.s3 import S3Staging
from tidegate.sync.staged import Selection, list_staged

MANY = 8_000
"""What is left of a run. (Tried with 100,000 too, which takes minutes on a busy machine.)"""


@pytest.fixture
def staging(shop: Shop, fresh_bucket: S3Server) -> S3Staging:
    """The shop's staging, moved to S3."""
    file = shop.root / "config/connections.yml"
    connections = yaml.safe_load(file.read_text())
    connections["staging"]["files"] = {**fresh_bucket.config, "prefix": "incremental"}
    file.write_text(yaml.safe_dump(connections))
    staging = staging_in(fresh_bucket)
    shop.staging = staging  # type: ignore[assignment]
    return staging


def _leave(bucket: S3Server, run_id: str, count: int) -> None:
    """Files as a run leaves them; put behind the server's back, since it would take minutes to take them."""
    root = bucket.folder / "data" / bucket.bucket / "incremental" / "year=2025"
    for number in range(count):
        folder: Path = root / f"day={number // 1000:03d}"
        if number % 1000 == 0:
            folder.mkdir(parents=True)
        (folder / f"orders_20250801_batch_{number:06d}_{run_id}_late.parquet").touch()


def test_many_thousand_files_are_listed_and_cleaned_a_page_at_a_time(
    shop: Shop, staging: S3Staging, fresh_bucket: S3Server, run: Run
) -> None:
    over = shop.extract(1)
    [pending] = shop.mark().pending
    with shop.hold("customers") as held:
        flying = shop.plan(held, None, Position.of(1))
    staging.put(f"year=2025/customers_20250801_batch_0001_{flying}_a1.parquet", b"x")
    staging.put("year=2025/notes.txt", b"theirs")
    _leave(fresh_bucket, over, MANY)

    with watching(staging.place.client()) as requests:
        result = run("staging", "clean", "--yes", "--json")

    items = json.loads(result.stdout)
    assert Counter((item["state"], item["deleted"]) for item in items) == {("orphaned", True): MANY}
    left = {item.key for item in staging.list()}
    assert left == {
        pending.key,
        f"year=2025/customers_20250801_batch_0001_{flying}_a1.parquet",
        "year=2025/notes.txt",
    }
    made = Counter(sent.split()[0] for sent in requests.sent)
    assert made == {"GET": MANY // 1000 + 1 + 1, "POST": MANY // 1000}


def test_the_first_files_are_known_after_one_page_and_none_is_held(
    shop: Shop, staging: S3Staging, fresh_bucket: S3Server
) -> None:
    over = shop.extract(1)
    _leave(fresh_bucket, over, 1_500)
    with watching(staging.place.client()) as requests:
        assert len(list(islice(list_staged(staging, [shop.store]), 10))) == 10
    assert len(requests.sent) == 2
    chosen = Selection()
    tracemalloc.start()
    try:
        for item in list_staged(staging, [shop.store]):
            chosen.add(item)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        chosen.close()
    assert held < 2**20


def test_uploads_that_never_ended_are_shown_and_aborted(shop: Shop, staging: S3Staging, run: Run) -> None:
    over = shop.extract(1)
    key = f"year=2025/orders_20250801_batch_0002_{over}_dead.parquet"
    for name in (key, "year=2025/notes.txt"):
        client = staging.place.client()
        upload = client.create_multipart_upload(Bucket=staging.place.bucket, Key=f"incremental/{name}")
        client.upload_part(
            Bucket=staging.place.bucket,
            Key=f"incremental/{name}",
            UploadId=upload["UploadId"],
            PartNumber=1,
            Body=b"x" * PART,
        )

    text = run("staging", "clean", "--yes").stdout

    assert f"orphaned  {key} (unfinished)" in text
    assert [item.key for item in staging.unfinished()] == ["year=2025/notes.txt"]
