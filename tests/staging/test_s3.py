"""Staging in S3: how many requests it makes, how much memory, and what becomes of lost answers."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from tests import servers
from tests.lost_answers import losing_answer, watching
from tests.servers import S3Server
from tests.staging.test_parquet import NUMBERS, numbers
from tests.test_documents import blocks
from tests.toxiproxy import ENOUGH_TO_LOSE, Proxied, Toxiproxy
from tidegate.config.connection_models import S3Staging as S3StagingConfig
from tidegate.config.settings import Compression
from tidegate.core.errors import ConnectError, LoginRefused, OutcomeUnknown, StagingError
from tidegate.s3 import S3Place
from tidegate.staging import s3_upload
from tidegate.staging.parquet import write_segment
from tidegate.staging.s3 import S3Staging
from tidegate.staging.s3_file import READ_AHEAD
from tidegate.staging.s3_upload import PART_BYTES, PARTS_AT_ONCE
from tidegate.testing.staging import content

PART = 5 * 2**20
"""The least that S3 takes, but for the last."""


def staging_in(server: S3Server) -> S3Staging:
    config = S3StagingConfig.model_validate({**server.config, "prefix": "incremental"})
    return S3Staging(S3Place.of(config), PART)


@pytest.fixture
def staging(fresh_bucket: S3Server) -> S3Staging:
    return staging_in(fresh_bucket)


@contextmanager
def counted(staging: S3Staging) -> Iterator[Counter[str]]:
    """The requests that are made meanwhile, by their names."""
    events = staging.place.client().meta.events
    made: Counter[str] = Counter()

    def count(event_name: str, **_: object) -> None:
        made[event_name.rpartition(".")[2]] += 1

    events.register("before-send.s3", count)
    try:
        yield made
    finally:
        events.unregister("before-send.s3", count)


# --- Requests ------------------------------------------------------------------


def test_a_segment_is_one_request_and_its_proof_is_none(staging: S3Staging) -> None:
    with counted(staging) as made, staging.create("numbers.parquet") as writer:
        write_segment(writer.file, NUMBERS, iter([numbers(0, 50_000)]), compression=Compression.SNAPPY)
    assert made == {"PutObject": 1}
    with counted(staging) as made, writer.reopen() as file:
        assert pq.read_metadata(file).num_rows == 50_000
    assert made == {}
    with counted(staging) as made, staging.open("numbers.parquet") as file:
        assert pq.read_table(file).num_rows == 50_000
    assert made == {"GetObject": 1}


def test_a_large_object_is_sent_in_parts_and_read_by_ranges(staging: S3Staging) -> None:
    data = content(4 * PART + 1)
    with counted(staging) as made, staging.create("large") as writer:
        writer.file.write(data)
    assert made == {"CreateMultipartUpload": 1, "UploadPart": 5, "CompleteMultipartUpload": 1}
    with counted(staging) as made, writer.reopen() as file:
        file.seek(len(data) - 100_000)
        assert file.read() == data[-100_000:]
    assert made == {}
    with counted(staging) as made, staging.open("large") as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == data
    assert made == {"GetObject": -(-len(data) // READ_AHEAD)}


def test_parts_are_as_large_and_as_many_as_promised() -> None:
    assert (PART_BYTES, PARTS_AT_ONCE) == (50 * 2**20, 10)


def test_looking_for_what_is_new_costs_one_request_however_much_is_old(staging: S3Staging) -> None:
    for number in range(30):
        staging.put(f"receipts/{number:03d}-a.json", b"{}")
    with counted(staging) as made:
        assert [item.key for item in staging.list("receipts", after="receipts/028")] == [
            "receipts/028-a.json",
            "receipts/029-a.json",
        ]
    assert made == {"ListObjectsV2": 1}


# --- Checksums -----------------------------------------------------------------


def test_the_server_checks_what_it_gets(
    fresh_bucket: S3Server, staging: S3Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checksum that does not fit, as if a bit had flipped on the way: nothing becomes visible."""
    monkeypatch.setattr(s3_upload, "_crc", lambda _: "AAAAAA==")
    with pytest.raises(StagingError, match="BadDigest"), staging.create("k") as writer:
        writer.file.write(content(PART + 1))
    monkeypatch.setattr(s3_upload.Upload, "_sha256", "A" * 43 + "=")
    with pytest.raises(StagingError, match="BadDigest"):
        staging.put("k", b"one")
    assert fresh_bucket.keys() == []
    assert list(staging.unfinished()) == []


