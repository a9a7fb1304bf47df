"""Verifying an archive: every shard that a manifest names is read, or a sample of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.archive.index import Index
from tidegate.archive.naming import SHARDS, fingerprint
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import ShardRecord, manifests
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError, DamagedRecord, DamagedShard

_EVERYTHING = 100.0
_SCALE = 1 << 32


@dataclass(frozen=True, slots=True)
class Verdict:
    shard: ShardRecord
    problem: str | None


def verify(place: ArchivePlace, *, sample: float = _EVERYTHING, seed: str = "") -> Iterator[Verdict]:
    """Re-read shards and check every file in them. `sample` is a percentage; `seed` chooses which."""
    index = Index(place)
    for manifest in manifests(place):
        for record in manifest.shards:
            if _chosen(record.key, sample, seed):
                yield Verdict(record, _problem(place, record, index))


def strangers(place: ArchivePlace) -> list[str]:
    """Shards that no manifest names: of an open window, or left behind by one that was given up."""
    named = {record.key for manifest in manifests(place) for record in manifest.shards}
    return [listed.key for listed in place.list(SHARDS) if listed.key not in named]


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


def _chosen(key: str, sample: float, seed: str) -> bool:
    """The same shards for the same seed, each with the same chance."""
    if sample >= _EVERYTHING:
        return True
    mark = int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:4])
    return mark < sample / _EVERYTHING * _SCALE
