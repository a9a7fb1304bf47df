from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tests.archive.conftest import LONG_AGO, START, Kill, Listening, Site
from tests.servers import Server
from tidegate.archive import files
from tidegate.archive.contract import Share, Tools
from tidegate.archive.index import index_files
from tidegate.archive.naming import fingerprint
from tidegate.archive.packing import Packing
from tidegate.archive.records import PartReceipt, Problem, ProblemKind, manifests
from tidegate.archive.shard import Shard
from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import ArchiveError, ConfigError, LeaseHeld, SourceError
from tidegate.core.positions import Position


def _names(site: Site) -> set[str]:
    return {listed.key for listed in site.place.list("v1")}


def test_a_window_costs_one_update_and_none_of_the_files_table(site: Site) -> None:
    site.add(80)

    result = site.cycle()

    assert (result.files, result.already, result.skipped) == (80, 0, 0)
    site.demand_complete()
    assert site.updates("des_archive_config", 1) == 1
    assert site.updates("files") == 0
    cut_off = datetime.now(UTC) - timedelta(days=7)
    assert timedelta(0) <= cut_off - site.mark < timedelta(minutes=1)


def test_a_window_without_files_moves_the_mark_as_well_and_leaves_nothing_behind(site: Site) -> None:
    site.add(5)
    site.cycle()
    before = site.mark
    result = site.cycle()
    assert (result.files, result.moved) == (0, True)
    assert site.mark > before
    assert len(list(manifests(site.place))) == 1


def test_only_what_is_old_enough_is_archived(site: Site) -> None:
    site.add(3)
    young = datetime.now(UTC) - timedelta(days=2)
    site.insert([("young", young, str(site.folder / "nowhere"))])
    site.cycle()
    site.demand_complete()


def test_the_two_hundred_files_that_another_archiver_loses(site: Site) -> None:
    site.configure(packer={"n_bits": 4, "max_shard_size": 1_000_000_000})
    site.add(200, size=4_000)
    assert site.cycle().files == 200
    site.demand_complete()


def test_a_replay_packs_nothing_twice_whatever_its_window(site: Site) -> None:
    site.add(30)
    site.add(30, at=LONG_AGO + timedelta(days=40), prefix="newer")
    site.cycle()
    before = _names(site)
    site.move_mark(LONG_AGO + timedelta(seconds=10))
    site.add(4, at=LONG_AGO + timedelta(days=1), prefix="in-between")

    result = site.cycle()

    assert (result.files, result.already) == (4, 49)
    assert before < _names(site)
    site.demand_complete()
    assert any("changed outside" in note for note in site.watching.notes)


def test_a_replay_from_nothing_writes_the_same_bytes_to_the_same_names(site: Site, tmp_path: Path) -> None:
    site.add(50)
    high = datetime(2024, 12, 2, tzinfo=UTC)

    def until(tools: Tools) -> None:
        tools.table.freeze = lambda _: Ceiling(Position.of(high))  # type: ignore[assignment,method-assign]

    site.cycle(change=until)
    first = {key: site.place.get(key) for key in _names(site)}
    site.server.execute("DROP TABLE des_archive_config")
    site.configure(packer={"output_dir": str(tmp_path / "again")})
    site.cycle(change=until)
    assert {key: site.place.get(key) for key in _names(site)} == first


def test_a_uid_with_another_content_is_never_silently_replaced(site: Site) -> None:
    [uid, *_] = site.add(3)
    site.cycle()
    site.path(uid).write_bytes(b"something else")
    site.move_mark(START)
    with pytest.raises(ArchiveError, match="another content"):
        site.cycle()
    site.demand_complete()


def test_a_shard_that_is_gone_holds_nothing_any_more(site: Site) -> None:
    site.configure(packer={"n_bits": 0, "max_shard_size": 10_000_000})
    site.add(6)
    site.cycle()
    site.place.delete(_names(site))
    site.move_mark(START)
    assert site.cycle().files == 6


def test_a_file_that_was_archived_and_then_removed_does_not_stop_a_replay(site: Site) -> None:
    uids = site.add(20)
    site.cycle()
    for uid in uids[::3]:
        site.path(uid).unlink()
    site.insert([("never-archived", LONG_AGO, str(site.folder / "nowhere"))])
    site.move_mark(START)
    with pytest.raises(ArchiveError, match="`never-archived` cannot be archived: missing"):
        site.cycle()
    site.server.execute("DELETE FROM files WHERE uid = 'never-archived'")

    result = site.cycle()

    assert (result.files, result.already, result.problems) == (0, 20, ())
    site.demand_archived()


