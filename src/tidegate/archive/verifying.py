"""Verifying an archive: every shard that a manifest names is read, or a sample of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.archive.naming import SHARDS
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import ShardRecord, manifests
from tidegate.archive.shard import Shard
from tidegate.core.errors import ArchiveError, DamagedShard

_EVERYTHING = 100.0
_SCALE = 1 << 32


@dataclass(frozen=True, slots=True)
class Verdict:
    shard: ShardRecord
    problem: str | None


def verify(place: ArchivePlace, *, sample: float = _EVERYTHING, seed: str = "") -> Iterator[Verdict]:
    """Re-read shards and check every file in them. `sample` is a percentage; `seed` chooses which."""
    for manifest in manifests(place):
        for record in manifest.shards:
            if _chosen(record.key, sample, seed):
                yield Verdict(record, _problem(place, record))


def strangers(place: ArchivePlace) -> list[str]:
    """Shards that no manifest names: of an open window, or left behind by one that was given up."""
    named = {record.key for manifest in manifests(place) for record in manifest.shards}
    return [listed.key for listed in place.list(SHARDS) if listed.key not in named]


def _problem(place: ArchivePlace, record: ShardRecord) -> str | None:
    try:
        source = place.open(record.key)
        if source is None:
            return "the shard is gone"
        if source.size != record.bytes:
            return f"it has {source.size:,} bytes, and {record.bytes:,} were written"
        if Shard(source).verify() != record.sha256:
            return "it is another shard than the manifest names"
    except (ArchiveError, DamagedShard) as error:
        return error.message
    return None


def _chosen(key: str, sample: float, seed: str) -> bool:
    """The same shards for the same seed, each with the same chance."""
    if sample >= _EVERYTHING:
        return True
    mark = int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:4])
    return mark < sample / _EVERYTHING * _SCALE
