"""This package as one file, for executors that do not have it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_COMPILED = "__pycache__"


@cache
def parcel() -> Path:
    """A file to import this package from. Executors may ask for it as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-parcel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "tidegate.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as parcelled:
        for name, part in _parts(files("tidegate"), "tidegate"):
            parcelled.writestr(name, part.read_bytes())
    return path


def _parts(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """All files of the package, wherever it was itself imported from: a folder, or a wheel in one file."""
    for part in sorted(folder.iterdir(), key=lambda part: part.name):
        name = f"{path}/{part.name}"
        if part.is_file():
            yield name, part
        elif part.name != _COMPILED:
            yield from _parts(part, name)
