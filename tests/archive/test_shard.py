from __future__ import annotations

import hashlib
import io
import random
import subprocess
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.shards import MOMENT, Memory, checksum_of, origin, shard
from tidegate.archive.layout import (
    Codec,
    Member,
    directory_record,
    end_records,
    local_header,
    read_header,
)
from tidegate.archive.naming import INDEX_MEMBER, file_name, fingerprint, member_name
from tidegate.archive.shard import Shard
from tidegate.archive.writing import Packed, ShardWriter
from tidegate.core.errors import DamagedShard

NOISE = random.Random(5)
FILES = {
    "plain": b"tide gate " * 40,
    "empty": b"",
    "noise": NOISE.randbytes(300),
    "a/../b": b"a path for a name",
    "zażółć\n": b"more than ASCII " * 9,
    "a": b"compressed " * 30,
    "a.zst": NOISE.randbytes(64),
    "_index.parquet": b"not the index",
    "long" * 500: b"a long name",
}


def _file(found: Shard, uid: str) -> bytes:
    member = found.find(uid)
    assert member is not None
    return b"".join(found.content(member))


def test_every_file_comes_back_as_it_was() -> None:
    found = Shard(shard(FILES, streamed=["plain", "noise"]))
    assert {uid: _file(found, uid) for uid in FILES} == FILES
    assert found.find("nowhere") is None


def test_the_index_names_every_file_with_where_it_came_from() -> None:
    rows = {row["uid"]: row for row in Shard(shard(FILES)).index().to_pylist()}
    assert rows.keys() == FILES.keys()
    for uid, content in FILES.items():
        assert rows[uid]["sha256"] == hashlib.sha256(content).digest()
        assert rows[uid]["size"] == len(content)
        assert rows[uid]["location"] == origin(uid).location
        assert rows[uid]["created_at"] == MOMENT


def test_the_same_files_make_the_same_bytes() -> None:
    assert shard(FILES).data == shard(dict(reversed(FILES.items()))).data


def test_a_cold_read_of_one_file_takes_two_ranges() -> None:
    files = {f"file {n}": NOISE.randbytes(2_000) for n in range(2_000)}
    whole = shard(files)
    for uid in ("file 0", "file 777", "file 1999"):
        whole.reads.clear()
        assert _file(Shard(whole), uid) == files[uid]
        assert len(whole.reads) == 2
        assert max(whole.reads) < 1 << 20


def test_a_file_larger_than_a_block_has_one_of_its_own() -> None:
    files = {"large": NOISE.randbytes(800_000), **{f"{n}": b"x" * 50 for n in range(50)}}
    whole = shard(files, streamed=["large"])
    guide = Shard(whole).guide
    assert any(fence.fingerprint == fingerprint("large") for fence in guide.fences)
    assert _file(Shard(whole), "large") == files["large"]
    assert Shard(whole).verify() == checksum_of(whole.data)


def test_verifying_reads_every_byte_and_returns_the_checksum() -> None:
    whole = shard(FILES, streamed=["plain", "noise"])
    assert Shard(whole).verify() == checksum_of(whole.data)


def test_a_bit_flipped_anywhere_is_found() -> None:
    whole = shard({uid: FILES[uid] for uid in ("plain", "noise", "a", "empty")}, streamed=["noise"])
    for place in range(whole.size):
        with pytest.raises(DamagedShard):
            Shard(whole.flipped(place, place % 8)).verify()


def test_a_bit_flipped_in_a_file_its_header_or_the_tail_is_found_when_it_is_extracted() -> None:
    whole = shard({"only": NOISE.randbytes(100) + b"tide " * 60})

    def extract(source: Memory) -> bytes:
        found = Shard(source)
        found.check_tail()
        return _file(found, "only")

    for place in range(whole.size):
        with pytest.raises((DamagedShard, AssertionError)):  # a flipped name is a file that is not there
            extract(whole.flipped(place, place % 8))


@pytest.mark.parametrize("missing", [1, 30, 400, 2_000])
def test_a_shard_that_was_cut_off_is_damaged(missing: int) -> None:
    whole = shard(FILES)
    with pytest.raises(DamagedShard):
        Shard(Memory(whole.data[:-missing])).verify()


