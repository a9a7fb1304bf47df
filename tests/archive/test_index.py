"""The index follows from the shards: where it is lost, no file is lost or packed twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.archive.conftest import LONG_AGO, START, Site
from tidegate.archive.extracting import content_of
from tidegate.archive.index import index_files
from tidegate.archive.verifying import verify
from tidegate.core.errors import DamagedRecord, UsageError


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


def test_files_are_found_without_it(packed: Site) -> None:
    _index(packed).unlink()
    for uid in ("file-0", "file-17"):
        assert b"".join(content_of(packed.place, uid)) == packed.files[uid]
    with pytest.raises(UsageError, match="no file"):
        content_of(packed.place, "nowhere")


def test_verifying_finds_files_that_it_does_not_know(packed: Site) -> None:
    first = _index(packed)
    packed.add(5, at=LONG_AGO, prefix="more")
    packed.cycle(late=True)
    assert _problems(packed) == []
    first.unlink()
    assert all("not in the index" in problem for problem in _problems(packed))
    assert _problems(packed)


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
