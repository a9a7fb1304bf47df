"""An archive at work: a real table of files, a folder of shards, and everything read back at the end."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import yaml

from tests.servers import Server
from tidegate.archive.config import ArchiveConfig, read_config
from tidegate.archive.contract import Share, Tools
from tidegate.archive.cycle import Cycle
from tidegate.archive.library import Unwatched, open_place, open_tools
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import manifests
from tidegate.archive.results import CycleResult
from tidegate.archive.shard import Shard
from tidegate.archive.streams import archive_stream, late_stream
from tidegate.archive.verifying import sound_windows, strangers
from tidegate.core.receipts import Segment

LONG_AGO = datetime(2024, 11, 20, tzinfo=UTC)
START = datetime(2024, 11, 1, tzinfo=UTC)


class Listening(Unwatched):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Site:
    """A database with its table of files, and the folder of one archive."""

    server: Server
    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    """What every file in the table holds, by uid."""
    base: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sections of the configuration that stay the same throughout a test."""
    noise: random.Random = field(default_factory=lambda: random.Random(7))
    watching: Listening = field(default_factory=Listening)

    def __post_init__(self) -> None:
        (self.folder / "files").mkdir()
        self.server.execute(
            "CREATE TABLE files (uid text PRIMARY KEY, created_at timestamptz NOT NULL, file_location text, "
            "archived boolean NOT NULL DEFAULT false)"
        )
        self.server.execute("CREATE INDEX ON files (created_at)")
        self.configure()

    # --- Files

    def add(self, count: int, *, at: datetime = LONG_AGO, prefix: str = "file", size: int = 900) -> list[str]:
        """Files of different sizes, some of which compress, a second apart."""
        rows = []
        for number in range(count):
            uid = f"{prefix}-{number}"
            length = self.noise.randint(0, size)
            data = self.noise.randbytes(length) if number % 2 else b"tide" * (length // 4)
            rows.append((uid, at + timedelta(seconds=number), str(self.write(uid, data))))
        self.insert(rows)
        return [row[0] for row in rows]

    def write(self, uid: str, data: bytes) -> Path:
        path = self.folder / "files" / hashlib.sha256(uid.encode()).hexdigest()
        path.write_bytes(data)
        self.files[uid] = data
        return path

    def insert(self, rows: list[tuple[str, datetime, str]]) -> None:
        sql = "INSERT INTO files (uid, created_at, file_location) VALUES (%s, %s, %s)"
        with closing(self.server.connect(autocommit=True)) as connection:
            connection.cursor().executemany(sql, rows)

    def path(self, uid: str) -> Path:
        [location, *_] = self.server.execute("SELECT file_location FROM files WHERE uid = %s", [uid])
        return Path(location[0])

    # --- The archive

    @property
    def config_file(self) -> Path:
        return self.folder / "watermark-config.yaml"

    def configure(self, **sections: Mapping[str, Any]) -> ArchiveConfig:
        data: dict[str, dict[str, Any]] = {
            "database": {"url": self.server.url, "table_name": "files", "lag_days": 7, "page_size": 25},
            "packer": {
                "output_dir": str(self.folder / "shards"),
                "max_shard_size": 20_000,
                "n_bits": 1,
                "engine": "process",
            },
            "watermark": {"config_db_url": self.server.url, "default_archived_until": START.isoformat()},
        }
        for part in (self.base, sections):
            for name, section in part.items():
                data.setdefault(name, {}).update(section)
        self.config_file.write_text(yaml.safe_dump(data), encoding="utf-8")
        return self.config

    @property
    def config(self) -> ArchiveConfig:
        return read_config(self.config_file)

    @property
    def place(self) -> ArchivePlace:
        return open_place(self.config)

    def cycle(
        self, share: Share | None = None, *, late: bool = False, change: Callable[[Tools], None] | None = None
    ) -> CycleResult:
        with open_tools(self.config, command="a test") as tools:
            if change is not None:
                change(tools)
            return Cycle(tools, self.watching, share or Share(), late).run()

    @property
    def mark(self) -> datetime:
        [(moment,)] = self.server.execute("SELECT archived_until FROM des_archive_config WHERE id = 1")
        assert isinstance(moment, datetime)
        return moment

    def move_mark(self, to: datetime) -> None:
        """As somebody would who knows nothing of Tidegate."""
        self.server.execute("UPDATE des_archive_config SET archived_until = %s", [to])

    # --- What must be true

    def archived(self) -> dict[str, bytes]:
        """Every file in every shard that counts, each byte of it checked. A uid is there once."""
        found: dict[str, bytes] = {}
        for manifest in manifests(self.place):
            for record in manifest.shards:
                source = self.place.open(record.key)
                assert source is not None
                assert Shard(source).verify() == record.sha256
                for uid, content in Shard(source).files():
                    assert uid not in found
                    found[uid] = b"".join(content)
        return found

    def demand_archived(self) -> None:
        """Every file, each of them once; and whatever counts would be missed."""
        assert self.archived() == self.files
        assert {folder.manifest_key for folder, found in sound_windows(self.place) if found.files} == {
            segment.key for segment in self.remembered() if segment.rows
        }

    def remembered(self) -> Iterator[Segment]:
        """The manifests that the history knows."""
        with closing(self.place.store()) as store:
            for stream in (archive_stream(self.config), late_stream(self.config)):
                for event in store.history(stream):
                    for segment in event.data["segments"] if event.kind == "loaded" else ():
                        yield Segment.from_json(segment)

    def demand_complete(self) -> None:
        """The same, and no shard that nobody needs."""
        self.demand_archived()
        assert strangers(self.place) == []

    def updates(self, table: str, at_least: int = 0) -> int:
        """How many rows of a table were updated. Sessions report a moment after they have ended."""
        sql = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = %s"
        deadline = time.monotonic() + 20
        while True:
            rows = self.server.execute(sql, [table])
            found = int(rows[0][0]) if rows else 0
            if found >= at_least or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


@pytest.fixture
def site(postgres_database: Server, tmp_path: Path) -> Site:
    return Site(postgres_database, tmp_path)


Kill = Callable[[Site, dict[str, Any]], int]


@pytest.fixture(scope="package")
def kill() -> Iterator[Kill]:
    """The exit code of a cycle with a fault; minus nine when it was killed."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.archive.victim"]
    with subprocess.Popen(command, cwd=root, stdin=PIPE, stdout=PIPE, text=True) as victims:
        assert victims.stdin is not None
        assert victims.stdout is not None

        def killed(site: Site, step: dict[str, Any]) -> int:
            print(json.dumps([str(site.config_file), step]), file=victims.stdin, flush=True)
            return int(victims.stdout.readline())  # type: ignore[union-attr]

        yield killed
        victims.stdin.close()
