"""`python -m bench.archive`: packing files beside `tar | zstd`, `zip`, and an UPDATE for every file.

All in one run, on the same files, read once beforehand so that disks are not what is compared; what is
written is synced, and that is part of the time. Packing and `tar | zstd` are pinned to the same two cores, in
turn, at the same levels of zstd; of several rounds the quickest counts. The PostgreSQL server has its durable
defaults.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.contract import ToolFailed
from bench.files import Files, fill_table, write_files
from bench.meter import WHOLE, Measured
from bench.report import MEGA, goal, machine
from bench.running import metered
from tests import servers
from tests.servers import Server
from tidegate.archive.comparing import Comparison, compare
from tidegate.archive.config import read_config

LEVELS = (1, 3)
"""Of zstd: what Tidegate packs with by default, and what `zstd` does."""
CORES = 2
COMPARED = 2
"""One file in so many is what `compare` packs: 100,000, as in the older tool's own comparison."""
ZIPPED = 10
"""One file in so many is zipped: zip takes a core, and ten times as long as the others."""
FEW = 10
"""The smaller window that memory is compared with has one file in so many."""
GOAL_TAR = 1.0
GOAL_WORKERS = 1.7
GOAL_MEMORY = 1.25
GOAL_UPDATES = 4.3
BATCH = 1_000
SEED_FILES, SEED_WORKERS = 1_200_000_000, 10
_DAY = 86_400
_DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True)
class Run:
    """One way of packing, and what it cost."""

    name: str
    files: int
    cost: Measured
    written: int

    @property
    def rate(self) -> float:
        return self.files / self.cost.seconds

    def line(self) -> str:
        cost = self.cost
        return (
            f"  {self.name:<34}{self.rate:>9,.0f} files/s{cost.seconds:>8.1f} s"
            f"{cost.client_cpu / self.files * 1e6:>8.0f} µs CPU a file{cost.peak_bytes / MEGA:>8,.0f} MB"
            f"{self.written / MEGA:>9,.0f} MB written"
        )


@dataclass(frozen=True)
class Remembering:
    """Saying of files, one by one, that they are archived."""

    files: int
    seconds: float
    wal_bytes: int


