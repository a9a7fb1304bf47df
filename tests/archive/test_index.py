"""The index follows from the shards: where it is lost, no file is lost or packed twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.archive.conftest import LONG_AGO, START, Kill, Site
from tidegate.archive.extracting import content_of, extract, extract_all
from tidegate.archive.index import Index, index_files, merge_if_many
from tidegate.archive.naming import fingerprint
from tidegate.archive.records import manifests
from tidegate.archive.shard import Bytes
from tidegate.archive.verifying import verify
from tidegate.core.errors import DamagedRecord, DamagedShard, UsageError


@pytest.fixture
def packed(site: Site) -> Site:
    site.add(30)
    site.cycle()
    return site


def _index(site: Site) -> Path:
    [file] = index_files(site.place)
    return site.folder / "shards" / file.key


def _problems(site: Site) -> list[str]:
    return [verdict.problem for verdict in verify(site.place) if verdict.problem]


def test_an_index_that_is_gone_is_written_anew(packed: Site) -> None:
    whole = _index(packed).read_bytes()
    _index(packed).unlink()
    packed.move_mark(START)
    assert packed.cycle().already == 30
    assert _index(packed).read_bytes() == whole
    packed.demand_complete()


def test_an_index_that_was_only_begun_anew_does_not_pass_for_a_whole_one(packed: Site, kill: Kill) -> None:
    """Or else a replay would pack again what the rest of it would have named."""
    packed.add(5, at=LONG_AGO, prefix="more")
    packed.cycle(late=True)
    for file in index_files(packed.place):
        packed.place.delete([file.key])
    packed.move_mark(START)
    assert kill(packed, {"tool": "place", "method": "publish", "moment": "after"}) == -signal.SIGKILL
    assert len(index_files(packed.place)) == 1
    assert packed.cycle().already == 35
    packed.demand_complete()


def test_an_index_is_written_anew_without_shards_that_are_damaged_or_gone(packed: Site) -> None:
    """Or else nothing could be archived any more until somebody had a copy of them."""
    [manifest] = manifests(packed.place)
    gone, damaged = (packed.folder / "shards" / shard.key for shard in manifest.shards[:2])
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-40])
    _index(packed).unlink()
    packed.add(30, at=LONG_AGO, prefix="more")
    packed.move_mark(START)
    assert packed.cycle().files == 30 + sum(shard.entries for shard in manifest.shards[:2])
    for uid, content in packed.files.items():
        assert b"".join(content_of(packed.place, uid)) == content


def test_files_are_found_without_it(packed: Site) -> None:
    _index(packed).unlink()
    for uid in ("file-0", "file-17"):
        assert b"".join(content_of(packed.place, uid)) == packed.files[uid]
    with pytest.raises(UsageError, match="no file"):
        content_of(packed.place, "nowhere")


def test_a_file_comes_back_though_the_first_shard_that_held_it_is_damaged(site: Site, tmp_path: Path) -> None:
    """What a shard no longer holds is packed again by a replay: whoever asks gets that copy."""
    site.configure(packer={"n_bits": 3})
    site.add(30)
    site.cycle()
    [manifest] = manifests(site.place)
    gone, damaged = (site.folder / "shards" / shard.key for shard in manifest.shards[:2])
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(DamagedShard, match="everything else was written"):
        list(extract_all(site.place, tmp_path / "before"))
    assert len(list((tmp_path / "before").iterdir())) == sum(s.entries for s in manifest.shards[2:])

    site.move_mark(START)
    site.move_mark(START)
    site.add(30, prefix="more")  # on the same day the same files would make shards of the same names
    site.cycle()

    assert sum(1 for _ in extract(site.place, site.files, tmp_path / "after")) == 60
    assert {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()} == site.files
    with pytest.raises(DamagedShard, match="and 1 more shards"):
        list(extract_all(site.place, tmp_path / "after"))


def test_a_damaged_shard_under_the_name_of_one_to_write_says_what_to_do(packed: Site) -> None:
    [manifest] = manifests(packed.place)
    path = packed.folder / "shards" / manifest.shards[0].key
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    packed.move_mark(START)
    with pytest.raises(DamagedShard, match="the shard that lies here") as caught:
        packed.cycle()
    assert "move it away" in str(caught.value.hint)
    path.unlink()
    packed.cycle()
    assert path.read_bytes() == whole


def test_verifying_finds_files_that_it_does_not_know(packed: Site) -> None:
    first = _index(packed)
    packed.add(5, at=LONG_AGO, prefix="more")
    packed.cycle(late=True)
    assert _problems(packed) == []
    first.unlink()
    assert all("not in the index" in problem for problem in _problems(packed))
    assert _problems(packed)


def test_files_that_are_merged_while_they_are_looked_for_are_not_missed(
    packed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late window merges when it is closed; a run that began behind it may be reading."""
    packed.add(5, at=LONG_AGO, prefix="more")
    packed.cycle(late=True)
    monkeypatch.setattr("tidegate.archive.index._MOST_FILES", 1)
    place, opening, merged = packed.place, packed.place.open, list[bool]()

    def merging(key: str) -> Bytes | None:
        if not merged:
            merged.append(merge_if_many(packed.place, "merged"))
        return opening(key)

    object.__setattr__(place, "open", merging)
    marks = [fingerprint(uid) for uid in packed.files]
    assert len(Index(place).shards(marks, (0, 2**64 - 1))) == 35
    assert merged == [True]


def test_a_bit_flipped_in_its_pages_is_said_and_never_believed(packed: Site) -> None:
    path = _index(packed)
    whole = path.read_bytes()
    packed.move_mark(START)
    group = pq.read_metadata(path).row_group(0)
    for column in map(group.column, range(group.num_columns)):
        begin = column.dictionary_page_offset or column.data_page_offset
        place = begin + column.total_compressed_size - 5
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert _problems(packed), column.path_in_schema
    with pytest.raises(DamagedRecord, match="index of the archive is damaged") as caught:
        packed.cycle()
    assert "writes it anew" in str(caught.value.hint)
    path.unlink()
    assert packed.cycle().already == 30
    packed.demand_complete()