def test_a_missing_file_stops_the_window_before_the_mark_and_is_listed(site: Site) -> None:
    uids = site.add(40)
    saved = {uid: site.path(uid).read_bytes() for uid in (uids[3], uids[30])}
    for uid in saved:
        site.path(uid).unlink()

    with pytest.raises(ArchiveError, match="missing") as caught:
        site.cycle()

    assert caught.value.hint is not None
    assert "packer.on_problem.missing" in caught.value.hint
    assert site.mark == START
    for uid, data in saved.items():
        site.path(uid).write_bytes(data)
    site.cycle()
    site.demand_complete()


def test_a_row_that_was_mended_is_read_again(site: Site) -> None:
    uids = site.add(10)
    moved = site.folder / "elsewhere"
    site.path(uids[4]).rename(moved)
    with pytest.raises(ArchiveError):
        site.cycle()
    site.server.execute("UPDATE files SET file_location = %s WHERE uid = %s", [str(moved), uids[4]])
    site.cycle()
    site.demand_complete()


def test_what_was_left_out_stays_named_when_the_window_is_listed_again(site: Site) -> None:
    uids = site.add(20)
    site.path(uids[3]).unlink()
    site.path(uids[5]).unlink()
    site.path(uids[5]).mkdir()
    parts = {uid: fingerprint(uid) >> 63 for uid in uids}
    assert parts[uids[3]] != parts[uids[5]]
    site.configure(packer={"on_problem": {"missing": "skip"}})
    with pytest.raises(ArchiveError, match="not a regular file"):
        site.cycle()
    site.path(uids[5]).rmdir()
    site.path(uids[5]).write_bytes(site.files[uids[5]])

    result = site.cycle()

    assert result.skipped == 1
    assert [problem.uid for problem in result.problems] == [uids[3]]


