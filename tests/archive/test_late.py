"""Windows of late files beside windows of the mark: whichever comes when, no file is packed twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.archive.conftest import LONG_AGO, START, Kill, Site
from tidegate.archive.adjusting import adjust
from tidegate.archive.contract import Share, Tools
from tidegate.archive.library import open_tools
from tidegate.archive.mark import Mark
from tidegate.archive.opening import close_off
from tidegate.archive.place import LocalPlace
from tidegate.archive.statistics import late_files, left_out
from tidegate.archive.streams import archive_stream, late_stream
from tidegate.core.errors import ArchiveError, Conflict, LeaseHeld

PACKED = {"tool": "place", "method": "jot", "nth": 2, "moment": "after"}
"""After the receipt of the second and last part."""
COUNTS = {"tool": "store", "method": "write", "event": "extracted"}
"""After the manifest, and before anybody has written down that it is there."""


@pytest.fixture
def behind(site: Site) -> Site:
    """Late files behind the mark: once it is moved back before them, two kinds of run may pack them."""
    site.add(20)
    site.cycle()
    site.add(9, at=LONG_AGO + timedelta(days=1), prefix="late")
    return site


@contextmanager
def _packing(site: Site, *, late: bool, share: Share | None = None) -> Iterator[None]:
    """Somebody is in the middle of a window."""
    inside, go_on = threading.Event(), threading.Event()

    def slowly(tools: Tools) -> None:
        packer = tools.packer

        class Slow:
            def pack(self, work: Any, parts: Any) -> Any:
                inside.set()
                go_on.wait(60)
                return packer.pack(work, parts)

        tools.packer = Slow()

    worker = threading.Thread(target=lambda: site.cycle(share, late=late, change=slowly))
    worker.start()
    try:
        assert inside.wait(60)
        yield
    finally:
        go_on.set()
        worker.join()


@pytest.mark.parametrize("late", [False, True], ids=["the mark's window", "a late one"])
def test_while_one_kind_of_window_is_packed_the_other_has_to_wait(behind: Site, *, late: bool) -> None:
    behind.move_mark(LONG_AGO)
    with _packing(behind, late=late), pytest.raises(LeaseHeld):
        behind.cycle(Share(1, 2), late=not late)  # under whatever share
    behind.cycle(late=not late)
    behind.demand_complete()


def test_a_late_window_that_died_is_given_up_and_never_counts(behind: Site, kill: Kill) -> None:
    assert kill(behind, {**PACKED, "late": True}) == -signal.SIGKILL
    behind.move_mark(LONG_AGO)
    assert behind.cycle().files == 9
    assert any("given up" in note for note in behind.watching.notes)
    assert behind.cycle(late=True).files == 0
    behind.demand_archived()


def test_a_late_window_that_died_behind_its_manifest_counts(behind: Site, kill: Kill) -> None:
    assert kill(behind, {**COUNTS, "late": True}) == -signal.SIGKILL
    behind.move_mark(LONG_AGO)
    assert behind.cycle().already == 28
    behind.demand_complete()
    assert behind.cycle(late=True).files == 0


def test_a_late_window_is_over_with_its_manifest(behind: Site, kill: Kill) -> None:
    step = {"tool": "store", "method": "write", "event": "extracted", "moment": "after", "late": True}
    assert kill(behind, step) == -signal.SIGKILL
    assert behind.cycle(late=True).files == 0
    mark = behind.place.store().read(late_stream(behind.config)).watermark
    assert mark is not None
    assert not mark.pending
    behind.demand_complete()


def test_a_window_that_was_left_open_is_finished_before_late_files_are_looked_for(
    behind: Site, kill: Kill
) -> None:
    behind.move_mark(LONG_AGO)
    assert kill(behind, PACKED) == -signal.SIGKILL
    behind.cycle(late=True)
    behind.demand_complete()
    mark = behind.place.store().read(archive_stream(behind.config)).watermark
    assert mark is not None
    assert mark.open_run is None


def test_a_late_row_that_repeats_a_uid_does_not_hide_another_file(site: Site) -> None:
    site.server.execute("ALTER TABLE files DROP CONSTRAINT files_pkey")
    [uid, *_] = site.add(3)
    site.cycle()
    other = site.folder / "other"
    other.write_bytes(b"another content")
    site.insert([(uid, LONG_AGO, str(other))])
    with open_tools(site.config, command="a test") as tools:
        assert [row.location for row in late_files(tools)] == [os.fsencode(other)]
    with pytest.raises(ArchiveError, match="duplicate"):
        site.cycle(late=True)
    other.write_bytes(site.files[uid])
    assert site.cycle(late=True).files == 0
    site.demand_complete()


def test_a_row_that_names_another_file_by_now_is_late_and_one_that_was_moved_is_not(site: Site) -> None:
    """Its uid lies in a shard, and what it names does not; nobody would ever say that it is missing."""
    moved, replaced, _ = site.add(3)
    site.cycle()
    change = "UPDATE files SET file_location = '/nowhere', created_at = %s WHERE uid = %s"
    site.server.execute(change, [LONG_AGO, moved])
    site.server.execute(change, [LONG_AGO + timedelta(days=1), replaced])
    with open_tools(site.config, command="a test") as tools:
        assert [row.uid for row in late_files(tools)] == [replaced]
    with pytest.raises(ArchiveError, match=f"`{replaced}` cannot be archived: missing"):
        site.cycle(late=True)
    site.move_mark(START)
    with pytest.raises(ArchiveError, match=f"`{replaced}` cannot be archived: missing"):
        site.cycle()
    other = site.write("other", site.files[replaced])
    site.server.execute("UPDATE files SET file_location = %s WHERE uid = %s", [str(other), replaced])
    assert site.cycle().already == 3
    del site.files["other"]
    site.demand_archived()


def test_files_older_than_the_beginning_are_late_where_none_was_left_out(site: Site) -> None:
    site.configure(watermark={"default_archived_until": None})
    site.add(4)
    site.cycle()
    site.add(3, at=LONG_AGO - timedelta(days=900), prefix="older")
    site.server.execute("INSERT INTO files VALUES ('timeless', '-infinity', '/nowhere')")
    site.server.execute("INSERT INTO files VALUES ('roman', '0044-03-15 BC', '/nowhere')")
    site.cycle()
    assert any("2 rows without a date" in note for note in site.watching.notes)
    with open_tools(site.config, command="a test") as tools:
        assert sorted(row.uid for row in late_files(tools)) == ["older-0", "older-1", "older-2"]
    assert site.cycle(late=True).files == 3
    site.demand_complete()


def test_files_that_were_left_out_at_the_beginning_are_not_late(site: Site) -> None:
    site.insert([("left-out", START - timedelta(days=1), str(site.folder / "nowhere"))])
    site.add(4)
    with open_tools(site.config, command="a test") as tools:
        tools.mark.begin(Mark(START - timedelta(hours=1), 7))
    site.cycle()
    assert any("1 older files are left out" in note for note in site.watching.notes)
    assert site.cycle(late=True).files == 0
    with open_tools(site.config, command="a test") as tools:
        assert left_out(tools) == 1
    site.move_mark(START - timedelta(days=30))  # behind the beginning, where nothing was ever passed
    with open_tools(site.config, command="a test") as tools:
        assert list(late_files(tools)) == []
        assert left_out(tools) == 0
    assert site.cycle(late=True).files == 0
    site.demand_complete()


def test_whoever_puts_the_mark_forward_by_hand_is_told_what_it_passes_over(site: Site) -> None:
    site.add(1)
    site.cycle()
    with open_tools(site.config, command="a test") as tools:
        adjust(tools, START, reason="")
    site.add(5, at=LONG_AGO + timedelta(days=2), prefix="more")
    site.move_mark(LONG_AGO + timedelta(days=9))
    site.cycle()
    assert any("6 files are passed over" in note for note in site.watching.notes)
    assert site.cycle(late=True).files == 5
    site.demand_complete()


# --- Windows that are given up ------------------------------------------------------------------------


def _by_other_hands(site: Site) -> None:
    site.move_mark(LONG_AGO + timedelta(seconds=5))


def _by_adjust(site: Site) -> None:
    with open_tools(site.config, command="a test") as tools:
        adjust(tools, LONG_AGO + timedelta(seconds=5), reason="")


@pytest.mark.parametrize("move", [_by_other_hands, _by_adjust])
def test_a_window_given_up_behind_its_manifest_is_not_packed_again(
    site: Site, kill: Kill, move: Callable[[Site], None]
) -> None:
    site.add(20)
    assert kill(site, COUNTS) == -signal.SIGKILL
    move(site)
    assert site.cycle().already == 14
    site.demand_complete()


def test_an_adjustment_killed_while_it_clears_the_window_leaves_nothing_stuck(site: Site, kill: Kill) -> None:
    """The listing must be gone before the files that it names."""
    site.add(20)
    assert kill(site, COUNTS) == -signal.SIGKILL
    child = os.fork()
    if child == 0:

        def deadly(place: LocalPlace, keys: Iterable[str]) -> None:
            for key in list(keys)[:2]:
                place._path(key).unlink()  # noqa: SLF001 - in the middle of it
            os.kill(os.getpid(), signal.SIGKILL)

        LocalPlace.delete = deadly  # type: ignore[method-assign,assignment]
        _by_adjust(site)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert site.cycle().files == 20
    site.demand_complete()


def test_a_sleeper_whose_window_was_given_up_makes_nothing_count(site: Site) -> None:
    """It slept between its last look and its manifest."""
    site.add(20)

    def asleep(tools: Tools) -> None:
        place = tools.place
        put_new = place.put_new

        def slow(key: str, data: bytes) -> bool:
            if key.endswith("manifest.json"):
                mark = tools.store.read(archive_stream(tools.config)).watermark
                assert mark is not None
                with open_tools(site.config, command="another") as others:
                    close_off(others, mark)
            return put_new(key, data)

        object.__setattr__(place, "put_new", slow)

    with pytest.raises(Conflict, match="given up"):
        site.cycle(change=asleep)
    assert site.mark == START
    assert site.archived() == {}
    assert site.cycle().files == 20
    site.demand_archived()


BETWEEN = {"tool": "mark", "method": "move", "moment": "after"}
"""The mark has moved, and nobody has written down that it did."""


@pytest.mark.parametrize("step", [PACKED, COUNTS, BETWEEN], ids=["packed", "counts", "moved"])
@pytest.mark.parametrize("days", [-3, 0, 30], ids=["back", "into the window", "past its files"])
def test_wherever_the_mark_is_put_while_a_window_is_open_no_file_is_lost(
    site: Site, kill: Kill, step: dict[str, Any], days: int
) -> None:
    site.add(20)
    assert kill(site, step) == -signal.SIGKILL
    there = LONG_AGO + timedelta(days=days, seconds=5)
    with open_tools(site.config, command="a test") as tools:
        adjust(tools, there, reason="")
    assert site.mark == there
    site.add(4, at=LONG_AGO + timedelta(seconds=1), prefix="meanwhile")

    site.cycle()
    site.cycle(late=True)

    site.demand_archived()
    assert site.cycle(late=True).files == 0
