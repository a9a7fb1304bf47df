"""Runs a command under the meter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.contract import ToolFailed
from bench.meter import Measured
from tests.servers import Server

ROOT = Path(__file__).parent.parent


def metered(
    command: list[str], server: Server, folder: Path, env: Mapping[str, str] | None = None
) -> dict[str, Measured]:
    """The cost of each phase of the command. Its output is in `folder`, for when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    report, log = folder / "cost.json", folder / "output.log"
    meter = [sys.executable, "-m", "bench.meter", str(report), str(log), str(server.pid)]
    done = subprocess.run([*meter, *command], cwd=ROOT, env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise ToolFailed(f"{Path(command[0]).name} ended with {done.returncode}:\n{last}")
    return {name: Measured(**cost) for name, cost in json.loads(report.read_text()).items()}