@dataclass
class Bench:
    server: Server
    files: Files
    folder: Path
    runs: dict[str, Run] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def _installed(self) -> dict[str, str]:
        """With its modules compiled, as those of a package are that was used before."""
        return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}

    # --- Other tools

    def piped(self, name: str, zstd: str) -> Run:
        """On the same cores as ours."""
        out = self.folder / "all.tar.zst"
        tar = shlex.join(["tar", "-cf", "-", "-C", str(self.files.folder), "."])
        both = f"{tar} | zstd -q {zstd} > {out} && sync {out}"
        return self._shell(name, f"{_pinned(CORES)} bash -c {shlex.quote(both)}", out, self.files.count)

    def zipped(self) -> Run:
        out = self.folder / "some.zip"
        folders = sorted(os.listdir(self.files.folder))[::ZIPPED]  # noqa: PTH208
        count = sum(len(os.listdir(self.files.folder / name)) for name in folders)  # noqa: PTH208
        command = f"cd {self.files.folder} && zip -q -r {out} {' '.join(folders)} && sync {out}"
        return self._shell("zip, a tenth of the files", command, out, count)

    def _shell(self, name: str, command: str, out: Path, files: int) -> Run:
        found = self._metered(f"set -eo pipefail; {command}")
        run = Run(name, files, found[WHOLE], out.stat().st_size)
        out.unlink()
        return self._kept(run)

    def _metered(self, command: str, env: Mapping[str, str] | None = None) -> dict[str, Measured]:
        os.sync()  # what the last run has left to be written is not for this one to wait for
        return metered(["bash", "-c", command], self.server, self.folder / "meter", env)

    # --- Tidegate

    def tidegate(
        self, name: str, *, workers: int = 1, level: int = 1, engine: str = "process", few: bool = False
    ) -> Run:
        count = self.files.count // FEW if few else self.files.count
        table = "few" if few else "files"
        shards = self.folder / f"shards-{next(self._numbers)}"
        config = self._configured(table, shards, {"engine": engine, "compression_level": level})
        self.server.execute("DROP TABLE IF EXISTS des_archive_config")
        pinned = shlex.split(_pinned(CORES if engine == "spark" else workers))
        archive = [*pinned, sys.executable, "-m", "tidegate.cli", "archive", "run", "--config", str(config)]
        each = [
            shlex.join([*archive, "--workers", str(workers), "--worker-id", str(n)]) for n in range(workers)
        ]
        together = " & ".join(each) + " & wait -n" + " && wait -n" * (workers - 1)
        found = self._metered(together, self._installed)
        written = [path.stat().st_size for path in (shards / "v1").rglob("*.zip")]
        _demand_all(config, count)
        _empty(shards)
        return self._kept(Run(name, count, found[WHOLE], sum(written)))

    def _configured(self, table: str, shards: Path, packer: dict[str, object]) -> Path:
        config = {
            "database": {"url": self.server.url, "table_name": table},
            "packer": {"output_dir": str(shards), **packer},
        }
        path = self.folder / "archive.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    # --- An UPDATE for every file

    def updates(self, files: int, batch: int) -> Remembering:
        """Say of so many files that they are archived, so many to a transaction."""
        update = "UPDATE files SET archived = true WHERE uid = %s"
        uids = [(uid,) for uid, _ in self.files.paths()][:files]
        self.server.execute("CHECKPOINT")
        wal, began = self._wal(), time.monotonic()
        with self.server.connect(autocommit=True) as session:  # type: ignore[attr-defined]
            for begin in range(0, files, batch):
                if batch == 1:
                    session.execute(update, uids[begin], prepare=True)
                    continue
                with session.transaction(), session.cursor() as cursor:
                    cursor.executemany(update, uids[begin : begin + batch])
        found = Remembering(files, time.monotonic() - began, self._wal() - wal)
        self.server.execute("UPDATE files SET archived = false WHERE archived")
        self.server.execute("VACUUM FULL files")
        return found

    def compared(self, records: int) -> Comparison:
        config = self._configured("files", self.folder / "compared", {"engine": "process"})
        return compare(read_config(config), records)

    def _wal(self) -> int:
        [(place,)] = self.server.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(place)

    def _kept(self, run: Run) -> Run:
        """Of several runs of one name the quickest counts: what disturbs one makes it slower."""
        print(run.line(), file=sys.stderr, flush=True)
        best = self.runs.get(run.name)
        if best is None or run.cost.seconds < best.cost.seconds:
            self.runs[run.name] = run
        return run


def _pinned(cores: int) -> str:
    """To the first cores that this process may use: always the same ones."""
    mine = sorted(os.sched_getaffinity(0))[:cores]
    return f"taskset --cpu-list {','.join(map(str, mine))}"


