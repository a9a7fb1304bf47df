"""Verifying an archive: every shard that a manifest names is read, or a sample of them.

What nothing names cannot be missed by looking at what is there. So the manifests themselves are compared
with the history, which remembers each of them with its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import nsmallest
from math import ceil

from tidegate.archive.index import Index
from tidegate.archive.naming import SHARDS, fingerprint
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import Manifest, ShardRecord, WindowFolder, windows
from tidegate.archive.shard import Shard
from tidegate.archive.streams import PIPELINE, is_open
from tidegate.core.errors import ArchiveError, DamagedRecord, DamagedShard
from tidegate.core.receipts import Segment
from tidegate.state.contract import Store, Stored

_EVERYTHING = 100.0


@dataclass(frozen=True, slots=True)
class Verdict:
    shard: ShardRecord
    problem: str | None


def verify(place: ArchivePlace, *, sample: float = _EVERYTHING, seed: str = "") -> Iterator[Verdict]:
    """Re-read shards and check every file in them. `sample` is a percentage; `seed` chooses which."""
    index = Index(place)
    records = (record for _, manifest in sound_windows(place) for record in manifest.shards)
    for record in records if sample >= _EVERYTHING else _chosen(list(records), sample, seed):
        yield Verdict(record, _problem(place, record, index))


def strangers(place: ArchivePlace) -> list[str]:
    """Shards that no manifest names: of an open window, or left behind by one that was given up."""
    named = {record.key for _, manifest in sound_windows(place) for record in manifest.shards}
    return [listed.key for listed in place.list(SHARDS) if listed.key not in named]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record of the archive that is damaged or gone, so that nobody would miss what it names."""

    key: str
    problem: str


def doubts(place: ArchivePlace) -> Iterator[Doubt]:
    sound = {folder.manifest_key for folder, _ in sound_windows(place)}
    for folder in windows(place):
        if folder.manifest_key not in sound:
            yield Doubt(folder.manifest_key, "the manifest is damaged, so its shards do not count")
    with closing(place.store()) as store:
        known = store.streams(PIPELINE)
        for broken in known.damaged:
            yield Doubt(broken.where.removeprefix(place.where("")), broken.problem)
        for segment in _packed(store, known.streams):
            found = place.get(segment.key)
            if found is None:
                yield Doubt(segment.key, f"the manifest is gone: its {segment.rows:,} files do not count")
            elif segment.key in sound and hashlib.sha256(found).hexdigest() != segment.checksum:
                yield Doubt(segment.key, "it is another manifest than was written")
        any_open = any(is_open(stored.watermark) for stored in known.streams)
    if not sound and not any_open and next(place.list(SHARDS), None) is not None:
        yield Doubt(SHARDS, "there are shards, and no manifest names any of them")


def _packed(store: Store, streams: Sequence[Stored]) -> Iterator[Segment]:
    """The manifests that the history knows, of windows that had anything to pack."""
    for stored in streams:
        for event in store.history(stored.stream):
            if event.kind == "loaded":
                segments = (Segment.from_json(item) for item in event.data["segments"])
                yield from (segment for segment in segments if segment.rows)


def sound_windows(place: ArchivePlace) -> Iterator[tuple[WindowFolder, Manifest]]:
    """Windows with their manifests. Damage is for `doubts` to tell, and keeps nobody from the others."""
    for folder in windows(place):
        try:
            manifest = folder.manifest()
        except DamagedRecord:
            continue
        if manifest is not None:
            yield folder, manifest


def _problem(place: ArchivePlace, record: ShardRecord, index: Index) -> str | None:
    try:
        source = place.open(record.key)
        if source is None:
            return "the shard is gone"
        if source.size != record.bytes:
            return f"it has {source.size:,} bytes, and {record.bytes:,} were written"
        shard = Shard(source)
        if shard.verify() != record.sha256:
            return "it is another shard than the manifest names"
        unknown = _unknown(shard, record.key, index)
    except (ArchiveError, DamagedShard, DamagedRecord) as error:
        return error.message
    if unknown:
        return f"{unknown:,} of its files are not in the index: move _tidegate/index away, and run"
    return None


def _unknown(shard: Shard, key: str, index: Index) -> int:
    """How many of its files the index of the archive does not know: a run would pack them again."""
    marks = [fingerprint(uid) for uid in shard.index().column("uid").to_pylist()]
    found = index.shards(marks, (min(marks), max(marks))) if marks else {}
    return sum(key not in found.get(mark, ()) for mark in marks)


def _chosen(records: list[ShardRecord], sample: float, seed: str) -> list[ShardRecord]:
    """The same shards for the same seed, each with the same chance; at least one, if there is any."""

    def mark(record: ShardRecord) -> bytes:
        return hashlib.sha256(f"{seed}/{record.key}".encode()).digest()

    return nsmallest(ceil(len(records) * sample / _EVERYTHING), records, key=mark)
