"""Files to archive: half of them text that compresses, half noise that does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.servers import Server

SMALLEST, LARGEST = 1 << 10, 64 << 10
FOLDERS = 256
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_POOL = 64 << 20
_WORDS = 4_000
_APART = timedelta(seconds=1)


@dataclass(frozen=True)
class Files:
    """A folder of files, and how many bytes they hold."""

    folder: Path
    count: int
    bytes: int

    def paths(self) -> Iterator[tuple[str, Path]]:
        return ((f"file-{number:09}", path_of(self.folder, number)) for number in range(self.count))


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number % FOLDERS:02x}" / f"{number:09}"


def write_files(folder: Path, count: int) -> Files:
    """Each is a piece of a large pool, so that no compressor finds the same piece twice within its reach."""
    noise = random.Random(17)
    pools = [_text(noise), noise.randbytes(_POOL)]
    for number in range(FOLDERS):
        (folder / f"{number:02x}").mkdir(parents=True)
    total = 0
    for number in range(count):
        size = noise.randint(SMALLEST, LARGEST)
        begin = noise.randrange(_POOL - size)
        path_of(folder, number).write_bytes(pools[number % 2][begin : begin + size])
        total += size
    return Files(folder, count, total)


def _text(noise: random.Random) -> bytes:
    """Words as they come in records: few of them often, many of them seldom, and numbers in between."""
    words = [noise.randbytes(noise.randint(1, 5)).hex() for _ in range(_WORDS)]
    often = [1 / (place + 1) for place in range(_WORDS)]
    text = bytearray()
    while len(text) < _POOL:
        line = noise.choices(words, often, k=200)
        text += f"{noise.getrandbits(40)} {' '.join(line)}\n".encode()
    return bytes(text[:_POOL])


def fill_table(server: Server, table: str, files: Files) -> None:
    """List the files as those do who archive row by row today, with their flag and the index on it."""
    server.execute(
        f"CREATE TABLE {table} (uid text PRIMARY KEY, created_at timestamptz NOT NULL, "
        "file_location text NOT NULL, archived boolean NOT NULL DEFAULT false)"
    )
    server.execute(f"CREATE INDEX ON {table} (created_at)")
    server.execute(f"CREATE INDEX ON {table} (created_at) WHERE NOT archived")
    with server.connect(autocommit=True) as session:  # type: ignore[attr-defined]
        copy = f"COPY {table} (uid, created_at, file_location) FROM STDIN"
        with session.cursor() as cursor, cursor.copy(copy) as rows:
            for number, (uid, path) in enumerate(files.paths()):
                rows.write_row((uid, BEGIN + number * _APART, str(path)))
    server.execute(f"ANALYZE {table}")
