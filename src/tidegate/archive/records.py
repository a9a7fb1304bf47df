"""What the archiver writes down beside the shards, and what it is called.

    archive.json                        how uids are spread over parts: never changes
    _tidegate/state/                    the store: lease, planned window, history
    _tidegate/windows/RUN/listing/      the frozen listing of an open window, sorted by fingerprint
    _tidegate/windows/RUN/listing.json  written once it is complete
    _tidegate/windows/RUN/parts/        for each part its receipt
    _tidegate/windows/RUN/problems/     for each part the files that could not be packed
    _tidegate/windows/RUN/manifest.json the window's shards: with it they count
    _tidegate/index/                    which shard holds which fingerprint

RUN is the run's number and id. Whatever has a checksum of its own is sealed like a store's records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tidegate.archive.place import ArchivePlace
from tidegate.core.errors import ConfigError, DamagedRecord
from tidegate.core.watermark import Run
from tidegate.core.windows import Window
from tidegate.state.sealed import seal, unseal

FORMAT = 1
_WINDOWS = "_tidegate/windows"
_ARCHIVE = "archive.json"


class ProblemKind(StrEnum):
    MISSING = "missing"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be packed."""

    kind: ProblemKind
    uid: str
    location: str
    created_at: str
    message: str
    skipped: bool
    """By policy. Otherwise the window stays open because of it."""


@dataclass(frozen=True, slots=True)
class ShardRecord:
    key: str
    sha256: str
    bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class PartReceipt:
    """Evidence that a part of a window is packed: every shard in it was read back."""

    part: str
    shards: tuple[ShardRecord, ...] = ()
    listed: int = 0
    packed: int = 0
    bytes: int = 0
    already: int = 0
    """Files that an earlier window has packed with the same content."""
    repeated: int = 0
    """Rows that name a file of this window once more."""
    skipped: int = 0

    @property
    def whole(self) -> bool:
        """Whether every row of the part ended somewhere."""
        return self.listed == self.packed + self.already + self.repeated + self.skipped

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PartReceipt:
        return cls(**{**data, "shards": tuple(ShardRecord(**shard) for shard in data["shards"])})


