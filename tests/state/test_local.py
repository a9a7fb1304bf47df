"""The local folder: names of files, crashes, full disks, and what people do to files."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.writers import write_for_ever
from tidegate.core.errors import DamagedRecord, LeaseLost, OutcomeUnknown, StateError, UsageError
from tidegate.core.watermark import StreamId
from tidegate.state import local, locks
from tidegate.state.local import LocalStore
from tidegate.state.names import stem_of
from tidegate.testing.stores import NOW, ODD_NAMES, STREAM, TTL, event, mark, process_context, take

RECORD = "watermarks/shop~orders.json"
HISTORY = "history/shop~orders.jsonl"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def numbers(store: LocalStore) -> list[int]:
    return [item.data["number"] for item in store.history(STREAM)]


def write(store: LocalStore, *versions: int) -> None:
    """Write these versions, each with an event of its number."""
    lease = take(store)
    for version in versions:
        store.write(mark(number=version), expected=version - 1, lease=lease, events=[event(version)])


# --- Names of files ----------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80)
streams = st.builds(StreamId, names, names)


@given(streams, streams)
def test_no_two_streams_share_a_file_even_where_case_does_not_count(one: StreamId, other: StreamId) -> None:
    stems = [file_name(stream).casefold() for stream in (one, other)]
    assert (stems[0] == stems[1]) == (one == other)


@given(streams)
def test_a_file_name_is_plain_and_short_enough_for_every_file_system(stream: StreamId) -> None:
    name = file_name(stream)
    assert name.isascii()
    assert not set(name) & set('/\\:*?"<>| \n')
    assert not name.startswith(".")
    assert len(name) <= 200  # which leaves room for what is added when it is set aside


def file_name(stream: StreamId) -> str:
    return f"{stem_of(stream)}.json"


def test_a_file_is_named_after_its_stream(store: LocalStore, tmp_path: Path) -> None:
    take(store, StreamId("shop", "public.Order lines"))
    assert [file.name for file in (tmp_path / "watermarks").iterdir()] == [
        "shop~public.%4frder%20lines.json",
    ]


@pytest.mark.parametrize("name", ["nul\0", "half of a pair \ud800"])
def test_a_name_that_no_store_could_keep_is_refused(store: LocalStore, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a stream"):
        take(store, StreamId("shop", name))
    with pytest.raises(UsageError, match="cannot name a stream"):
        store.read(StreamId("shop", name))


def test_damaged_records_of_other_pipelines_are_left_out_of_a_pipelines_listing(
    store: LocalStore, tmp_path: Path
) -> None:
    for pipeline in ("shop", "crm"):
        take(store, StreamId(pipeline, "orders"))
    for file in (tmp_path / "watermarks").iterdir():
        file.write_text("{")
    assert [Path(item.where).name for item in store.streams("shop").damaged] == ["shop~orders.json"]
    assert len(store.streams().damaged) == 2


# --- What lies in the folder --------------------------------------------------


def test_reading_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "never")
    assert store.read(STREAM).version == 0
    assert store.streams().streams == ()
    assert store.history(STREAM) == []
    assert not (tmp_path / "never").exists()


def test_the_record_stays_small_however_long_the_history_grows(store: LocalStore, tmp_path: Path) -> None:
    write(store, *range(1, 201))
    assert (tmp_path / RECORD).stat().st_size < 20_000
    assert numbers(store) == list(range(1, 201))


def test_files_that_are_no_records_are_left_alone(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1)
    (tmp_path / "watermarks" / "notes.txt").write_text("mine")
    (tmp_path / "watermarks" / ".shop~orders.json.new").write_text("half of a rec")
    listing = store.streams()
    assert [stored.stream for stored in listing.streams] == [STREAM]
    assert listing.damaged == ()


def test_a_record_copied_under_another_name_is_damaged(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1)
    shutil.copy(tmp_path / RECORD, tmp_path / "watermarks" / "shop~customers.json")
    [found] = store.streams().damaged
    assert found.where.endswith("shop~customers.json")
    with pytest.raises(DamagedRecord, match="record of shop/orders"):
        store.read(StreamId("shop", "customers"))


def test_removing_the_lock_files_of_idle_streams_does_no_harm(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1)
    shutil.rmtree(tmp_path / "locks")
    write(store, 2)
    assert store.read(STREAM).version == 2


def test_a_lock_that_is_never_let_go_is_an_error_and_no_wait_for_ever(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, 1)
    monkeypatch.setattr(locks, "_LOCK_SECONDS", 0.1)
    with (tmp_path / "locks" / "shop~orders.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="locked the record"):
            take(store)
    assert store.read(STREAM).version == 1


def test_taking_and_giving_back_a_lease_does_not_wait_for_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, 1)
    store.release(STREAM, take(store))

    def syncing(descriptor: int) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fsync", syncing)
    lease = take(store)
    store.renew(STREAM, lease, now=NOW, ttl=TTL)
    store.release(STREAM, lease)
    assert store.read(STREAM).version == 1


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"{", b'{"fence": 1}', None])
def test_a_lease_that_was_lost_in_a_power_cut_is_free_and_its_holder_is_fenced_off(
    store: LocalStore, tmp_path: Path, content: bytes | None
) -> None:
    write(store, 1)
    old = take(store)
    file = tmp_path / "leases" / "shop~orders.json"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert store.read(STREAM).lease is None
    new = take(store, nonce="n2")
    assert new.fence > old.fence
    with pytest.raises(LeaseLost):
        store.write(mark(number=2), expected=1, lease=old)
    with pytest.raises(LeaseLost):
        store.renew(STREAM, old, now=NOW, ttl=TTL)
    assert store.write(mark(number=2), expected=1, lease=new) == 2


# --- History -----------------------------------------------------------------


def test_a_history_line_cut_off_by_a_crash_is_completed(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1, 2)
    whole = (tmp_path / HISTORY).read_bytes()
    next_line = json.dumps({"version": 2, "event": event(2).to_json()}).encode() + b"\n"
    for length in range(len(next_line) + 1):
        (tmp_path / HISTORY).write_bytes(whole + next_line[:length])
        assert numbers(store) == [1, 2]
    (tmp_path / HISTORY).write_bytes(whole + next_line[:20])
    write(store, 3)
    assert numbers(store) == [1, 2, 3]


@pytest.mark.parametrize("rest", [b"\0" * 50, b"\0" * 50 + b"\n", b'{"version": 9}\n', b"\xff\xfe"])
def test_what_a_power_cut_left_behind_the_history_is_overwritten(
    store: LocalStore, tmp_path: Path, rest: bytes
) -> None:
    write(store, 1, 2)
    with (tmp_path / HISTORY).open("ab") as file:
        file.write(rest)
    assert numbers(store) == [1, 2]
    write(store, 3)
    assert numbers(store) == [1, 2, 3]


def test_history_survives_when_an_older_record_is_put_back(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1, 2)
    shutil.copy(tmp_path / RECORD, tmp_path / "backup.json")
    write(store, 3, 4)
    store.release(STREAM, take(store))
    shutil.copy(tmp_path / "backup.json", tmp_path / RECORD)
    write(store, 3)
    assert numbers(store) == [1, 2, 3, 4, 2, 3]  # nothing that was ever said is lost


def test_history_survives_when_the_record_is_deleted(store: LocalStore, tmp_path: Path) -> None:
    write(store, 1, 2)
    store.release(STREAM, take(store))
    (tmp_path / RECORD).unlink()
    assert numbers(store) == [1, 2]
    write(store, 1)
    assert numbers(store) == [1, 2, 1]


@pytest.mark.parametrize("harm", ["shortened", "deleted", "changed"])
def test_a_damaged_history_is_named_and_can_be_set_aside(
    store: LocalStore, tmp_path: Path, harm: str
) -> None:
    write(store, 1, 2, 3)
    file = tmp_path / HISTORY
    match harm:
        case "shortened":
            file.write_bytes(file.read_bytes()[:-10])
        case "deleted":
            file.unlink()
        case _:
            file.write_bytes(b"#" + file.read_bytes()[1:])
    with pytest.raises(DamagedRecord) as raised:
        store.history(STREAM)
    assert str(file) in str(raised.value)
    store.set_aside(STREAM)
    assert numbers(store) == [3]  # it had not left the record yet
    assert store.read(STREAM).version == 3
    write(store, 4)
    assert numbers(store) == [3, 4]


# --- Disks -------------------------------------------------------------------

FULL = """
import resource, sys
from tidegate.core.errors import StateError
from tidegate.state.local import LocalStore
from tidegate.testing.stores import event, mark, take
from dataclasses import replace
store = LocalStore(sys.argv[1])
lease = take(store)
store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
try:
    store.write(replace(mark(number=2), last_error="x" * 5000), expected=1, lease=lease, events=[event(2)])