def test_a_server_that_confirms_no_checksum_is_asked_for_the_object_itself(staging: S3Staging) -> None:
    """What was kept in memory is trusted only together with the server's word."""
    events = staging.place.client().meta.events

    def forget(parsed: dict[str, object], **_: object) -> None:
        for name in ("ChecksumSHA256", "ChecksumCRC32"):
            parsed.pop(name, None)

    events.register("after-call.s3", forget)
    try:
        with staging.create("k") as writer:
            writer.file.write(b"as it was written")
        staging.place.client().put_object(Bucket=staging.place.bucket, Key="incremental/k", Body=b"as it is")
        with writer.reopen() as file:
            assert file.read() == b"as it is"
    finally:
        events.unregister("after-call.s3", forget)


def test_an_object_that_changes_while_it_is_read_is_not_mixed_up(staging: S3Staging) -> None:
    with staging.create("k") as writer:
        writer.file.write(content(2 * READ_AHEAD))
    with staging.open("k") as file:
        staging.put("k", b"other")
        with pytest.raises(StagingError, match="replaced while it was read"):
            file.read(10)


# --- Memory --------------------------------------------------------------------


@pytest.mark.parametrize("writers", [1, 2], ids=["one writer", "two, as in a task that reads ahead"])
def test_memory_is_bounded_by_the_parts_on_their_way(
    fresh_bucket: S3Server, toxiproxy: Toxiproxy, writers: int
) -> None:
    """A server slower than who writes: 100 MB pass, and at most the promised parts are held."""
    with toxiproxy.before(fresh_bucket.port) as proxied:
        staging = staging_in(fresh_bucket.behind(proxied.port))
        staging.put("warm", b"")
        piece = content(2**20)
        tracemalloc.start()
        try:
            with proxied.toxic("bandwidth", "upstream", rate=4_000), ExitStack() as opened:
                large = [opened.enter_context(staging.create(f"large-{n}")) for n in range(writers)]
                for number in range(100):
                    large[number % writers].file.write(piece)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    bound = (PARTS_AT_ONCE + writers) * PART
    assert 0.8 * bound < peak < 1.2 * bound
    assert sum(writer.result.bytes for writer in large) == 100 * 2**20


# --- Lost answers --------------------------------------------------------------


@pytest.fixture
def proxied(fresh_bucket: S3Server, toxiproxy: Toxiproxy) -> Iterator[Proxied]:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        yield proxied


def _everything(staging: S3Staging) -> list[object]:
    """Every kind of request that staging makes; returns what was seen."""
    large = content(PART + READ_AHEAD)
    with staging.create("a/large") as writer:
        writer.file.write(large)
    staging.put("a/small", b"small")
    staging.put("a/gone", b"gone")
    with pytest.raises(ZeroDivisionError), staging.create("a/abandoned") as abandoned:  # noqa: PT012
        abandoned.file.write(content(PART + 1))
        raise ZeroDivisionError
    staging.delete(["a/gone"])
    with staging.open("a/large") as file:
        read = file.read()
    return [
        read == large,
        writer.result.bytes,
        writer.result.checksum,
        staging.get("a/small"),
        [found.bytes if (found := staging.stat(key)) else None for key in ("a/small", "a/gone")],
        [(item.key, item.bytes) for item in staging.list()],
        list(staging.unfinished()),
    ]


def test_whichever_answer_is_lost_nothing_is_lost_doubled_or_half_there(
    fresh_bucket: S3Server, proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        s3_upload, "_ROOM", threading.BoundedSemaphore(1)
    )  # so that a loss hits the request it is meant for
    staging = staging_in(fresh_bucket.behind(proxied.port))
    client = staging.place.client()
    with watching(client) as requests:
        expected = _everything(staging)
    kinds = Counter(_kind(sent) for sent in requests.sent)
    assert set(kinds) == {
        "POST uploads",
        "PUT part",
        "POST complete",
        "DELETE upload",
        "PUT object",
        "POST delete",
        "GET object",
        "HEAD object",
        "GET listing",
        "GET uploads",
    }
    lost = Counter[str]()
    for number, sent in enumerate(requests.sent, 1):
        staging.delete([item.key for item in staging.list()])
        # Some answers say all with their first line, so that is cut too, where no `100 Continue` comes first.
        after = ENOUGH_TO_LOSE if sent.startswith("P") else 10
        with losing_answer(proxied, client, number, after=after) as losing:
            found = _everything(staging)
        [broken] = losing.broken
        assert len(losing.sent) > len(requests.sent), broken
        assert found == expected, broken
        lost[_kind(broken)] += 1
    assert lost == kinds
    assert fresh_bucket.keys() == ["incremental/a/large", "incremental/a/small"]


