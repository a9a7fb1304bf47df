"""Broken records of the stream shop/orders.

Those whose damage does not depend on what a watermark holds lie as files in `tests/fixtures/damaged-state/`,
so that what once was damage stays damage; `python -m tests.state.damaged_records` writes them anew. The
others are made from a sound record of today.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.state.local import LocalStore
from tidegate.state.sealed import seal, unseal
from tidegate.testing.stores import STREAM, event, mark, one_run, take

FOLDER = Path(__file__).parents[1] / "fixtures" / "damaged-state"

Change = Callable[[dict[str, Any]], object]

FRAME_CHANGES: dict[str, Change] = {
    "other-format": lambda record: record.update(format=99),
    "field-missing": lambda record: record.pop("fence"),
    "version-as-text": lambda record: record.update(version="3"),
    "version-negative": lambda record: record.update(version=-3),
    "other-stream": lambda record: record.update(name="customers"),
    "outbox-as-text": lambda record: record.update(outbox="event"),
    "other-watermark-format": lambda record: record.update(watermark={"format": 0}),
    "watermark-as-list": lambda record: record.update(watermark=[]),
}
"""Changes of a record that has no watermark yet. The checksum fits."""

WATERMARK_CHANGES: dict[str, Change] = {
    "field missing": lambda mark: mark["extracted"].pop("position"),
    "segment field unknown": lambda mark: mark["pending"][0].update(colour="red"),
    "rows as text": lambda mark: mark["extracted"].update(rows_total="many"),
    "rows negative": lambda mark: mark["extracted"].update(rows_total=-5),
    "rows fractional": lambda mark: mark["loaded"].update(rows_total=1.5),
    "runs as truth": lambda mark: mark.update(runs=True),
    "segment rows negative": lambda mark: mark["pending"][0].update(rows=-1),
    "position empty": lambda mark: mark["extracted"].update(position=[]),
    "position as text": lambda mark: mark["extracted"].update(position="12"),
    "position of unknown kind": lambda mark: mark["extracted"].update(position=[{"x": 1}]),
    "cursor as text": lambda mark: mark.update(cursor="id"),
    "pending as text": lambda mark: mark.update(pending=""),
    "run empty": lambda mark: mark.update(run={}),
    "run of unknown state": lambda mark: mark["run"].update(state="dreaming"),
    "moment without zone": lambda mark: mark.update(created_at="2025-03-01T12:00:00"),
    "moment nonsense": lambda mark: mark.update(updated_at="yesterday"),
    "other stream": lambda mark: mark.update(table_name="customers"),
}
"""Changes of the watermark in a record. The checksum fits."""


def sound_record() -> bytes:
    """What `LocalStore` writes for a stream with a pending segment and a run."""
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        store.write(one_run(mark(number=12)), expected=0, lease=take(store), events=[event(1)])
        return (Path(folder) / "watermarks" / "shop~orders.json").read_bytes()


def sound_frame() -> bytes:
    """The record of a stream that was taken and not written yet."""
    with tempfile.TemporaryDirectory() as folder:
        take(LocalStore(folder))
        return (Path(folder) / "watermarks" / "shop~orders.json").read_bytes()


def changed(sound: bytes, change: Change) -> bytes:
    record = unseal(sound, str(STREAM))
    change(record)
    return seal(record).encode()


def changed_watermark(sound: bytes, change: Change) -> bytes:
    return changed(sound, lambda record: change(record["watermark"]))


def broken_bytes(sound: bytes) -> dict[str, bytes]:
    """Records whose bytes were damaged on the way."""
    return {
        "empty": b"",
        "truncated": sound[: len(sound) // 2],
        "last-byte-missing": sound[:-1],
        "zeroes": b"\0" * len(sound),
        "binary": bytes(range(256)) * 4,
        "not-utf-8": sound.replace(b"shop", b"sh\xffp"),
        "one-digit-changed": sound.replace(b'"rows_total": 50012', b'"rows_total": 50013'),
        "written-twice": sound + sound,
        "deeply-nested": b"[" * 100_000,
        "other-json": b'{"name": "shop", "version": "1.0.0"}\n',
        "a-list": b"[1, 2, 3]\n",
        "a-word": b'"orders"\n',
        "nothing": b"null\n",
        "text": b"shop orders 2025-03-01\n",
    }


def main() -> None:
    frame = sound_frame()
    files = {name: changed(frame, change) for name, change in FRAME_CHANGES.items()}
    files |= broken_bytes(sound_record())
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, content in files.items():
        (FOLDER / f"{name}.json").write_bytes(content)


if __name__ == "__main__":
    main()
