"""Getting files back: by uid, or all of them. Nothing is written outside of the folder that was named."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tidegate.archive.index import Index
from tidegate.archive.naming import file_name, fingerprint, part_in, part_name, part_of
from tidegate.archive.place import ArchivePlace, problems
from tidegate.archive.records import ShardRecord, manifests
from tidegate.archive.shard import Content, Shard
from tidegate.archive.verifying import doubts, sound_windows
from tidegate.core.errors import ArchiveError, DamagedShard, UsageError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Extracted:
    uid: str
    path: Path
    bytes: int
    shard: str


def extract(place: ArchivePlace, uids: Iterable[str], to: Path) -> Iterator[Extracted]:
    """Write these files into the folder. The header, the file and the tail of each shard are checked."""
    index = Index(place)
    for uid in uids:
        yield _first_whole(place, index, uid, partial(_written, to, uid))


def extract_all(place: ArchivePlace, to: Path) -> Iterator[Extracted]:
    """Write every file of the archive into the folder; every byte of every shard is checked on the way.

    A damaged shard keeps nobody from the others, nor does a window of which the record is damaged or gone:
    `DamagedShard` is raised at the end.
    """
    damaged: list[DamagedShard] = []
    for _, manifest in sound_windows(place):
        for record in manifest.shards:
            try:
                shard = _intact(place, record)
            except DamagedShard as error:
                damaged.append(error)
                continue
            for uid, content in shard.files():
                yield _written(to, uid, record.key, content)
    damaged += [DamagedShard(doubt.problem, where=place.where(doubt.key)) for doubt in doubts(place)]
    if damaged:
        raise _left_out(damaged)


def _intact(place: ArchivePlace, record: ShardRecord) -> Shard:
    shard = _open(place, record.key)
    if shard.verify() != record.sha256:
        raise DamagedShard("it is another shard than the manifest names", where=shard.where)
    return shard


def _left_out(damaged: list[DamagedShard]) -> DamagedShard:
    first = damaged[0]
    more = f", and {len(damaged) - 1:,} more shards or records are damaged" if len(damaged) > 1 else ""
    return DamagedShard(
        f"{first.message}{more}; everything else was written",
        where=first.where,
        hint="`tidegate archive verify` names them all; restore them from a copy, or name single uids",
    )


def content_of(place: ArchivePlace, uid: str) -> Iterator[bytes]:
    """One file, in pieces."""
    return _first_whole(place, Index(place), uid, lambda _, content: content)


def _first_whole(place: ArchivePlace, index: Index, uid: str, take: Callable[[str, Content], _T]) -> _T:
    """Take a file from a shard that holds it: another may be damaged or gone, and packed again since."""
    damaged: DamagedShard | None = None
    for key in _candidates(place, index, uid):
        try:
            content = _content(place, key, uid)
            if content is not None:
                return take(key, content)
        except DamagedShard as error:
            damaged = damaged or error
    raise damaged or UsageError(f"the archive has no file `{uid}`", where=place.where("v1"))


def _content(place: ArchivePlace, key: str, uid: str) -> Content | None:
    shard = _open(place, key)
    shard.check_tail()
    found = shard.find(uid)
    if found is not None:
        return shard.content(found)
    if uid in shard.index().column("uid").to_pylist():
        raise DamagedShard(f"`{uid}` is in the index and cannot be found", where=shard.where)
    return None


def _candidates(place: ArchivePlace, index: Index, uid: str) -> Iterator[str]:
    """The shards that the index names; then all others of the uid's part, in case it does not know all."""
    mark = fingerprint(uid)
    named = index.shards([mark], (mark, mark)).get(mark, set())
    yield from sorted(named)
    for manifest in manifests(place):
        part = part_name(part_of(mark, manifest.n_bits), manifest.n_bits)
        keys = (record.key for record in manifest.shards if part_in(record.key) == part)
        yield from (key for key in keys if key not in named)


def _open(place: ArchivePlace, key: str) -> Shard:
    source = place.open(key)
    if source is None:
        raise DamagedShard("the shard is gone", where=place.where(key), hint="restore it from a copy")
    return Shard(source)


def _written(folder: Path, uid: str, shard: str, content: Content) -> Extracted:
    """Write a file whole or not at all, under a name that cannot lead out of the folder.

    A file of that name that is there already stays, if it is the same.
    """
    path = folder / file_name(uid)
    beside = folder / f".unfinished-{secrets.token_hex(8)}"
    digest, size = hashlib.sha256(), 0
    with problems(str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("xb") as file:
                for piece in content:
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
            try:
                os.link(beside, path)
            except FileExistsError:
                _demand_same(path, digest.digest())
        finally:
            beside.unlink(missing_ok=True)
    return Extracted(uid, path, size, shard)


def _demand_same(path: Path, sha256: bytes) -> None:
    if path.is_symlink() or not path.is_file():
        raise ArchiveError("something else is in the way", where=str(path), hint="choose an empty folder")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").digest() != sha256:
            raise ArchiveError(
                "there is another file of that name", where=str(path), hint="choose an empty folder"
            )
