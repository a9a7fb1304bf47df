"""Large files and many of them pass through a bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.archive.conftest import Site
from tidegate.archive import index, listing, packing
from tidegate.archive.contract import Share
from tidegate.archive.cycle import Cycle
from tidegate.archive.extracting import content_of
from tidegate.archive.library import Unwatched, open_tools
from tidegate.archive.verifying import verify

TWO_GIB = (2 << 30) + 1
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Ended:
    code: int
    peak: int
    """The most memory that the process had at once, in bytes."""


def _cycle(site: Site, *, scale: int = 1) -> Ended:
    """A cycle in a process of its own, so that its memory is its own; with limits that much smaller."""
    child = os.fork()
    if child == 0:
        try:
            listing.RUN_ROWS //= scale
            listing.GROUP_ROWS = max(64, listing.GROUP_ROWS // scale)
            listing.MOST_RUNS = max(4, listing.MOST_RUNS // scale)
            packing.MOST_ENTRIES //= 2 * scale
            index.GROUP_ROWS = max(64, index.GROUP_ROWS // scale)
            with open_tools(site.config, command="a child") as tools:
                Cycle(tools, Unwatched(), Share()).run()
        except BaseException:  # noqa: BLE001 - a child that forked must not go on as its parent
            os._exit(1)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024)


def test_a_file_of_two_gibibytes(site: Site) -> None:
    """It has holes, so that it takes no room; what is read and packed is all of it."""
    path = site.folder / "large"
    with path.open("wb") as file:
        file.truncate(TWO_GIB)
        for place in (0, 1 << 30, TWO_GIB - 1):
            file.seek(place)
            file.write(b"x")
    site.server.execute("INSERT INTO files VALUES ('large', '2024-11-20', %s)", [str(path)])
    before = _idle()

    ended = _cycle(site)

    assert ended.code == 0
    assert ended.peak - before < 200 * MEBIBYTE
    size, marked = 0, []
    for piece in content_of(site.place, "large"):
        if b"x" in piece:
            marked.append(size + piece.index(b"x"))
        size += len(piece)
    assert (size, marked) == (TWO_GIB, [0, 1 << 30, TWO_GIB - 1])


def _idle() -> int:
    """What a child has of its parent, before it does anything."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.wait4(child, 0)[2].ru_maxrss * 1024


def _listed(site: Site, rows: int) -> None:
    """So many rows, of which a hundred each name the same small file."""
    folder = site.folder / "files"
    for number in range(100):
        (folder / str(number)).write_bytes(b"tide" * number)
    site.server.execute(
        "INSERT INTO files (uid, created_at, file_location) SELECT 'file-' || n, "
        "'2024-11-20'::timestamptz + n * interval '1 second', %s || n %% 100 "
        "FROM generate_series(1, %s) AS n",
        [f"{folder}/", rows],
    )


def test_memory_does_not_grow_with_the_window(site: Site, tmp_path: Path) -> None:
    sizes = (2_000, 20_000)
    peaks = []
    for rows in sizes:
        site.server.execute("TRUNCATE files")
        site.server.execute("DROP TABLE IF EXISTS des_archive_config")
        _listed(site, rows)
        site.configure(
            database={"page_size": 500},
            packer={"output_dir": str(tmp_path / str(rows)), "n_bits": 0, "max_shard_size": 10**9},
        )
        ended = _cycle(site, scale=1_000)
        assert ended.code == 0
        peaks.append(ended.peak)
        assert sum(verdict.shard.entries for verdict in verify(site.place)) == rows
    # A list of 18,000 more rows would take some 15 MB, and their shards' index as much again.
    assert peaks[1] - peaks[0] < 8 * MEBIBYTE
