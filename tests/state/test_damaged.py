"""Every kind of damage is found, named, and left as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.state.damaged_records import (
    FOLDER,
    WATERMARK_CHANGES,
    broken_bytes,
    changed,
    changed_watermark,
    sound_frame,
    sound_record,
)
from tidegate.core.errors import DamagedRecord
from tidegate.state.contract import Stored
from tidegate.state.local import LocalStore
from tidegate.state.sealed import seal, unseal
from tidegate.state.sql import SqlStore
from tidegate.testing.stores import STREAM, mark, take

FILES = {
    "a-list": "not a state record",
    "a-word": "not a state record",
    "binary": "not JSON",
    "deeply-nested": "not JSON",
    "empty": "not JSON",
    "field-missing": "'fence' is missing",
    "last-byte-missing": "not JSON",
    "not-utf-8": "not JSON",
    "nothing": "not a state record",
    "one-digit-changed": "checksum",
    "other-format": "format 99",
    "other-json": "not a state record",
    "other-stream": "record of shop/customers",
    "other-watermark-format": "state format 0",
    "outbox-as-text": "outbox",
    "text": "not JSON",
    "truncated": "not JSON",
    "version-as-text": "version is str",
    "version-negative": "version is negative",
    "watermark-as-list": "cannot be understood",
    "written-twice": "not JSON",
    "zeroes": "not JSON",
}

WATERMARKS = {
    "cursor as text": "not a list",
    "field missing": "position",
    "moment nonsense": "yesterday",
    "moment without zone": "created_at has no time zone",
    "other stream": "watermark of shop/customers",
    "pending as text": "not a list",
    "position as text": "not a position",
    "position empty": "at least one value",
    "position of unknown kind": "not a value of a position",
    "rows as text": "extracted.rows_total is str",
    "rows fractional": "loaded.rows_total is float",
    "rows negative": "extracted.rows_total is negative",
    "run empty": "cannot be understood",
    "run of unknown state": "dreaming",
    "runs as truth": "runs is bool",
    "segment field unknown": "colour",
    "segment rows negative": "pending[0].rows is negative",
}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / "watermarks").mkdir()
    return tmp_path / "watermarks" / "shop~orders.json"


def test_every_kind_of_damage_is_tried() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(FILES)
    assert set(WATERMARK_CHANGES) == set(WATERMARKS)


def test_the_sound_records_they_were_made_from_are_sound(record: Path, tmp_path: Path) -> None:
    for version, sound in enumerate((sound_frame(), sound_record())):
        record.write_bytes(changed(sound, lambda same: same))
        assert LocalStore(tmp_path).read(STREAM).version == version


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_found_named_and_left_as_it_is(record: Path, tmp_path: Path, name: str) -> None:
    record.write_bytes((FOLDER / f"{name}.json").read_bytes())
    demand_named(LocalStore(tmp_path), record, FILES[name])


@pytest.mark.parametrize("name", WATERMARKS)
def test_a_damaged_watermark_is_found_named_and_left_as_it_is(
    record: Path, tmp_path: Path, name: str
) -> None:
    record.write_bytes(changed_watermark(sound_record(), WATERMARK_CHANGES[name]))
    demand_named(LocalStore(tmp_path), record, WATERMARKS[name])


def demand_named(store: LocalStore, record: Path, reason: str) -> None:
    content = record.read_bytes()
    for attempt in (store.read, lambda stream: take(store, stream), store.history):
        with pytest.raises(DamagedRecord) as raised:
            attempt(STREAM)
        assert raised.value.where == str(record)
        assert reason in raised.value.message
        assert raised.value.hint
    [found] = store.streams().damaged
    assert found.where == str(record)
    assert reason in found.problem
    assert record.read_bytes() == content


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_set_aside_byte_for_byte(record: Path, tmp_path: Path, name: str) -> None:
    content = (FOLDER / f"{name}.json").read_bytes()
    record.write_bytes(content)
    store = LocalStore(tmp_path)
    aside = store.set_aside(STREAM)
    assert Path(aside).read_bytes() == content
    assert not record.exists()
    assert store.read(STREAM) == Stored(STREAM)


@pytest.mark.parametrize("name", WATERMARKS)
def test_a_database_row_with_a_damaged_watermark_is_named_too(tmp_path: Path, name: str) -> None:
    record = unseal(changed_watermark(sound_record(), WATERMARK_CHANGES[name]), "")
    with closing(SqlStore(f"sqlite://{tmp_path}/state.db")) as store:
        take(store)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
            connection.execute(
                "UPDATE tidegate_watermarks SET version = 1, document = ?", (seal(record["watermark"]),)
            )
        with pytest.raises(DamagedRecord, match="shop/orders") as raised:
            store.read(STREAM)
        assert WATERMARKS[name] in raised.value.message
        assert len(store.streams().damaged) == 1


@pytest.mark.parametrize(
    "change",
    [
        "document = x'00ff00'",
        "document = CAST(x'ff41ff' AS TEXT)",
        "document = ''",
        "version = 'three'",
        "version = -1",
        "version = 0",
        "fence = 1.5",
        "lease = '{}'",
        "name = 'customers'",
        "stream_key = 'x'",
    ],
)
def test_a_database_row_that_is_not_what_it_was_is_named(tmp_path: Path, change: str) -> None:
    with closing(SqlStore(f"sqlite://{tmp_path}/state.db")) as store:
        lease = take(store)
        store.write(mark(), expected=0, lease=lease)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
            connection.execute(f"UPDATE tidegate_watermarks SET {change}")
        listing = store.streams()
        assert listing.streams == ()
        [found] = listing.damaged
        assert "tidegate_watermarks" in found.where


def test_no_single_changed_byte_goes_unnoticed(record: Path, tmp_path: Path) -> None:
    sound = sound_record()
    store = LocalStore(tmp_path)
    unnoticed = []
    for place in range(0, len(sound), 7):
        record.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            store.read(STREAM)
        except DamagedRecord:
            continue
        unnoticed.append((place, sound[place - 10 : place + 10]))
    assert unnoticed == []


def test_damage_of_bytes_is_still_what_the_files_hold() -> None:
    for name in ("binary", "a-list", "text"):
        assert (FOLDER / f"{name}.json").read_bytes() == broken_bytes(b"")[name]
