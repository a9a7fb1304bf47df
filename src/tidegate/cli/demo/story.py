"""The story the demo tells: first sync, changes, second sync, a run killed and run again, and the proof."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate.cli.demo import proof, shop
from tidegate.cli.invocation import Invocation
from tidegate.cli.results import show_results
from tidegate.cli.signals import stopping
from tidegate.cli.watching import AnnouncedSession, Watched
from tidegate.config.project import Project
from tidegate.config.scaffold import write_project
from tidegate.core.errors import SourceError, UsageError, VerificationFailed
from tidegate.core.watermark import StreamId, Watermark
from tidegate.observe.figures import counted, span
from tidegate.observe.logs import LoggedProgress
from tidegate.observe.terminal import Cell, Terminal, Tone, Toned
from tidegate.state.clock import new_token, now
from tidegate.state.opening import open_store
from tidegate.sync.library import open_parts, spark_settings
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.result import SyncResult

_MARKER = ".tidegate-demo"
_OURS = (
    "config/connections.yml",
    "config/pipelines/shop.yml",
    ".env.example",
    ".gitignore",
    "shop.db",
    "shop.db-journal",
    "warehouse.duckdb",
    "warehouse.duckdb.wal",
)
_KEYS = {"products": "code", "customers": "id", "orders": "id", "payments": "id"}
_CHUNKS = 30
_POLL_SECONDS = 0.02

_PIPELINE = """\
# The demo's pipeline: four tables, followed in four ways.

pipeline:
  name: shop
  source: shop
  target: warehouse
  staging: files
  state: default
  processing: {{batch_size: {batch_size}}}

tables:
  orders:                           # changes are found by timestamp, then id
    cdc_strategy: hybrid
    cdc_timestamp_column: updated_at
    cdc_id_column: id

  customers:                        # by timestamp alone: equal ones are never split
    cdc_strategy: timestamp_only
    cdc_timestamp_column: updated_at

  payments:                         # rows are only ever added
    cdc_strategy: id_only
    cdc_id_column: id

  products:                         # small: read whole and replaced every time
    cdc_strategy: full_sync