def _kind(sent: str) -> str:
    method, _, url = sent.partition(" ")
    query = url.partition("?")[2]
    if "uploadId=" in query:
        return {"PUT": "PUT part", "POST": "POST complete", "DELETE": "DELETE upload"}[method]
    if "delete" in query:
        return "POST delete"
    if "uploads" in query:
        return f"{method} uploads"
    return f"{method} listing" if "list-type" in query else f"{method} object"


def test_a_body_that_breaks_off_is_asked_for_again(fresh_bucket: S3Server, proxied: Proxied) -> None:
    data = content(300_000)
    staging = staging_in(fresh_bucket.behind(proxied.port))
    staging.put("k", data)
    for read in (staging.get, lambda key: staging.open(key).read()):
        with losing_answer(proxied, staging.place.client(), 1, after=100_000) as requests:
            assert read("k") == data
        assert len(requests.sent) == 2


def test_a_server_that_never_answers_leaves_the_outcome_open(
    fresh_bucket: S3Server, proxied: Proxied
) -> None:
    staging = staging_in(fresh_bucket.behind(proxied.port))
    staging.put("warm", b"")
    with proxied.losing_answers():
        with pytest.raises(OutcomeUnknown) as unknown:
            staging.put("k", b"whole")
        for ask in (staging.get, staging.stat, staging.open, lambda key: list(staging.list(key))):
            with pytest.raises(ConnectError) as raised:
                ask("warm")
            assert raised.value.where
            assert raised.value.hint
    assert unknown.value.transient
    assert staging_in(fresh_bucket).get("k") == b"whole"  # an orphan without a receipt: whole all the same


def test_a_beginning_whose_answers_were_all_lost_leaves_no_upload(
    fresh_bucket: S3Server, proxied: Proxied
) -> None:
    """The first answer is lost, the client asks again: the upload of the first is found and aborted."""
    staging = staging_in(fresh_bucket.behind(proxied.port))
    with losing_answer(proxied, staging.place.client(), 1) as requests, staging.create("k") as writer:
        writer.file.write(content(PART + 1))
    assert list(map(_kind, requests.broken)) == ["POST uploads"]
    assert list(staging.unfinished()) == []
    assert staging.get("k") == content(PART + 1)


# --- Rights --------------------------------------------------------------------


def test_what_may_not_be_deleted_is_named_and_the_rest_is_gone(
    fresh_bucket: S3Server, staging: S3Staging
) -> None:
    user = servers.s3_user(fresh_bucket)
    mine = f"arn:aws:s3:::{fresh_bucket.bucket}"
    who = {"Effect": "Allow", "Principal": user.access_key_id}
    statements = [
        who | {"Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{mine}/*"},
        who | {"Action": "s3:ListBucket", "Resource": mine},
        who | {"Action": "s3:DeleteObject", "Resource": f"{mine}/incremental/free/*"},
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    fresh_bucket.client().put_bucket_policy(Bucket=fresh_bucket.bucket, Policy=policy)
    limited = staging_in(user)
    for key in ("free/1", "kept/1", "kept/2"):
        limited.put(key, b"")
    with pytest.raises(StagingError, match="2 of 3 objects could not be deleted: AccessDenied") as raised:
        limited.delete(["free/1", "kept/1", "kept/2"])
    assert raised.value.where == f"s3://{fresh_bucket.bucket}/incremental/kept/1"
    assert "s3:DeleteObject" in str(raised.value.hint)
    assert [item.key for item in staging.list()] == ["kept/1", "kept/2"]


def test_the_rights_that_the_guide_names_are_enough(fresh_bucket: S3Server) -> None:
    [wanted] = blocks("docs/how-to/stage-on-s3.md", "json")
    user = servers.s3_user(fresh_bucket)
    policy = json.loads(wanted.replace("acme-data", fresh_bucket.bucket))
    for statement in policy["Statement"]:
        statement["Principal"] = user.access_key_id
    fresh_bucket.client().put_bucket_policy(Bucket=fresh_bucket.bucket, Policy=json.dumps(policy))
    assert _everything(staging_in(user)) == _everything(staging_in(fresh_bucket))


def test_a_bucket_that_is_not_there_is_said_to_be(fresh_bucket: S3Server) -> None:
    staging = staging_in(replace(fresh_bucket, bucket="t-nowhere"))
    with pytest.raises(LoginRefused, match="no bucket"):
        staging.put("k", b"")