@dataclass(frozen=True, slots=True)
class Listing:
    """The complete listing of a window: how many rows each part has, and the files they stand in."""

    rows: int
    parts: dict[str, int]
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Listing:
        return cls(data["rows"], data["parts"], tuple(data["files"]))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A window that is packed. A shard counts if and only if a manifest names it."""

    run: str
    number: int
    window: Window
    late: bool
    n_bits: int
    shards: tuple[ShardRecord, ...]
    files: int
    bytes: int
    already: int
    repeated: int
    skipped: int
    written_at: str = field(default="")
    given_up: bool = False
    """Nothing of the window counts: the mark was moved, or nobody finished it. It has no shards."""

    @classmethod
    def of_none(cls, run: Run, n_bits: int) -> Manifest:
        """Of a window that is given up. Where it lies, no other manifest can be written any more."""
        return cls(
            run=run.id,
            number=run.number,
            window=run.window,
            late=False,
            n_bits=n_bits,
            shards=(),
            files=0,
            bytes=0,
            already=0,
            repeated=0,
            skipped=0,
            given_up=True,
        )

    @property
    def stored(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "window": self.window.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        fields = {key: value for key, value in data.items() if key != "format"}
        shards = tuple(ShardRecord(**shard) for shard in data["shards"])
        return cls(**{**fields, "shards": shards, "window": Window.from_json(data["window"])})


@dataclass(frozen=True, slots=True)
class WindowFolder:
    """The records of one window."""

    place: ArchivePlace
    name: str

    @classmethod
    def of(cls, place: ArchivePlace, run: Run) -> WindowFolder:
        return cls(place, f"{run.number:015}-{run.id}")

    @property
    def root(self) -> str:
        return f"{_WINDOWS}/{self.name}"

    def listing_file(self, attempt: str, number: int) -> str:
        """Whoever lists a window again leaves the files alone that others may still read."""
        return f"{self.root}/listing/{attempt}-{number:06}.parquet"

    # --- The listing

    def listing(self) -> Listing | None:
        data = self._read("listing.json")
        return Listing.from_json(data) if data is not None else None

    def seal_listing(self, listing: Listing) -> None:
        self.place.put(f"{self.root}/listing.json", seal(listing.to_json()).encode())

    def forget_listing(self) -> None:
        """The window will be listed again: whoever mends a file may also have changed its row."""
        self.place.delete([f"{self.root}/listing.json"])

    # --- Parts

    def receipt(self, part: str) -> PartReceipt | None:
        """One that a power cut has torn is taken away: its part is packed anew."""
        try:
            data = self._read(f"parts/{part}.json")
        except DamagedRecord:
            self.forget_receipts([part])
            return None
        return PartReceipt.from_json(data) if data is not None else None

    def receipts(self) -> set[str]:
        """The parts that have a receipt."""
        found = self.place.list(f"{self.root}/parts")
        return {_part_of(listed.key) for listed in found if listed.key.endswith(".json") and listed.bytes}

    def forget_receipts(self, parts: Iterable[str]) -> None:
        """Their parts will be packed anew."""
        self.place.delete([f"{self.root}/parts/{part}.json" for part in parts])

    def keep_receipt(self, receipt: PartReceipt) -> PartReceipt | None:
        """The receipt that counts: the first one of a part, which says the same as every other would.

        It need not outlast a power cut: the part would be packed anew.
        """
        key = f"{self.root}/parts/{receipt.part}.json"
        written = self.place.jot(key, seal(receipt.to_json()).encode())
        return receipt if written else self.receipt(receipt.part)

    # --- Problems

    def keep_problems(self, part: str, problems: list[Problem]) -> None:
        key = f"{self.root}/problems/{part}.jsonl"
        if problems:
            lines = "".join(json.dumps(asdict(problem)) + "\n" for problem in problems)
            self.place.put(key, lines.encode())
        elif self.place.get(key) is not None:
            self.place.delete([key])

    def forget_problems(self) -> None:
        """Of the parts that will be packed anew; what was left out of the others stays said."""
        packed = self.receipts()
        listed = (listed.key for listed in self.place.list(f"{self.root}/problems"))
        self.place.delete([key for key in listed if _part_of(key) not in packed])

    def problems(self) -> Iterator[Problem]:
        for listed in self.place.list(f"{self.root}/problems"):
            yield from _problems(self.place, listed.key)

    def open_problems(self) -> Iterator[Problem]:
        """Those that keep a part from being packed; where another worker was luckier, they are over."""
        keys = [listed.key for listed in self.place.list(f"{self.root}/problems")]
        packed = self.receipts() if keys else set()
        for key in keys:
            if _part_of(key) not in packed:
                yield from (problem for problem in _problems(self.place, key) if not problem.skipped)

    # --- The manifest

    @property
    def manifest_key(self) -> str:
        return f"{self.root}/manifest.json"

    def manifest(self) -> Manifest | None:
        data = self._read("manifest.json")
        return Manifest.from_json(data) if data is not None else None

    def keep_manifest(self, manifest: Manifest) -> Manifest:
        """From here on the window's shards count. The manifest that was there first is the one."""
        self.place.put_new(self.manifest_key, seal(manifest.to_json()).encode())
        self.place.settle([self.manifest_key])
        found = self.manifest()
        if found is None:
            raise DamagedRecord("the manifest is gone", where=self.place.where(self.manifest_key))
        return found

    def clean(self, *, manifest_too: bool) -> None:
        """Remove what only an open window needs; of a window without files, everything."""
        self.forget_listing()  # first of all: it must not name files that are gone
        scaffolding = [
            listed.key
            for folder in ("listing", "parts")
            for listed in self.place.list(f"{self.root}/{folder}")
        ]
        manifest = [self.manifest_key] if manifest_too else []
        self.place.delete([*scaffolding, *manifest])

    def _read(self, name: str) -> dict[str, Any] | None:
        key = f"{self.root}/{name}"
        data = self.place.get(key)
        return unseal(data, self.place.where(key)) if data is not None else None


def problems_of_all(place: ArchivePlace) -> Iterator[Problem]:
    """Of all windows there ever were, also those that were given up."""
    for listed in place.list(_WINDOWS):
        if "/problems/" in listed.key:
            yield from _problems(place, listed.key)


def _problems(place: ArchivePlace, key: str) -> Iterator[Problem]:
    for line in (place.get(key) or b"").splitlines():
        data = json.loads(line)
        yield Problem(**{**data, "kind": ProblemKind(data["kind"])})


def _part_of(key: str) -> str:
    """The part that a record is of: its name, without what tells its kind."""
    return key.rpartition("/")[2].partition(".")[0]


def windows(place: ArchivePlace) -> Iterator[WindowFolder]:
    """The folders of all windows that are packed, oldest first."""
    for listed in place.list(_WINDOWS):
        folder, _, name = listed.key.rpartition("/")
        if name == "manifest.json":
            yield WindowFolder(place, folder.removeprefix(f"{_WINDOWS}/"))


def manifests(place: ArchivePlace) -> Iterator[Manifest]:
    for folder in windows(place):
        manifest = folder.manifest()
        if manifest is not None:
            yield manifest


def demand_spread(place: ArchivePlace, n_bits: int, *, create: bool) -> None:
    """How uids are spread is decided once: a shard could not be found under another `n_bits`."""
    wanted = {"format": FORMAT, "hash": "sha256", "n_bits": n_bits}
    text = (json.dumps(wanted) + "\n").encode()
    if create and place.put_new(_ARCHIVE, text):
        place.settle([_ARCHIVE])
        return
    found = place.get(_ARCHIVE)
    if found is None:
        return
    try:
        known = json.loads(found)
    except ValueError as error:
        raise DamagedRecord(f"it is not JSON: {error}", where=place.where(_ARCHIVE)) from error
    if known != wanted:
        raise ConfigError(
            f"the archive was begun with n_bits: {known.get('n_bits')}, and the configuration says {n_bits}",
            where=place.where(_ARCHIVE),
            hint="put it back, or choose another `packer.output_dir`",
        )
