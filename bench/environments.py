"""Environments of the peers: made on first use below .bench/, never part of the project's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.running import ROOT

CACHE = ROOT / ".bench"


def cache() -> Path:
    """The folder for everything that is downloaded; git does not see it."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    return CACHE


def environment(name: str, *packages: str) -> Path:
    """The `bin` folder of a virtual environment that holds exactly these packages."""
    folder = cache() / name
    wanted = "\n".join(packages)
    stamp = folder / "packages.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = _uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", str(folder)], check=True, cwd=ROOT)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", str(folder), *packages], check=True, cwd=ROOT
        )
        stamp.write_text(wanted)
    return folder / "bin"


def _uv() -> str:
    """The same uv that `make` uses, which may be one of the project's own."""
    return shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