def _empty(folder: Path) -> None:
    """Give the room back that a run has taken. The files themselves stay until the end.

    For seconds, an ext4 without a journal goes around every file that was just removed when it makes a new
    one: the run before would slow down the next.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def _demand_all(config: Path, count: int) -> None:
    """A window that is not complete is a failure, and not a time."""
    from tidegate.archive.library import open_place
    from tidegate.archive.records import manifests

    packed = sum(manifest.files for manifest in manifests(open_place(read_config(config))))
    if packed != count:
        raise ToolFailed(f"{packed:,} files are in the archive, and {count:,} were to be packed")


# --- What people read ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    files: Files
    runs: dict[str, Run]
    batched: Remembering
    """An UPDATE of each file, a thousand to a transaction."""
    single: Remembering
    """An UPDATE of each of a tenth of the files, a transaction for each."""
    compared: Comparison
    """What `tidegate archive compare` says of half as many files, which are much smaller."""

    def report(self) -> Iterator[str]:
        count, size = self.files.count, self.files.bytes
        yield f"\n{count:,} files of 1 to 64 KiB, {size / MEGA:,.0f} MB, half of it text; {machine()}"
        yield f"All on {CORES} cores. Tidegate decodes and reads back what it writes, and syncs each shard."
        yield from (run.line() for run in self.runs.values())
        yield from self._updating()
        yield "\nGoals"
        yield from self._goals()
        yield from self._on_paper()

    def _updating(self) -> Iterator[str]:
        yield f"\nthe same with an UPDATE for every file, on a server with {', '.join(_DURABLE)} on:"
        for name, found in (
            (f"{BATCH:,} to a transaction", self.batched),
            ("a transaction each", self.single),
        ):
            total = self._with(found)
            yield (
                f"  {name:<34}{self.files.count / total:>9,.0f} files/s{total:>8.1f} s, "
                f"{found.seconds / found.files * 1e6:,.0f} µs and {found.wal_bytes / found.files:,.0f} bytes "
                f"of WAL to remember a file: {total / self._packing:.2f} × as long"
            )

    @property
    def _packing(self) -> float:
        return self.runs[TWO[1]].cost.seconds

    def _with(self, found: Remembering) -> float:
        """Seconds to pack all files and to remember each of them."""
        return self._packing + found.seconds / found.files * self.files.count

    def _goals(self) -> Iterator[str]:
        for level in LEVELS:
            for peer in (TAR[level], TAR_ALL[level]):
                ratio = self.runs[TWO[level]].rate / self.runs[peer].rate
                text = f"2 workers at level {level} at least as fast as {peer}: {ratio:.2f} ×"
                yield goal(text, reached=ratio >= GOAL_TAR)
        workers = self.runs[TWO[1]].rate / self.runs[ONE].rate
        yield goal(f"2 workers at least {GOAL_WORKERS} × 1: {workers:.2f} ×", reached=workers >= GOAL_WORKERS)
        grown = self.runs[ONE].cost.peak_bytes / self.runs[SOME].cost.peak_bytes
        yield goal(f"memory for {FEW} times the files: {grown:.2f} ×", reached=grown <= GOAL_MEMORY)
        peer = self.compared.per_record
        times, less = self.compared.times_faster(peer), self.compared.times_less_wal(peer)
        text = f"compare: at least {GOAL_UPDATES} × as fast as an UPDATE for each file: {times:.2f} ×"
        yield goal(f"{text}, {less:,.0f} × less WAL", reached=times >= GOAL_UPDATES)

    def _on_paper(self) -> Iterator[str]:
        """From the rate of one worker on one core of this machine."""
        days = SEED_FILES / (self.runs[ONE].rate * SEED_WORKERS) / _DAY
        workers = f"{SEED_WORKERS} workers of a core each"
        yield f"\nOn paper: {SEED_FILES:,} such files on {workers}: {days:.1f} days"


ONE, SOME, SPARK = "tidegate, 1 worker", "tidegate, a tenth of the files", "tidegate, Spark"
TWO = {level: f"tidegate, 2 workers, level {level}" for level in LEVELS}
TAR = {level: f"tar | zstd -{level}" for level in LEVELS}
TAR_ALL = {level: f"tar | zstd -{level} -T0" for level in LEVELS}


def measure(server: Server, count: int, rounds: int, folder: Path) -> Findings:
    for setting in _DURABLE:
        if server.execute(f"SHOW {setting}") != [("on",)]:
            raise ToolFailed(f"{setting} is not on: remembering would cost less than it does elsewhere")
    files = write_files(folder / "files", count)
    fill_table(server, "files", files)
    fill_table(server, "few", Files(files.folder, count // FEW, 0))
    bench = Bench(server, files, folder)
    bench.piped("to warm up", "-1")
    bench.tidegate("to warm up", few=True)
    bench.runs.clear()
    for _ in range(rounds):
        for level in LEVELS:
            bench.piped(TAR[level], f"-{level}")
            bench.tidegate(TWO[level], workers=2, level=level)
            bench.piped(TAR_ALL[level], f"-{level} -T0")
        bench.tidegate(ONE)
    bench.tidegate(SOME, few=True)
    bench.tidegate(SPARK, engine="spark")
    bench.zipped()
    return Findings(
        files,
        bench.runs,
        batched=bench.updates(count, BATCH),
        single=bench.updates(count // ZIPPED, 1),
        compared=bench.compared(count // COMPARED),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    parser.add_argument("--files", type=int, default=200_000, help="how many files (200,000)")
    parser.add_argument("--rounds", type=int, default=3, help="of what is held against each other (3)")
    options = parser.parse_args()
    with (
        servers.postgres(durable=True) as postgres,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
    ):
        found = measure(postgres, options.files, options.rounds, Path(folder))
    print("\n".join(found.report()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