def test_trouble_that_one_worker_had_with_a_part_is_over_when_another_has_packed_it(site: Site) -> None:
    site.add(20)
    trouble = Problem(ProblemKind.MISSING, "file-0", "/files/0", "", "there was no such file", skipped=False)

    def two(tools: Tools) -> None:
        pack = tools.packer.pack

        def packing(work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
            for receipt in pack(work, parts):
                assert receipt is not None
                work.folder.keep_problems(receipt.part, [trouble])  # of one who looked at it earlier
                yield receipt

        tools.packer.pack = packing  # type: ignore[method-assign]

    assert site.cycle(change=two).problems == ()
    site.demand_complete()


def test_shards_that_are_taken_away_before_they_count_are_packed_again(site: Site, kill: Kill) -> None:
    """`verify` calls them unreferenced, and a power cut may keep a receipt and not the shard's name."""
    site.add(40)
    assert kill(site, {"tool": "place", "method": "jot", "nth": 2, "moment": "after"}) == -9
    first, *_ = sorted(_names(site))
    site.place.delete([first])
    with pytest.raises(ArchiveError, match="taken away before they counted") as caught:
        site.cycle()
    assert "run it again" in str(caught.value.hint)
    assert site.mark == START
    site.cycle()
    site.demand_complete()


def test_what_cannot_be_listed_is_not_taken_for_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that looked empty would have all files packed twice."""
    site.add(3)
    site.cycle()
    scandir = os.scandir

    def failing(path: str) -> object:
        if str(path).endswith("_tidegate/index"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    site.move_mark(START)
    with pytest.raises(ArchiveError, match="Input/output error"):
        site.cycle()
    monkeypatch.undo()
    assert site.cycle().already == 3


def test_what_a_policy_skips_is_named_and_left_out(site: Site) -> None:
    uids = site.add(20)
    site.path(uids[3]).unlink()
    site.path(uids[5]).unlink()
    site.path(uids[5]).mkdir()
    site.configure(packer={"on_problem": {"missing": "skip", "unreadable": "skip"}})

    result = site.cycle()

    assert (result.files, result.skipped) == (18, 2)
    assert {(problem.uid, problem.kind) for problem in result.problems} == {
        (uids[3], "missing"),
        (uids[5], "unreadable"),
    }
    for uid in (uids[3], uids[5]):
        del site.files[uid]
    site.demand_complete()


def test_rows_that_were_created_at_no_time_are_told_of_and_stop_nothing(site: Site) -> None:
    site.configure(watermark={"default_archived_until": None})
    site.server.execute("ALTER TABLE files ALTER created_at DROP NOT NULL")
    for number, moment in enumerate((None, "-infinity", "infinity")):
        insert = "INSERT INTO files (uid, created_at, file_location) VALUES (%s, %s, '/nowhere')"
        site.server.execute(insert, [f"timeless-{number}", moment])
    site.add(3)
    assert site.cycle().files == 3
    assert any("3 rows without a date" in note for note in site.watching.notes)
    site.demand_complete()


def test_a_row_without_a_location_is_a_problem_and_not_a_crash(site: Site) -> None:
    site.server.execute("INSERT INTO files (uid, created_at) VALUES ('nowhere', '2024-11-20')")
    with pytest.raises(ArchiveError, match="no location"):
        site.cycle()


def test_the_same_file_listed_twice_is_packed_once(site: Site) -> None:
    site.server.execute("ALTER TABLE files DROP CONSTRAINT files_pkey")
    uids = site.add(30)
    # Ties across the boundary of a page, and a second row that comes later.
    for _ in range(3):
        site.insert([(uids[24], LONG_AGO + timedelta(seconds=24), str(site.path(uids[24])))])
    site.insert([(uids[2], LONG_AGO + timedelta(days=1), str(site.path(uids[2])))])
    result = site.cycle()
    assert (result.files, result.repeated) == (30, 4)
    site.demand_complete()


def test_a_uid_twice_with_different_files_is_a_duplicate(site: Site) -> None:
    site.server.execute("ALTER TABLE files DROP CONSTRAINT files_pkey")
    uids = site.add(4)
    other = site.folder / "other"
    other.write_bytes(b"not the same")
    site.insert([(uids[0], LONG_AGO + timedelta(days=1), str(other))])
    with pytest.raises(ArchiveError, match="duplicate"):
        site.cycle()
    site.configure(packer={"on_problem": {"duplicate": "skip"}})
    assert site.cycle().skipped == 1
    site.demand_complete()


@pytest.mark.parametrize("size", [300, 9 << 20], ids=["small", "large"])
def test_a_file_that_changes_while_it_is_read_is_read_again_and_then_a_problem(
    site: Site, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.insert([("restless", LONG_AGO, str(site.write("restless", site.noise.randbytes(size))))])
    changes = iter(range(9))
    read = files._read  # noqa: SLF001 - where a file is in the middle of being read

    def restless(descriptor: int, length: int) -> bytes:
        data = read(descriptor, length)
        if (change := next(changes, None)) is not None:
            os.utime(descriptor, ns=(change, change))
        return data

    monkeypatch.setattr(files, "_read", restless)
    with pytest.raises(ArchiveError, match="changed while it was read"):
        site.cycle()
    assert site.mark == START
    changes = iter(range(100, 101))
    assert site.cycle().files == 1
    site.demand_complete()


def test_a_user_who_may_only_read_the_table_can_archive_it(site: Site) -> None:
    site.add(12)
    site.cycle()
    site.add(5, at=LONG_AGO + timedelta(days=2), prefix="more")
    site.server.execute("CREATE ROLE reader LOGIN PASSWORD 'reads-only' IN ROLE pg_monitor")
    try:
        site.server.execute("GRANT SELECT ON files TO reader")
        site.server.execute("GRANT SELECT ON des_archive_config TO reader")
        url = site.server.logged_in_as("reader", "reads-only").url
        site.configure(database={"url": url}, watermark={"config_db_url": url})
        site.move_mark(START)
        with pytest.raises(SourceError, match="permission denied") as refused:
            site.cycle()
        assert "UPDATE" in str(refused.value.hint)
        site.server.execute("GRANT UPDATE ON des_archive_config TO reader")
        assert site.cycle().moved
        site.demand_complete()
    finally:
        site.server.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_however_the_database_writes_dates_the_mark_is_what_it_is(site: Site) -> None:
    name = site.server.database
    site.server.execute(f"ALTER DATABASE {name} SET DateStyle TO 'German'")
    site.server.execute(f"ALTER DATABASE {name} SET TimeZone TO 'Asia/Kolkata'")
    site.add(5)
    assert site.cycle().files == 5
    site.demand_complete()
    told = "SELECT now() - archived_until BETWEEN '7 days' AND '7 days 1 minute' FROM des_archive_config"
    assert site.server.execute(told) == [(True,)]


def test_odd_files_and_odd_names(site: Site) -> None:
    site.server.execute("ALTER TABLE files DROP file_location, ADD file_location bytea")
    (site.folder / "files" / "a:").mkdir(parents=True)
    raw = os.fsencode(site.folder) + b"/files/a://\xff\xfe name\n"
    content = {"a/../../etc": b"1", "": b"2", "zażółć": b"3" * 100, "..": b""}
    for number, (uid, data) in enumerate(content.items()):
        path = raw + str(number).encode()
        with open(path, "wb") as file:  # noqa: PTH123 - a path of any bytes
            file.write(data)
        location = b"file://" + path.replace(b"\xff", b"%FF").replace(b" ", b"%20") if number % 2 else path
        site.files[uid] = data
        insert = "INSERT INTO files (uid, created_at, file_location) VALUES (%s, '2024-11-20', %s)"
        site.server.execute(insert, [uid, location])
    site.cycle()
    site.demand_complete()


def test_paths_of_any_bytes_in_a_database_without_an_encoding(postgres: Server, tmp_path: Path) -> None:
    name = f"any_bytes_{uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        site = Site(postgres.using(name), tmp_path)
        path = os.fsencode(tmp_path) + b"/files/\xff\xc3( name"
        with open(path, "wb") as file:  # noqa: PTH123 - a path of any bytes
            file.write(b"content")
        insert = "INSERT INTO files VALUES ('odd', '2024-11-20', convert_from(%s, 'SQL_ASCII'))"
        site.server.execute(insert, [path])
        site.files["odd"] = b"content"
        site.cycle()
        site.demand_complete()
        [manifest] = manifests(site.place)
        source = site.place.open(manifest.shards[0].key)
        assert source is not None
        assert Shard(source).index().column("location").to_pylist() == [path]
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_file_larger_than_a_shard_has_one_of_its_own(site: Site) -> None:
    site.add(10)
    site.insert([("large", LONG_AGO, str(site.write("large", site.noise.randbytes(9 << 20))))])
    site.cycle()
    site.demand_complete()
    sizes = [(shard.bytes, shard.entries) for manifest in manifests(site.place) for shard in manifest.shards]
    assert [entries for size, entries in sizes if size > 9 << 20] == [1]


def test_other_kinds_of_uid_and_a_zoneless_clock(site: Site) -> None:
    site.server.execute("CREATE TABLE documents (id bigint, at timestamp, path text)")
    content = {}
    for number in range(60):
        path = site.write(str(number), f"document {number}".encode())
        content[str(number)] = path.read_bytes()
        site.server.execute("INSERT INTO documents VALUES (%s, '2024-11-20 12:00', %s)", [number, str(path)])
    site.configure(
        database={
            "table_name": "documents",
            "uid_column": "id",
            "created_at_column": "at",
            "location_column": "path",
            "created_at_timezone": "Europe/Warsaw",
        }
    )
    site.cycle()
    site.demand_complete()
    [manifest] = manifests(site.place)
    source = site.place.open(manifest.shards[0].key)
    assert source is not None
    assert Shard(source).index().column("created_at")[0].as_py() == datetime(2024, 11, 20, 11, tzinfo=UTC)


def test_an_open_transaction_holds_the_window_back(site: Site) -> None:
    """A row that is inserted with an old date by a transaction still open is not behind the mark."""
    site.configure(database={"lag_days": 0})
    site.add(2)
    with site.server.connect() as writer:  # type: ignore[attr-defined]
        cursor = writer.cursor()
        cursor.execute("SELECT now()")
        [began] = cursor.fetchone()
        site.cycle()
        assert site.mark <= began
        path = site.write("slow", b"slow but not lost")
        cursor.execute("INSERT INTO files VALUES ('slow', now(), %s)", [str(path)])
        writer.commit()
    site.cycle()
    site.demand_complete()


def test_two_runs_at_once_are_one_too_many(site: Site) -> None:
    site.add(10)
    inside, go_on = threading.Event(), threading.Event()

    def slowly(tools: Tools) -> None:
        packer = tools.packer

        class Slow:
            def pack(self, work: object, parts: object) -> object:
                inside.set()
                go_on.wait(60)
                return packer.pack(work, parts)  # type: ignore[arg-type]

        tools.packer = Slow()  # type: ignore[assignment]

    first = threading.Thread(target=lambda: site.cycle(change=slowly))
    first.start()
    assert inside.wait(60)
    with pytest.raises(LeaseHeld):
        site.cycle()
    go_on.set()
    first.join()
    site.demand_complete()
    assert site.updates("des_archive_config", 1) == 1


def test_the_spread_of_uids_is_decided_once(site: Site) -> None:
    site.add(3)
    site.cycle()
    site.configure(packer={"n_bits": 2})
    with pytest.raises(ConfigError, match="n_bits: 1"):
        site.cycle()


def test_an_archive_has_the_windows_of_one_table_under_one_name(site: Site) -> None:
    """Under two names there would be two leases, and the same files in two windows at once."""
    site.add(3)
    site.cycle()
    site.configure(database={"table_name": "public.files"})
    with pytest.raises(ConfigError, match="begun for the table `files`"):
        site.cycle()
    with pytest.raises(ConfigError, match="begun for the table `files`"):
        site.cycle(late=True)


def test_a_mark_that_others_moved_meanwhile_is_left_where_they_put_it(site: Site) -> None:
    site.add(10)
    elsewhere = datetime(2024, 12, 24, tzinfo=UTC)

    def meddled(tools: Tools) -> None:
        mark = tools.mark

        class Meddled:
            def __getattr__(self, name: str) -> object:
                return getattr(mark, name)

            def move(self, before: datetime, after: datetime) -> None:
                site.move_mark(elsewhere)
                mark.move(before, after)

        tools.mark = Meddled()  # type: ignore[assignment]

    result = site.cycle(change=meddled)
    assert not result.moved
    assert site.mark == elsewhere
    site.demand_complete()
    assert site.cycle().moved


def test_the_listing_of_a_large_window_stays_a_few_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.archive.listing.RUN_ROWS", 25)
    monkeypatch.setattr("tidegate.archive.listing.MOST_RUNS", 3)
    site.configure(packer={"n_bits": 3})
    site.add(340)
    listed = []

    def watched(tools: Tools) -> None:
        pack = tools.packer.pack

        def packing(work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
            listed.append(work.listing)
            return pack(work, parts)

        tools.packer.pack = packing  # type: ignore[method-assign]

    site.cycle(change=watched)
    assert len(listed[0].files) < 340 / 25 / 2
    site.demand_complete()


def test_the_index_stays_a_few_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.archive.index._MOST_FILES", 3)
    monkeypatch.setattr("tidegate.archive.index._MERGED_AT_A_TIME", 3)
    for number in range(6):
        site.add(5, prefix=f"round{number}")
        site.cycle()
        site.move_mark(START)
    assert len(index_files(site.place)) <= 4
    site.demand_complete()


def test_who_wants_to_stop_need_not_wait_for_the_listing(site: Site) -> None:
    class Hasty(Listening):
        def check(self) -> None:
            raise KeyboardInterrupt

    site.add(40)
    site.watching = Hasty()
    with pytest.raises(KeyboardInterrupt):
        site.cycle()
    assert _names(site) == set()
    site.watching = Listening()
    assert site.cycle().files == 40
    site.demand_complete()


# --- Workers ------------------------------------------------------------------------------------------


def test_two_workers_share_a_window_and_move_the_mark_once(site: Site) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(120)
    results = []
    workers = [
        threading.Thread(target=lambda number=number: results.append(site.cycle(Share(number, 2))))
        for number in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 2
    site.demand_complete()
    windows = {result.run_id for result in results}
    assert site.updates("des_archive_config", len(windows)) == len(windows)


def test_a_share_whose_worker_never_came_is_taken_over(site: Site) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(60)
    assert site.cycle(Share(1, 3)).files == 60
    site.demand_complete()
    assert any("taking over share 0 of 3" in note for note in site.watching.notes)
