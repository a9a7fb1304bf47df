"""Files that are not what they seem, or become something else while they are read."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.archive import files
from tidegate.archive.compressing import WHOLE
from tidegate.archive.files import Files, Unpackable
from tidegate.archive.records import ProblemKind
from tidegate.core.errors import ArchiveError

SIZES = {"small": 700, "large": WHOLE + 5}
sizes = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())


def _read(location: bytes | Path) -> bytes:
    with Files().open(os.fsencode(location)) as file:
        return file.whole() if file.size <= WHOLE else b"".join(file.content())


def _kind(location: bytes | Path) -> ProblemKind:
    with pytest.raises(Unpackable) as caught:
        _read(location)
    return caught.value.kind


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen once, right after a piece of a file was read."""

    def arrange(act: Callable[[], object]) -> None:
        acts, read = [act], files._read  # noqa: SLF001 - in the middle of a file

        def eventful(descriptor: int, length: int) -> bytes:
            data = read(descriptor, length)
            if acts:
                acts.pop()()
            return data

        monkeypatch.setattr(files, "_read", eventful)

    return arrange


Meanwhile = Callable[[Callable[[], object]], None]


@sizes
def test_a_file_that_is_replaced_while_it_is_read_has_changed(
    tmp_path: Path, size: int, meanwhile: Meanwhile
) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"a" * size)
    other.write_bytes(b"b" * size)
    os.utime(other, ns=(0, path.stat().st_mtime_ns))  # as `cp -p` and rsync leave it
    meanwhile(lambda: other.replace(path))
    assert _kind(path) is ProblemKind.CHANGED
    assert _read(path) == b"b" * size


def test_a_file_whose_date_is_put_back_after_writing_has_changed(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 700)
    before = path.stat().st_mtime_ns

    def rewrite() -> None:
        with path.open("r+b") as file:
            file.write(b"b" * 700)
        os.utime(path, ns=(0, before))

    meanwhile(rewrite)
    assert _kind(path) is ProblemKind.CHANGED


def test_a_file_that_is_being_written_to_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write sets the date when it begins: it may go on until after the last look."""
    path, waited = tmp_path / "file", list[float]()
    path.write_bytes(b"a" * 700)

    def going_on(seconds: float) -> None:
        waited.append(seconds)
        path.write_bytes(b"b" * 700)

    monkeypatch.setattr("time.sleep", going_on)
    with pytest.raises(Unpackable, match="being written to"):
        _read(path)
    assert len(waited) == 1
    monkeypatch.undo()
    assert _read(path) == b"b" * 700


@sizes
def test_a_file_that_is_taken_away_while_it_is_read_was_read_whole(
    tmp_path: Path, size: int, meanwhile: Meanwhile
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * size)
    meanwhile(path.unlink)
    assert _read(path) == b"a" * size


@sizes
@pytest.mark.parametrize("by", [-3, 3], ids=["cut off", "grown"])
def test_a_file_of_another_length_than_before_has_changed(
    tmp_path: Path, size: int, by: int, meanwhile: Meanwhile
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * size)
    meanwhile(lambda: os.truncate(path, size + by))
    assert _kind(path) is ProblemKind.CHANGED


def test_a_file_that_has_more_than_its_size_says_is_not_archived_as_empty() -> None:
    """Some file systems do not know the size of what they show."""
    assert Path("/proc/self/status").stat().st_size == 0
    assert _kind(Path("/proc/self/status")) is ProblemKind.CHANGED


@pytest.mark.parametrize(
    "moment", [-86_400 * 10**9, 1, 4_000_000_000 * 10**9], ids=["before 1970", "1 ns", "2096"]
)
def test_odd_dates_of_files_do_no_harm(tmp_path: Path, moment: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, ns=(moment, moment))
    assert _read(path) == b"content"


def test_links_are_followed_and_holes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "-sparse\n"
    with path.open("wb") as file:
        file.truncate(5_000)
    (tmp_path / "symbolic").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for name in (path.name, "symbolic", "hard"):
        assert _read(tmp_path / name) == bytes(5_000)
    assert Files(root=os.fsencode(tmp_path)).open(b"hard").size == 5_000


def test_a_path_that_looks_like_an_address_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "http:").mkdir()
    (tmp_path / "http:" / "page").write_bytes(b"mirrored")
    assert _read(os.fsencode(tmp_path) + b"/http://page") == b"mirrored"


def test_what_is_no_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("pipe", "loop", "folder", "socket", "n" * 300):
            assert _kind(tmp_path / name) is ProblemKind.UNREADABLE, name
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for name in ("nowhere", "gone", "gone/below"):
        assert _kind(tmp_path / name) is ProblemKind.MISSING, name
    for location in (b"", b"a\0b", b"relative", b"ftp://host/file", b"file://host/file", b"s3://bucket"):
        assert _kind(location) is ProblemKind.UNREADABLE, location
    assert _kind(b"s3://bucket/\xff") is ProblemKind.UNREADABLE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOTCONN], ids=errno.errorcode.get)
def test_troubles_of_the_machine_are_no_troubles_of_a_file(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a policy would leave out all files as soon as a mount is dead."""

    def failing(path: bytes, flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(ArchiveError, match="files cannot be read now"):
        _read(tmp_path / "file")