def test_a_stream_that_breaks_off_leaves_no_trace() -> None:
    def broken() -> object:
        yield b"half of it"
        raise OSError("gone")

    file = io.BytesIO()
    writer = ShardWriter(file, max_bytes=1 << 30, level=3)
    ordered = sorted(("first", "second", "third"), key=fingerprint)
    writer.add(origin(ordered[0]), Packed.of(b"one", 3))
    with pytest.raises(OSError, match="gone"):
        writer.add_stream(origin(ordered[1]), broken())  # type: ignore[arg-type]
    writer.add(origin(ordered[2]), Packed.of(b"three", 3))
    writer.finish()
    found = Shard(Memory(file.getvalue()))
    found.verify()
    assert found.find(ordered[1]) is None
    assert _file(found, ordered[2]) == b"three"


@settings(max_examples=40)
@given(
    st.dictionaries(st.text(max_size=30), st.binary(max_size=400), max_size=12),
    st.integers(min_value=0, max_value=3),
)
def test_any_files_under_any_names_make_the_round_trip(files: dict[str, bytes], streams: int) -> None:
    names = {uid.encode("utf-8", "replace").decode(): content for uid, content in files.items()}
    whole = shard(names, streamed=list(names)[:streams])
    found = Shard(whole)
    assert found.verify() == checksum_of(whole.data)
    assert {uid: _file(found, uid) for uid in names} == names


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), unique=True, max_size=20))
def test_names_of_files_differ_and_stay_in_their_folder(uids: list[str]) -> None:
    names = [file_name(uid) for uid in uids]
    members = [member_name(uid, compressed=flag) for uid in uids for flag in (False, True)]
    assert len(set(names)) == len(uids)
    assert len({*members, INDEX_MEMBER}) == len(members) + 1
    for name in names:
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) <= 200


# --- Without Tidegate ---------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "shard.zip"
    path.write_bytes(shard(FILES, streamed=["plain"]).data)
    return path


def test_unzip_and_zstd_read_a_shard(on_disk: Path) -> None:
    subprocess.run(["unzip", "-tqq", on_disk], check=True)
    listed = subprocess.run(["unzip", "-Z1", on_disk], check=True, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == len(FILES) + 1
    stored = subprocess.run(["unzip", "-p", on_disk, "plain.zst"], check=True, capture_output=True).stdout
    plain = subprocess.run(["zstd", "-dc"], input=stored, check=True, capture_output=True).stdout
    assert plain == FILES["plain"]
    noise = subprocess.run(["unzip", "-p", on_disk, "noise"], check=True, capture_output=True).stdout
    assert noise == FILES["noise"]


def test_any_reader_of_zip_and_parquet_reads_a_shard(on_disk: Path) -> None:
    with zipfile.ZipFile(on_disk) as archive:
        assert archive.testzip() is None
        index = pq.read_table(pa.BufferReader(archive.read(INDEX_MEMBER))).to_pylist()
        for row in index:
            stored = archive.read(row["member"])
            stream = pa.BufferReader(stored)
            content = pa.CompressedInputStream(stream, "zstd") if row["codec"] == "zstd" else stream
            assert content.read() == FILES[row["uid"]]


def test_more_members_than_sixteen_bits_count() -> None:
    whole = shard({f"{n}": b"" for n in range(70_000)})
    with zipfile.ZipFile(io.BytesIO(whole.data)) as archive:
        assert len(archive.namelist()) == 70_001
    found = Shard(whole)
    assert found.find("69999") is not None
    assert found.verify() == checksum_of(whole.data)


def test_numbers_beyond_thirty_two_bits(tmp_path: Path) -> None:
    """A directory as of a shard with a file of five gibibytes, behind which lies another."""
    large, path = 5 << 30, tmp_path / "sparse.zip"
    first = Member("first", Codec.STORED, large, large, 1, bytes(32), wide=True)
    header = read_header(local_header(first), "memory")
    assert (header.size, header.stored) == (large, large)
    offset = header.length + large
    records = directory_record("first", large, 1, 0) + directory_record("second", 7, 2, offset)
    with path.open("wb") as file:
        file.truncate(offset + 60)
        file.seek(offset + 60)
        file.write(records + end_records(2, len(records), offset + 60, 0))
    with zipfile.ZipFile(path) as archive:
        found = [(entry.filename, entry.file_size, entry.header_offset) for entry in archive.infolist()]
    assert found == [("first", large, 0), ("second", 7, offset)]
    listed = subprocess.run(["unzip", "-Zl", path], check=True, capture_output=True, text=True).stdout
    assert f"{large}" in listed