except StateError as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_leaves_the_old_record_intact(store: LocalStore, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("StateError")
    assert "make room" in done.stdout
    assert store.read(STREAM).watermark == mark(number=1)
    assert numbers(store) == [1]
    write(store, 2)
    assert numbers(store) == [1, 2]


READ_ONLY = """
import os, sys
from tidegate.core.errors import StateError
from tidegate.state.local import LocalStore
from tidegate.testing.stores import STREAM, take
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = LocalStore(sys.argv[1])
print(store.read(STREAM).version, len(store.history(STREAM)), len(store.streams().streams))
try:
    take(store)
except StateError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


def test_a_folder_that_may_only_be_read_is_read_and_writing_says_why_not(public_folder: Path) -> None:
    write(LocalStore(public_folder / "state"), 1)
    for path in [public_folder, *public_folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(public_folder / "state")],
        capture_output=True,
        text=True,
        check=True,
    )
    facts, refusal = done.stdout.splitlines()
    assert facts == "1 1 1"
    assert refusal.startswith("StateError")
    assert "must be writable" in refusal


def test_a_file_in_the_place_of_the_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    store = LocalStore(tmp_path / "state")
    attempts: list[Callable[[], object]] = [lambda: take(store), store.streams, lambda: store.read(STREAM)]
    for attempt in attempts:
        with pytest.raises(StateError, match="must be a folder"):
            attempt()


# --- Crashes -----------------------------------------------------------------


def demand_consistent(store: LocalStore, *, each: int) -> int:
    """The record is whole, and its history has the events of every version, once, and no others."""
    stored = store.read(STREAM)
    assert stored.watermark == (mark(number=stored.version) if stored.version else None)
    assert numbers(store) == list(range(1, each * stored.version + 1))
    assert store.streams().damaged == ()
    return stored.version


def test_a_writer_killed_at_any_moment_leaves_record_and_history_consistent(
    store: LocalStore, tmp_path: Path
) -> None:
    context = process_context()
    chance = random.Random(20250301)
    reached = 0
    for seed in range(60):
        writer = context.Process(target=write_for_ever, args=(tmp_path, seed))
        writer.start()
        deadline = time.monotonic() + 120
        while store.read(STREAM).version == reached and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        writer.kill()
        writer.join()
        version = demand_consistent(store, each=2)
        assert version > reached
        reached = version


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("operation", ["acquire", "write", "renew", "release"])
def test_a_crash_at_any_call_to_the_system_leaves_record_and_history_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    for point in count(1):
        store = LocalStore(tmp_path / str(point))
        write(store, 1, 2)
        with monkeypatch.context() as patch:
            crash_at(patch, point)
            try:
                perform(store, operation)
            except Crash:
                pass
            else:
                assert point > 2  # the operation was through before the crash came
                return
        reached = demand_consistent(store, each=1)
        assert reached in ({2, 3} if operation == "write" else {2})
        store.release(STREAM, store.read(STREAM).lease or take(store))
        write(store, reached + 1)
        demand_consistent(store, each=1)


def perform(store: LocalStore, operation: str) -> None:
    lease = store.read(STREAM).lease
    assert lease is not None
    match operation:
        case "acquire":
            take(store, nonce="n2", now=NOW + TTL)
        case "write":
            store.write(mark(number=3), expected=2, lease=lease, events=[event(3)])
        case "renew":
            store.renew(STREAM, lease, now=NOW, ttl=TTL)
        case _:
            store.release(STREAM, lease)


def crash_at(patch: pytest.MonkeyPatch, point: int) -> None:
    """Crash at the given call that changes something; a write gets half-way."""
    calls = count(1)
    really_write = os.pwrite

    def half_written(descriptor: int, content: bytes, offset: int) -> int:
        if next(calls) == point:
            really_write(descriptor, content[: len(content) // 2], offset)
            raise Crash
        return really_write(descriptor, content, offset)

    def crashing(real: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            if next(calls) == point:
                raise Crash
            return real(*arguments)

        return called

    patch.setattr(os, "pwrite", half_written)
    for name in ("fsync", "ftruncate"):
        patch.setattr(os, name, crashing(getattr(os, name)))
    patch.setattr(Path, "replace", crashing(Path.replace))


def test_a_record_whose_folder_cannot_be_synced_has_an_unknown_outcome_and_is_there(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(store)

    def broken(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(local, "_sync_folder", broken)
        with pytest.raises(OutcomeUnknown):
            store.write(mark(number=1), expected=0, lease=lease)
    assert store.read(STREAM).version == 1


def test_odd_names_survive_a_damaged_neighbour(store: LocalStore, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        take(store, StreamId("shop", name))
    (tmp_path / RECORD).write_bytes(b"")
    listing = store.streams()
    assert len(listing.streams) == len(ODD_NAMES) - 1
    assert [Path(item.where).name for item in listing.damaged] == ["shop~orders.json"]
