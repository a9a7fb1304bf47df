"""A Delta table's own log, read without Spark: which versions there are, what each did, what can be read.

delta-rs loads the files of a whole table to answer that, and refuses tables with features it does not know.
Here only the names in `_delta_log`, and the commits in question, are looked at.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, BinaryIO
from urllib.parse import unquote
from uuid import UUID

from tidegate.core.errors import SourceError
from tidegate.delta.places import Folder, folder_at

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10}|\.[0-9a-f-]{36})?\.(?:parquet|json)")
"""Whole, in parts, or under a name of its own."""
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""How the path of a file begins that does not lie in the table's own folder."""
_NUMBER = "delta.columnMapping.id"
_CLOCKS_DIFFER = timedelta(days=1)
"""How far the clocks of two writers of a table may be apart."""
_JUST_MADE = 50
"""Commits that can have been made while a folder was listed."""
_MOST_CHECKED = 200
"""Files of a range whose existence is asked for. VACUUM takes the oldest, and they are asked for first."""


@dataclass(frozen=True)
class Metadata:
    """What a table says of itself at a version."""

    table_id: str
    columns: tuple[tuple[str, str], ...]
    """Names and types, in order."""
    feed: bool
    """Whether its commits keep a change data feed."""
    numbers: tuple[tuple[str, int], ...] = ()
    """The numbers of columns, where a table has them: they stay when a column is renamed."""

    def same_columns(self, other: Metadata) -> bool:
        """Whether both have the same columns, in whatever order."""
        return dict(self.columns) == dict(other.columns)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.columns).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, action: dict[str, Any]) -> Metadata:
        fields = json.loads(action["schemaString"])["fields"]
        columns = tuple((item["name"], kind_of(item["type"])) for item in fields)
        configuration = {key.lower(): value for key, value in _pairs(action.get("configuration"))}
        feed = str(configuration.get("delta.enablechangedatafeed", "")).lower() == "true"
        numbered = [(item["name"], item.get("metadata", {}).get(_NUMBER)) for item in fields]
        numbers = tuple((name, number) for name, number in numbered if number is not None)
        return cls(action["id"], columns, feed, numbers)

    def to_json(self) -> dict[str, Any]:
        return {
            "table_id": self.table_id,
            "columns": dict(self.columns),
            "feed": self.feed,
            "numbers": dict(self.numbers),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Metadata:
        columns = tuple((name, kind_of(json.loads(kind))) for name, kind in data["columns"].items())
        numbers = tuple(data["numbers"].items())
        return cls(data["table_id"], columns, data["feed"], numbers)


def kind_of(said: Any) -> str:
    """A type as text, without what its fields say beside theirs: comments, numbers, NULL or not."""
    return json.dumps(_bare(said), sort_keys=True)


def _bare(said: Any) -> Any:
    if isinstance(said, list):
        return [_bare(item) for item in said]
    if isinstance(said, dict):
        return {name: _bare(value) for name, value in said.items() if name not in _BESIDE_A_TYPE}
    return said


_BESIDE_A_TYPE = {"metadata", "nullable", "containsNull", "valueContainsNull"}


def _pairs(configuration: Any) -> list[tuple[str, Any]]:
    """JSON has it as an object, a checkpoint as a list of pairs."""
    return list(configuration.items()) if isinstance(configuration, dict) else list(configuration or ())


@dataclass(frozen=True)
class Commit:
    version: int
    at: datetime | None
    metadata: Metadata | None
    """What it changed the table's metadata to, if it did."""
    feed: tuple[str, ...]
    """Files that a reader of its changes needs: what it kept for that, or else what it added and removed."""
    removed: tuple[str, ...]
    """Files that only older versions have."""
    digest: str
    """Of all that it says: another commit under the same number has another one."""

    @classmethod
    def of(cls, version: int, text: bytes) -> Commit:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        metadata = [Metadata.of(action["metaData"]) for action in actions if "metaData" in action]
        kept = [action["cdc"] for action in actions if "cdc" in action]
        touched = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
        changed = kept or [item for item in touched if item.get("dataChange", True)]
        return cls(
            version,
            _moment(infos[0]) if infos else None,
            metadata[0] if metadata else None,
            _files(changed),
            _files([action["remove"] for action in actions if "remove" in action]),
            hashlib.sha256(text).hexdigest()[:16],
        )


def _files(actions: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """The files of these, and those that say which of their rows are deleted."""
    return tuple(path for item in actions for path in (unquote(item["path"]), *_vector(item)))


def _vector(action: dict[str, Any]) -> tuple[str, ...]:
    """The file of a deletion vector: its name is made from a UUID, written in Z85 behind a folder's name."""
    said = action.get("deletionVector") or {}
    if said.get("storageType") != "u":
        return ()  # it stands in the log itself, or elsewhere
    text = said["pathOrInlineDv"]
    folder, coded = text[:-_CODED_UUID], text[-_CODED_UUID:]
    number = UUID(bytes=base64.b85decode(coded.translate(_Z85)))
    name = f"deletion_vector_{number}.bin"
    return (f"{folder}/{name}" if folder else name,)


_CODED_UUID = 20
_Z85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


def _in_parquet(file: BinaryIO) -> Metadata | None:
    """What a checkpoint, or a part of one, says of the table. What it says of files is left where it is."""
    from pyarrow import parquet

    column = parquet.read_table(file, columns=["metaData"]).column("metaData")
    told = [item for item in column.to_pylist() if item is not None and item.get("id")]
    return Metadata.of(told[0]) if told else None


def _moment(info: dict[str, Any]) -> datetime | None:
    millis = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)


def _unlisted(commits: frozenset[int], folder: Folder) -> set[int]:
    """Commits that were made while the folder was listed: a later one can be in the list, and these not."""
    latest = max(commits, default=0)
    between = range(max(min(commits, default=0), latest - _JUST_MADE), latest)
    return {number for number in between if number not in commits and folder.has(_commit_path(number))}


def _commit_path(version: int) -> str:
    return f"{_LOG}/{version:020}.json"


@dataclass(frozen=True)
class TableLog:
    """The log as it was when it was opened."""

    place: str
    commits: frozenset[int]
    checkpoints: tuple[tuple[int, str], ...]
    """Versions with the names of their files, oldest first."""
    _folder: Folder = field(repr=False)
    _read: dict[int, Commit] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, place: str) -> TableLog:
        """Raises `SourceError` where there is no table."""
        folder = folder_at(place)
        names = folder.names(_LOG)
        commits = frozenset(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))
        checkpoints = sorted(
            (int(found[1]), name) for name in names if (found := _CHECKPOINT.fullmatch(name))
        )
        if not commits and not checkpoints:
            raise SourceError("there is no Delta table", where=place, hint="check the path of the upstream")
        return cls(place, commits | _unlisted(commits, folder), tuple(checkpoints), folder)

    @cached_property
    def latest(self) -> int:
        return max([*self.commits, *(version for version, _ in self.checkpoints)])

    def commit(self, version: int) -> Commit:
        if version not in self._read:
            self._read[version] = Commit.of(version, self._folder.read(_commit_path(version)))
        return self._read[version]

    def digest(self, version: int) -> str | None:
        """What tells the commit of a version from another's; None if it is no longer there."""
        return self.commit(version).digest if version in self.commits else None

    def range(self, low: int, high: int) -> Iterator[Commit]:
        """The commits after `low`, up to and including `high`."""
        return (self.commit(version) for version in range(low + 1, high + 1))

    def metadata(self, version: int) -> Metadata:
        """What the table said of itself at a version: the last commit that changed it, or a checkpoint."""
        for number in range(version, -1, -1):
            told = self._checkpointed(number)
            if told is None and number in self.commits:
                told = self.commit(number).metadata
            if told is not None:
                return told
            if number not in self.commits:
                break
        raise SourceError(
            f"version {version} can no longer be read: its log was cleaned up", where=self.place
        )

    def _checkpointed(self, version: int) -> Metadata | None:
        """What a checkpoint says, if there is one: of its parts, the one that tells may be missing yet."""
        names = (name for number, name in self.checkpoints if number == version)
        return next((told for name in names if (told := self._told(version, f"{_LOG}/{name}"))), None)

    def _told(self, version: int, path: str) -> Metadata | None:
        if path.endswith(".json"):
            return Commit.of(version, self._folder.read(path)).metadata
        with self._folder.open(path) as file:
            return _in_parquet(file)

    def gap(self, low: int, high: int) -> int | None:
        """The first version after `low`, up to `high`, whose commit is no longer there."""
        return next((version for version in range(low + 1, high + 1) if version not in self.commits), None)

    def lost(self, paths: Sequence[str]) -> str | None:
        """A file among these that is gone, as far as is worth asking: not for those of another table, as
        clones have them.
        """
        asked = [path for path in dict.fromkeys(paths) if not _ELSEWHERE.match(path)][:_MOST_CHECKED]
        return next((path for path in asked if not self._folder.has(path)), None)

    def can_rebuild(self, version: int) -> bool:
        """Whether the table as of a version can still be put together from the log."""
        behind = max((number for number, _ in self.checkpoints if number <= version), default=-1)
        return self.gap(behind, version) is None

    def last_before(self, moment: datetime, *, least: int) -> int | None:
        """The last version, from `least` on, up to which every commit was made at or before a moment."""
        known = self._around(moment, least)
        late = next((version for version, at in known if at is not None and at > moment), self.latest + 1)
        return late - 1 if known and late > known[0][0] else None

    def first_since(self, moment: datetime) -> int | None:
        """The first version that was committed at or after a moment; None if none was.

        If the log begins only later, it is one that can no longer be read.
        """
        known = self._around(moment, 0)
        first = next((version for version, at in known if at is not None and at >= moment), None)
        if first is not None and first == known[0][0] and first > 0:
            return first - 1
        return first

    def _around(self, moment: datetime, least: int) -> list[tuple[int, datetime | None]]:
        """Versions and when they were committed, oldest first, from where all are certainly older.

        Writers go by clocks of their own, so a later version may say an earlier time.
        """
        found = []
        for version in range(self.latest, least - 1, -1):
            if version not in self.commits:
                break
            at = self.commit(version).at
            found.append((version, at))
            if at is not None and at < moment - _CLOCKS_DIFFER:
                break
        return found[::-1]
