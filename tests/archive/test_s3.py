"""Files in S3, shards in S3, state in S3."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from tests.archive.conftest import LONG_AGO, Site
from tests.servers import S3Server
from tidegate.archive.cycle import Share
from tidegate.archive.extracting import content_of
from tidegate.archive.records import manifests
from tidegate.archive.s3_place import S3ArchivePlace
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError
from tidegate.s3 import S3Place


@pytest.fixture
def in_s3(site: Site, fresh_bucket: S3Server) -> Site:
    output = f"s3://{fresh_bucket.bucket}/archive"
    site.base = {"packer": {"output_dir": output, "s3": _access(fresh_bucket)}}
    site.configure()
    return site


def _access(server: S3Server) -> dict[str, Any]:
    return {
        "endpoint_url": server.endpoint_url,
        "region": "us-east-1",
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }


def test_from_s3_to_s3(in_s3: Site, fresh_bucket: S3Server) -> None:
    with closing(fresh_bucket.client()) as client:
        rows = []
        for number in range(30):
            data = in_s3.noise.randbytes(number * 40)
            key = f"incoming/odd name+{number}%"
            client.put_object(Bucket=fresh_bucket.bucket, Key=key, Body=data)
            in_s3.files[f"object-{number}"] = data
            rows.append((f"object-{number}", LONG_AGO, f"s3://{fresh_bucket.bucket}/{key}"))
        in_s3.insert(rows)
        in_s3.add(10)

        assert in_s3.cycle().files == 40

        in_s3.demand_complete()
        assert in_s3.updates("des_archive_config", 1) == 1
        in_s3.move_mark(LONG_AGO)
        assert in_s3.cycle().already == 9
        client.delete_object(Bucket=fresh_bucket.bucket, Key="incoming/odd name+7%")
        in_s3.insert([("gone", LONG_AGO, f"s3://{fresh_bucket.bucket}/incoming/odd name+7%")])
        with pytest.raises(ArchiveError, match="missing"):
            in_s3.cycle(late=True)


def test_one_file_is_read_with_two_requests(in_s3: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    in_s3.configure(packer={"n_bits": 0, "max_shard_size": 10**9})
    in_s3.add(300)
    in_s3.cycle()
    [manifest] = manifests(in_s3.place)
    ranges = []
    reading = S3ArchivePlace.read
    opening = S3ArchivePlace.open

    def counted_read(self: S3ArchivePlace, key: str, offset: int, length: int) -> bytes:
        ranges.append((offset, length))
        return reading(self, key, offset, length)

    def counted_open(self: S3ArchivePlace, key: str) -> Any:
        ranges.append((-1, 0))
        return opening(self, key)

    monkeypatch.setattr(S3ArchivePlace, "read", counted_read)
    monkeypatch.setattr(S3ArchivePlace, "open", counted_open)
    source = in_s3.place.open(manifest.shards[0].key)
    assert source is not None
    shard = Shard(source)
    found = shard.find("file-123")
    assert found is not None
    assert b"".join(shard.content(found)) == in_s3.files["file-123"]
    assert len(ranges) == 2
    monkeypatch.undo()
    assert b"".join(content_of(in_s3.place, "file-123")) == in_s3.files["file-123"]


def test_two_workers_share_a_window_in_s3(in_s3: Site) -> None:
    in_s3.add(40)
    workers = [threading.Thread(target=in_s3.cycle, args=(Share(number, 2),)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    in_s3.demand_complete()


def test_a_large_shard_goes_up_in_parts(in_s3: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.archive.s3_place.PART_BYTES", 5 << 20)
    in_s3.insert([("large", LONG_AGO, str(in_s3.write("large", in_s3.noise.randbytes(12 << 20))))])
    in_s3.cycle()
    in_s3.demand_complete()


def test_an_object_that_is_there_is_never_replaced(fresh_bucket: S3Server, in_s3: Site) -> None:
    access = _access(fresh_bucket)
    place = S3ArchivePlace(S3Place(fresh_bucket.bucket, "x", **access))
    assert place.put_new("a/b", b"first")
    assert not place.put_new("a/b", b"second")
    with place.scratch() as file:
        file.write(b"third")
        assert not place.publish("a/b", file)
    assert place.get("a/b") == b"first"
    assert [listed.key for listed in place.list("a")] == ["a/b"]
    assert place.get("nothing") is None
    assert place.open("nothing") is None
    place.delete(["a/b", "never"])
    assert list(place.list("a")) == []
