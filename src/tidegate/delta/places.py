"""Where Delta tables lie: the files of a folder, or of whatever delta-rs can reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tidegate.core.errors import SourceError, UsageError
from tidegate.s3 import S3Place, storage_options


class Folder(Protocol):
    """Files under a place, by their paths in it."""

    def names(self, path: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        ...

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> BinaryIO:
        """The file, to read parts of it."""
        ...

    def has(self, path: str) -> bool: ...


@dataclass(frozen=True)
class LocalFolder:
    root: Path

    def names(self, path: str) -> list[str]:
        try:
            return [entry.name for entry in (self.root / path).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        return (self.root / path).open("rb")

    def has(self, path: str) -> bool:
        return (self.root / path).exists()


@dataclass(frozen=True)
class ObjectFolder:
    """A prefix in an object store, through delta-rs."""

    place: str
    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.place, dict(self.options)))

    def names(self, path: str) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(path, allow_not_found=True))
        return [item.base_name for item in found]

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return file.read()

    def open(self, path: str) -> BinaryIO:
        file: BinaryIO = self._files.open_input_file(path)
        return file

    def has(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._files.get_file_info(path).type != FileType.NotFound)


def folder_at(place: str) -> Folder:
    if "://" not in place:
        return LocalFolder(Path(place))
    return ObjectFolder(address(place), options_for(place))


def address(place: str) -> str:
    """The place without what only says how to get there."""
    return place.partition("?")[0].rstrip("/")


def is_same(place: str, other: str) -> bool:
    """Whether both are one folder."""
    if "://" in place or "://" in other:
        return address(place) == address(other)
    return Path(place).resolve() == Path(other).resolve()


def options_for(place: str) -> dict[str, str]:
    """How delta-rs gets there: what the address says, and the conventions of AWS."""
    return storage_options(S3Place.at(place)) if place.startswith("s3://") else {}


def found(pattern: str, exclude: tuple[str, ...]) -> dict[str, str]:
    """The Delta tables that a pattern of folders leads to, by their names, with where they lie."""
    if "://" in pattern:
        tables = _found_in_store(pattern)
    else:
        paths = sorted(glob(pattern))  # noqa: PTH207 - the pattern may be absolute
        tables = {path: path for path in paths if (Path(path) / "_delta_log").is_dir()}
    return without(exclude, _named(pattern, tables))


def _named(pattern: str, tables: Mapping[str, str]) -> dict[str, str]:
    """Tables by their names. Two under one name would be one, and nobody would miss the other."""
    named: dict[str, str] = {}
    for path, place in tables.items():
        name = _name(pattern, path)
        if name in named:
            raise UsageError(
                f"two tables would both be called `{name}`: {address(named[name])} and {address(place)}",
                hint="name the upstreams one by one, or move one of the folders",
            )
        named[name] = place
    return named


def without(exclude: tuple[str, ...], tables: Mapping[str, str]) -> dict[str, str]:
    return {name: place for name, place in tables.items() if not any(fnmatchcase(name, no) for no in exclude)}


def _name(pattern: str, path: str) -> str:
    """What the wild part of a pattern stands for: `silver/*` finds `orders`, `lake/*/*` `sales.orders`."""
    wild = [index for index, part in enumerate(Path(pattern).parts) if has_magic(part)]
    parts = Path(path).parts
    return ".".join(parts[wild[0] :]) if wild else parts[-1]


def _found_in_store(pattern: str) -> dict[str, str]:
    """A bucket is listed level by level, as far as the pattern goes."""
    base, _, options = pattern.partition("?")
    scheme, _, rest = base.partition("://")
    bucket, *parts = rest.rstrip("/").split("/")
    if has_magic(bucket):
        raise UsageError(f"the bucket of `{base}` has to be named", hint="wildcards are for folders in it")
    query = f"?{options}" if options else ""
    folder = folder_at(f"{scheme}://{bucket}{query}")
    paths = [""]
    for part in parts:
        paths = [f"{path}/{name}".lstrip("/") for path in paths for name in _matching(folder, path, part)]
    tables = [path for path in paths if folder.names(f"{path}/_delta_log")]
    return {f"{scheme}://{bucket}/{path}": f"{scheme}://{bucket}/{path}{query}" for path in sorted(tables)}


def _matching(folder: Folder, path: str, part: str) -> list[str]:
    if not has_magic(part):
        return [part]
    return [name for name in folder.names(path) if fnmatchcase(name, part) and not name.startswith("_")]


def demand_place(name: str, place: str | None) -> str:
    if place is None:
        raise SourceError(f"nothing says where `{name}` lies", hint="give its `path`")
    return place
