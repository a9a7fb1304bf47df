"""Files in S3, shards in S3, state in S3."""

from __future__ import annotations

import random
import threading
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests import servers
from tests.archive.conftest import LONG_AGO, START, Site
from tests.lost_answers import losing_answer, watching
from tests.servers import S3Server
from tests.toxiproxy import ENOUGH_TO_LOSE, Toxiproxy
from tidegate.archive.contract import Share
from tidegate.archive.extracting import content_of
from tidegate.archive.files import Files, Unpackable
from tidegate.archive.index import index_files
from tidegate.archive.records import ProblemKind, manifests
from tidegate.archive.s3_place import S3ArchivePlace
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError, LoginRefused, TidegateError
from tidegate.s3 import S3Place
from tidegate.staging import s3_upload


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
        in_s3.place.delete([file.key for file in index_files(in_s3.place)])
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


def _everything(place: S3ArchivePlace, files: Files, bucket: str) -> list[object]:
    """Every kind of request that the archiver makes; returns what was seen."""
    noise = random.Random(3)
    large = noise.randbytes(6 << 20)
    with place.scratch() as file:
        file.write(large)
        place.publish("v1/large", file)
    place.put_new("a/new", b"first")
    place.put_new("a/new", b"second")
    place.put("a/replaced", b"one")
    place.put("a/replaced", b"two")
    source = place.open("v1/large")
    assert source is not None
    with files.open(f"s3://{bucket}/archive/a/replaced".encode()) as object_:
        whole = object_.whole()
    seen = [
        source.read(0, 100) == large[:100],
        source.size,
        place.get("a/new"),
        whole,
        place.get("nowhere"),
        place.open("nowhere"),
        [(listed.key, listed.bytes) for listed in place.list("a")],
    ]
    place.delete(["a/new", "a/replaced", "v1/large"])
    return [*seen, list(place.list(""))]


def test_whichever_answer_is_lost_the_archive_is_what_it_would_have_been(
    fresh_bucket: S3Server, toxiproxy: Toxiproxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.archive.s3_place.PART_BYTES", 5 << 20)
    # So that a loss hits the request it is meant for:
    monkeypatch.setattr(s3_upload, "_ROOM", threading.BoundedSemaphore(1))
    with toxiproxy.before(fresh_bucket.port) as proxied:
        access = S3Place(fresh_bucket.bucket, "archive", **_access(fresh_bucket.behind(proxied.port)))
        place, files = S3ArchivePlace(access), Files(s3=access)
        client = access.client()
        with watching(client) as requests:
            expected = _everything(place, files, fresh_bucket.bucket)
        lost = 0
        for number, sent in enumerate(requests.sent, 1):
            after = ENOUGH_TO_LOSE if sent.startswith("P") else 10
            with losing_answer(proxied, client, number, after=after) as losing:
                assert _everything(place, files, fresh_bucket.bucket) == expected, losing.broken
            lost += len(losing.broken)
        assert lost == len(requests.sent) > 12
    assert fresh_bucket.keys() == []


def test_a_window_survives_a_line_that_breaks_again_and_again(
    in_s3: Site, fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    in_s3.add(30)
    with toxiproxy.before(fresh_bucket.port) as proxied:
        in_s3.configure(packer={"s3": _access(fresh_bucket.behind(proxied.port))})
        client = S3Place(
            fresh_bucket.bucket, "archive", **_access(fresh_bucket.behind(proxied.port))
        ).client()
        for number in (3, 16, 33):
            with suppress(TidegateError), losing_answer(proxied, client, number, times=2):
                in_s3.cycle()
            in_s3.add(2, prefix=f"after-{number}", at=LONG_AGO + timedelta(days=number))
            in_s3.move_mark(LONG_AGO - timedelta(days=1))
        in_s3.cycle()
        in_s3.cycle(late=True)
        in_s3.demand_archived()


def test_a_listing_that_may_not_be_deleted_is_not_believed_to_be_gone(
    fresh_bucket: S3Server, in_s3: Site
) -> None:
    """Whoever mends a row would otherwise be told of the old one for ever."""
    uids = in_s3.add(3)
    in_s3.path(uids[1]).unlink()
    user = servers.s3_user(fresh_bucket)
    policy = servers.policy(user, "s3:GetObject", "s3:PutObject", "s3:ListBucket")
    fresh_bucket.client().put_bucket_policy(Bucket=fresh_bucket.bucket, Policy=policy)
    in_s3.configure(packer={"s3": _access(user)})
    with pytest.raises(ArchiveError, match="could not be deleted: AccessDenied") as raised:
        in_s3.cycle()
    assert "s3:DeleteObject" in str(raised.value.hint)


@pytest.mark.parametrize("size", [900, 9 << 20], ids=["small", "large"])
def test_an_object_that_rots_in_its_bucket_is_not_packed_as_if_it_were_sound(
    site: Site, fresh_bucket: S3Server, size: int
) -> None:
    """The server remembers the checksum that it was given; who reads has to compare it."""
    fresh_bucket.client().put_object(Bucket=fresh_bucket.bucket, Key="incoming", Body=b"tide" * (size // 4))
    with (fresh_bucket.folder / "data" / fresh_bucket.bucket / "incoming").open("r+b") as file:
        file.seek(size // 2)
        file.write(b"T")
    site.insert([("rotten", LONG_AGO, f"s3://{fresh_bucket.bucket}/incoming")])
    site.configure(packer={"s3": _access(fresh_bucket)})
    with pytest.raises(ArchiveError, match="not what the checksum of the server says"):
        site.cycle()


def test_an_object_that_is_replaced_while_it_is_read_has_changed(fresh_bucket: S3Server) -> None:
    def put(body: bytes) -> None:
        fresh_bucket.client().put_object(Bucket=fresh_bucket.bucket, Key="incoming", Body=body)

    put(b"first")
    files = Files(s3=S3Place(fresh_bucket.bucket, **_access(fresh_bucket)))
    with files.open(f"s3://{fresh_bucket.bucket}/incoming".encode()) as object_:
        put(b"other")
        with pytest.raises(Unpackable, match="changed while it was read") as caught:
            object_.whole()
    assert caught.value.kind is ProblemKind.CHANGED


def test_a_login_that_is_refused_leaves_no_file_out(site: Site, fresh_bucket: S3Server) -> None:
    """But one object that may not be read is a trouble of its own, and the policy decides on it."""
    fresh_bucket.client().put_object(Bucket=fresh_bucket.bucket, Key="incoming", Body=b"content")
    site.insert([("object", LONG_AGO, f"s3://{fresh_bucket.bucket}/incoming")])
    skipping = {"on_problem": {"unreadable": "skip"}}
    stranger = replace(fresh_bucket, secret_access_key="not-this-one")
    site.configure(packer={**skipping, "s3": _access(stranger)})
    with pytest.raises(LoginRefused, match="does not let us in"):
        site.cycle()
    assert site.mark == START
    site.configure(packer={**skipping, "s3": _access(servers.s3_user(fresh_bucket))})
    assert site.cycle().skipped == 1


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
