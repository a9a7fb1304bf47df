"""The contract every staging area keeps, as tests. Whoever adds one runs them on it:

    class TestMyStaging(StagingContract):
        @pytest.fixture
        def staging(self):
            return MyStaging(...)

Where an object is written in parts, override `part` with their size, so that the suite meets every seam.
"""

# ruff: noqa: PLR2004 - expected values are plain numbers

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.core.errors import StagingError
from tidegate.staging.contract import Staging, Unfinished

ODD_KEYS = (
    "with space/a b.parquet",
    "year=2025/month=08/orders_batch_0001_r1_a1.parquet",
    "größe/注文/🛒.parquet",
    "percent%20/plus+/and&/hash#.json",
    "_receipts/shop/orders/r1/000000001-a1.json",
    "a'quote\".txt",
)


def content(size: int) -> bytes:
    """Bytes that are the same every time, and nowhere alike."""
    return random.Random(size).randbytes(size)


class Broken(Exception):
    """What a test raises inside a write."""


class StagingContract:
    @pytest.fixture
    def staging(self) -> Staging:
        raise NotImplementedError("override `staging`")

    @pytest.fixture
    def part(self) -> int:
        """How many bytes are written at once."""
        return 1 << 16

    # --- Whole or not at all ---------------------------------------------------

    def test_an_object_is_there_once_it_is_complete(self, staging: Staging) -> None:
        with staging.create("a/b.bin") as writer:
            writer.file.write(b"first ")
            assert staging.stat("a/b.bin") is None
            assert list(staging.list()) == []
            with pytest.raises(StagingError):
                _ = writer.result
            writer.file.write(b"second")
        found = staging.stat("a/b.bin")
        assert found is not None
        assert (found.key, found.bytes) == ("a/b.bin", 12)
        assert abs(found.modified - datetime.now(UTC)) < timedelta(minutes=5)
        assert staging.get("a/b.bin") == b"first second"
        assert list(staging.unfinished()) == []

    def test_objects_of_every_size_are_read_as_they_were_written(self, staging: Staging, part: int) -> None:
        for size in (0, 1, part - 1, part, part + 1, 2 * part + 17):
            data, key = content(size), f"sizes/{size}"
            with staging.create(key) as writer:
                for start in range(0, size, 1_000_003):
                    writer.file.write(data[start : start + 1_000_003])
            result = writer.result
            assert (result.key, result.bytes) == (key, size)
            assert result.checksum == hashlib.sha256(data).hexdigest()
            found = staging.stat(key)
            assert found is not None
            assert found.bytes == size
            with staging.open(key) as file:
                assert file.size() == size
                assert file.read() == data
            with writer.reopen() as file:
                assert file.read() == data
            assert staging.get(key) == data

    def test_one_large_write_is_as_good_as_many(self, staging: Staging, part: int) -> None:
        data = content(2 * part + 5)
        with staging.create("large") as writer:
            writer.file.write(memoryview(data))
        assert staging.get("large") == data

    def test_an_error_on_the_way_leaves_nothing(self, staging: Staging, part: int) -> None:
        for size in (10, 2 * part + 1):
            with pytest.raises(Broken):
                _fail_writing(staging, "failed", content(size))
        assert staging.stat("failed") is None
        assert list(staging.list()) == []
        assert list(staging.unfinished()) == []

    def test_a_write_that_fails_leaves_the_object_that_was_there(self, staging: Staging) -> None:
        staging.put("kept", b"old")
        with pytest.raises(Broken):
            _fail_writing(staging, "kept", b"new")
        assert staging.get("kept") == b"old"

    def test_what_a_killed_writer_leaves_is_no_object_and_can_be_discarded(
        self, staging: Staging, part: int
    ) -> None:
        staging.put("a/finished", b"x")
        dead = multiprocessing.get_context("spawn").Process(target=_die_writing, args=(staging, 2 * part))
        dead.start()
        dead.join()
        assert dead.exitcode == 9
        [left] = staging.unfinished()
        assert left.key == "a/killed_batch_0001_r1_a1.parquet"
        assert abs(left.began - datetime.now(UTC)) < timedelta(minutes=5)
        assert [item.key for item in staging.list()] == ["a/finished"]
        staging.discard(left)
        staging.discard(left)
        assert list(staging.unfinished()) == []
        assert staging.get("a/finished") == b"x"

    def test_a_writer_whose_write_was_discarded_fails_and_leaves_nothing(
        self, staging: Staging, part: int
    ) -> None:
        with pytest.raises(StagingError):
            _lose_while_writing(staging, "a/lost", content(2 * part))
        assert list(staging.list()) == []
        assert list(staging.unfinished()) == []

    def test_discarding_what_nobody_began_does_nothing(self, staging: Staging) -> None:
        staging.put("a", b"x")
        staging.discard(Unfinished("a", "00000000", datetime.now(UTC)))
        assert staging.get("a") == b"x"

    def test_writers_at_the_same_time_do_not_disturb_each_other(self, staging: Staging) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: staging.put(f"many/{n:02d}", content(n)), range(30)))
            list(pool.map(lambda n: staging.put("same", content(n)), range(30)))
        assert [staging.get(f"many/{n:02d}") for n in range(30)] == [content(n) for n in range(30)]
        assert staging.get("same") in [content(n) for n in range(30)]

    # --- Reading ---------------------------------------------------------------

    def test_any_part_of_an_object_can_be_read(self, staging: Staging, part: int) -> None:
        data = content(3 * part)
        with staging.create("parts") as writer:
            writer.file.write(data)
        chance = random.Random(7)
        with staging.open("parts") as file:
            for _ in range(30):
                start, length = chance.randrange(len(data)), chance.randrange(1, part)
                assert file.read_at(length, start) == data[start : start + length]
            file.seek(len(data) - 8)
            assert file.read() == data[-8:]

    def test_the_footer_of_a_parquet_file_is_read_from_the_finished_object(self, staging: Staging) -> None:
        table = pa.table({"n": list(range(1000))})
        with staging.create("numbers.parquet") as writer:
            pq.write_table(table, writer.file)
        with writer.reopen() as file:
            assert pq.read_metadata(file).num_rows == 1000
        with staging.open("numbers.parquet") as file:
            assert pq.read_table(file) == table

    def test_what_is_not_there_is_said_to_be_missing(self, staging: Staging) -> None:
        staging.put("there", b"12")
        assert staging.stat("missing") is None
        assert {key: found.bytes for key, found in staging.stat_all(["missing", "there"]).items()} == {
            "there": 2
        }
        for read in (staging.get, staging.open, lambda key: staging.get_all(["there", key])):
            with pytest.raises(StagingError, match="missing"):
                read("missing")

    def test_many_are_read_in_the_order_they_were_asked_for(self, staging: Staging) -> None:
        keys = [f"k{number}" for number in range(25)]
        for key in keys:
            staging.put(key, key.encode())
        assert staging.get_all(keys[::-1]) == [key.encode() for key in keys[::-1]]
        assert staging.get_all([]) == []
        assert set(staging.stat_all(keys)) == set(keys)

    # --- Listing and deleting --------------------------------------------------

    def test_a_listing_is_in_the_order_of_the_keys(self, staging: Staging) -> None:
        keys = ["a-b/x", "a/b", "a/c/d", "a.b", "ab/c", "b", "B"]
        for key in keys:
            staging.put(key, b"")
        assert [item.key for item in staging.list()] == sorted(keys)
        assert [item.key for item in staging.list(after="a/b")] == sorted(keys)[
            sorted(keys).index("a/b") + 1 :
        ]

    def test_a_prefix_is_a_folder(self, staging: Staging) -> None:
        for key in ("a/1", "a/2", "a/b/3", "ab/4", "c"):
            staging.put(key, b"")
        assert [item.key for item in staging.list("a")] == ["a/1", "a/2", "a/b/3"]
        assert [item.key for item in staging.list("a", after="a/1")] == ["a/2", "a/b/3"]
        assert [item.key for item in staging.list("a", after="a/")] == ["a/1", "a/2", "a/b/3"]
        assert list(staging.list("nowhere")) == []
        assert list(staging.list("c")) == []

    def test_odd_keys_come_back_as_they_were(self, staging: Staging) -> None:
        for key in ODD_KEYS:
            staging.put(key, key.encode())
        assert {item.key: item.bytes for item in staging.list()} == {k: len(k.encode()) for k in ODD_KEYS}
        assert staging.get_all(ODD_KEYS) == [key.encode() for key in ODD_KEYS]
        assert set(staging.stat_all(ODD_KEYS)) == set(ODD_KEYS)
        staging.delete(ODD_KEYS)
        assert list(staging.list()) == []

    def test_a_key_that_leads_elsewhere_is_refused(self, staging: Staging) -> None:
        for key in ("/a", "../a", "a/../../b", "a//b", "", "."):
            with pytest.raises(StagingError, match="relative"):
                staging.put(key, b"")

    def test_deleting_takes_what_is_there(self, staging: Staging) -> None:
        for key in ("a/1", "a/2", "b"):
            staging.put(key, b"")
        staging.delete(["a/1", "missing", "b"])
        staging.delete([])
        assert [item.key for item in staging.list()] == ["a/2"]

    # --- Travelling ------------------------------------------------------------

    def test_it_travels(self, staging: Staging) -> None:
        there = pickle.loads(pickle.dumps(staging))
        there.put("from/afar", b"x")
        assert staging.get("from/afar") == b"x"
        assert staging.url("from/afar").endswith("from/afar")
        assert staging.url("from/afar").startswith(staging.url())
        assert there.pace == staging.pace > 0


def _fail_writing(staging: Staging, key: str, data: bytes) -> None:
    with staging.create(key) as writer:
        writer.file.write(data)
        raise Broken


def _lose_while_writing(staging: Staging, key: str, data: bytes) -> None:
    with staging.create(key) as writer:
        writer.file.write(data)
        for item in staging.unfinished():
            staging.discard(item)


def _die_writing(staging: Staging, size: int) -> None:
    with staging.create("a/killed_batch_0001_r1_a1.parquet") as writer:
        writer.file.write(content(size))
        os._exit(9)