"""


def command_in(folder: Path) -> str:
    """How a person calls Tidegate in the folder: `uv run` knows the command by a PATH that ends with it."""
    if "UV" not in os.environ:
        return "tidegate"
    return os.path.relpath(Path(sys.executable).with_name("tidegate"), folder.resolve())


def tell(invocation: Invocation, folder: Path, rows: int) -> int:
    began = time.monotonic()
    story = _Story(invocation.terminal, _prepare(folder), rows, now())
    story.first_sync()
    story.second_sync()
    story.killed_run()
    return story.end(began)


def _prepare(folder: Path) -> Path:
    """A folder that is new, empty, or an earlier demo's, of which only the demo's own files are removed."""
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARKER).is_file():
        raise UsageError(
            "the folder is neither empty nor an earlier demo's, so nothing was written there",
            where=str(folder),
            hint="name another one with --dir",
        )
    folder.mkdir(parents=True, exist_ok=True)
    _remove_earlier(folder)
    (folder / _MARKER).write_text("`tidegate demo` may delete and rewrite its files in this folder.\n")
    return folder


def _remove_earlier(folder: Path) -> None:
    import shutil

    for name in ("staging", "state"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in _OURS:
        (folder / name).unlink(missing_ok=True)


@dataclass
class _Story:
    terminal: Terminal
    folder: Path
    rows: int
    today: datetime

    def __post_init__(self) -> None:
        self.shop = self.folder / "shop.db"
        self.warehouse = self.folder / "warehouse.duckdb"
        self.chapter = 0
        self.terminal.say("Tidegate: a shop's tables travel to a warehouse, exactly once.", Tone.STRONG)
        self.terminal.say(f"Everything here is generated and stays in {self.folder}.")

    # --- Chapters ----------------------------------------------------------------

    def first_sync(self) -> None:
        self._heading("A shop, and an empty warehouse")
        write_project(self.folder)
        self.shop.unlink()
        pipeline = _PIPELINE.format(batch_size=self._batch_size)
        (self.folder / "config/pipelines/shop.yml").write_text(pipeline, encoding="utf-8")
        made = shop.create(self.shop, self.rows, begin=self._ago(days=90), end=self._ago(hours=3))
        self._say(f"{', '.join(f'{count:,} {table}' for table, count in made.items())} in {self.shop}")
        self._say("First sync: everything is new. Spark starts now, which takes a few seconds.")
        self.project = Project.load(self.folder)
        self.pipeline = self.project.pipeline("shop")
        self.store = open_store(self.pipeline.state)
        self.session = AnnouncedSession(spark_settings(self.project))
        self._sync()

    def second_sync(self) -> None:
        self._heading("Life goes on in the shop")
        for change in shop.change(self.shop, begin=self._ago(hours=2), end=self._ago(hours=1)):
            self._say(f"{change.rows:>9,}  {change.what}")
        self._say("Second sync: only what changed travels. The marks say where to begin.")
        self._sync()

    def killed_run(self) -> None:
        self._heading("A run is killed half-way")
        before = self._mark()
        at, total = self._kill()
        self._say("Now simply the same command again: it takes the dead run's lease over, and goes on.")
        result = self._sync().tables["orders"]
        done = _chunks_done(at)
        self._say(
            f"{done} chunks were safe and were not read again; the other {total - done} were: "
            f"{counted(result.rows_extracted, 'row')} extracted, {result.rows_loaded:,} loaded."
        )
        self._marks({"before": before, "when killed": at, "after": self._mark()})

    def _kill(self) -> tuple[Watermark, int]:
        """Change much, sync it in a process of its own, and kill that when half of it is committed.

        Returns the mark it left, and how many chunks there were.
        """
        begin = self._ago(minutes=40)
        change = shop.archive(self.shop, "archived", begin=begin, end=begin + timedelta(minutes=10))
        self._say(f"{change.rows:>9,}  {change.what}")
        self._say("tidegate sync -t orders runs in another process …")
        total = -(-change.rows // self._batch_size)
        at = self._killed_after(max(1, total // 2))
        done = _chunks_done(at)
        self._say(f"… and gets SIGKILL after {done} of {total} chunks. No goodbye, no clean-up.", Tone.WARN)
        held = self.store.read(self._stream).lease
        if held is not None:
            self._say(f"The lease is still there: {held.holder}")
        return at, total

    def _killed_after(self, chunks: int) -> Watermark:
        before = self._mark()
        with _sync_process(self.folder, chunks) as process, self.terminal.watching() as watcher:
            watcher.remark("waiting until part of its chunks are committed")
            while process.poll() is None:
                mark = self._mark()
                if mark.runs > before.runs and _chunks_done(mark) >= chunks:
                    process.kill()
                    return self._mark()
                time.sleep(_POLL_SECONDS)
        hint = f"`tidegate sync --project {self.folder}` shows why"
        raise SourceError("the sync in another process failed", hint=hint)

    def end(self, began: float) -> int:
        self._heading("Proof: source and warehouse, read whole and compared")
        compared = proof.compare(self.shop, self.warehouse, _KEYS)
        rows: list[list[Cell]] = [
            [
                item.table,
                f"{item.source.rows:,}",
                f"{item.warehouse.rows:,}",
                item.source.checksum[:12],
                item.warehouse.checksum[:12],
                Toned("yes", Tone.GOOD) if item.agree else Toned("NO", Tone.BAD),
            ]
            for item in compared
        ]
        headings = ["table", "rows: shop", "warehouse", "checksum: shop", "warehouse", "agree"]
        self.terminal.table(headings, rows)
        if not all(item.agree for item in compared):
            raise VerificationFailed("source and warehouse differ", where=str(self.folder))
        self._what_next(time.monotonic() - began)
        return 0

    def _what_next(self, seconds: float) -> None:
        self._say(f"That took {span(seconds)}. The project stays in {self.folder}; try there:")
        command = command_in(self.folder)
        self.terminal.table(
            ["command", "what it shows"],
            [
                [f"cd {self.folder}", ""],
                [f"{command} status", "all tables at a glance"],
                [f"{command} watermark history -t orders", "every run, with its window"],
                [f"{command} sync --dry-run", "what the next sync would do"],
                [
                    f"{command} watermark reset -t orders --loaded-only",
                    "then sync: loaded again, doubled nothing",
                ],
                [f"{command} staging list", "the Parquet files in between"],
            ],
        )

    # --- What the chapters share ---------------------------------------------------

    @property
    def _batch_size(self) -> int:
        return max(self.rows // _CHUNKS, 10)

    @property
    def _stream(self) -> StreamId:
        return StreamId("shop", "orders")

    def _mark(self) -> Watermark:
        mark = self.store.read(self._stream).watermark
        assert mark is not None
        return mark

    def _sync(self) -> SyncResult:
        parts = open_parts(self.pipeline, command="tidegate demo")
        with stopping(gently=False) as stop, self.terminal.watching() as watcher:
            watched = Watched(stop, watcher, LoggedProgress())
            self.session.before = [lambda: watched.remark("starting Spark")]
            self.session.after = [stop.arm]
            try:
                result = sync_pipeline(
                    self.pipeline,
                    Request(),
                    parts=parts,
                    session=self.session,
                    progress=watched,
                    clock=now,
                    token=new_token,
                )
            finally:
                parts.close()
        show_results(self.terminal, [result])
        for table in result.tables.values():
            if table.error is not None:
                raise table.error
        return result

    def _marks(self, marks: dict[str, Watermark]) -> None:
        rows: list[list[Cell]] = [
            [
                when,
                str(mark.extracted.position),
                str(mark.loaded.position),
                f"{len(mark.pending):,}",
                mark.run.id if mark.run else "–",
            ]
            for when, mark in marks.items()
        ]
        headings = ["orders", "extracted up to", "loaded up to", "pending files", "run"]
        self.terminal.table(headings, rows)

    def _ago(self, **span_: Any) -> datetime:
        return self.today - timedelta(**span_)

    def _heading(self, text: str) -> None:
        self.chapter += 1
        self.terminal.say()
        self.terminal.say(f"{self.chapter}. {text}", Tone.STRONG)

    def _say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self.terminal.say(f"   {text}", tone)


def _chunks_done(mark: Watermark) -> int:
    """Chunks committed of the run under way."""
    run = mark.run
    return run.chunks_done + run.round.done if run is not None and run.round is not None else 0


@contextmanager
def _sync_process(folder: Path, chunks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A sync as somebody else would run it, up to some chunk; in the end nothing of it is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.demo.half_way", str(folder), str(chunks)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        # Its JVM would notice and end by itself, but not at once.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
