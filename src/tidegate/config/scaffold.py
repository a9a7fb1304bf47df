"""What `tidegate init` writes: a project that works as it is, to be edited into one's own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidegate.core.errors import UsageError

_CONNECTIONS = """\
# Where data comes from, where it goes, and where it rests in between.
# ${VAR} is taken from the environment, or from the file .env beside this folder.
# Relative paths begin at the folder that holds config/.

connections:
  sources:
    shop:
      type: sqlite
      path: shop.db

    # crm:
    #   type: mysql                 # MySQL or MariaDB
    #   host: db.example.com
    #   port: 3306
    #   database: crm
    #   username: "${CRM_USER}"
    #   password: "${CRM_PASSWORD}"
    #   tls: {mode: verify-full, ca: ca.pem}

    # billing:
    #   type: postgresql
    #   host: billing.example.com
    #   port: 5432
    #   database: billing
    #   schema: public
    #   username: "${BILLING_USER}"
    #   password: "${BILLING_PASSWORD}"

  targets:
    warehouse:
      type: duckdb
      path: warehouse.duckdb

    # dw:
    #   type: postgresql
    #   host: dw.example.com
    #   database: dw
    #   schema: public
    #   username: "${DW_USER}"
    #   password: "${DW_PASSWORD}"

staging:
  files: {type: local, path: ./staging}

state:
  default: {type: local, path: ./state}

spark:
  master: "local[*]"
"""

_PIPELINE = """\
# What is synced, and how. Run it with: tidegate sync -p shop

pipeline:
  name: shop                        # its marks are kept under this name
  source: shop
  target: warehouse
  staging: files
  state: default
  processing:
    batch_size: 50000               # rows of a chunk

tables:
  orders:                           # changes are found by timestamp, then id
    cdc_timestamp_column: updated_at
    cdc_id_column: id

  customers:                        # rows are only ever added
    cdc_id_column: id

  countries:                        # small: read whole and replaced every time
    cdc_strategy: full_sync
"""

_ENV = """\
# Copy this file to .env and fill it in. The environment of the process wins over .env.

# CRM_USER=
# CRM_PASSWORD=
# BILLING_USER=
# BILLING_PASSWORD=
# DW_USER=
# DW_PASSWORD=
"""

_GITIGNORE = """\
.env
/.tidegate/
/staging/
/state/
*.db
*.duckdb
*.duckdb.wal
"""

_FILES = {
    "config/connections.yml": _CONNECTIONS,
    "config/pipelines/shop.yml": _PIPELINE,
    ".env.example": _ENV,
}

_EXAMPLE = """
CREATE TABLE countries (code TEXT PRIMARY KEY, name TEXT NOT NULL);
INSERT INTO countries VALUES ('DE', 'Germany'), ('JP', 'Japan'), ('KE', 'Kenya'), ('PE', 'Peru');

CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT REFERENCES countries (code));
INSERT INTO customers VALUES (1, 'Asha', 'KE'), (2, 'Bruno', 'PE'), (3, 'Chiyo', 'JP');

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    amount DECIMAL(10, 2) NOT NULL,
    status TEXT NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX orders_by_change ON orders (updated_at, id);
INSERT INTO orders VALUES
    (1, 1, 19.90, 'shipped', '2025-01-06 08:15:00'),
    (2, 2, 5.00, 'shipped', '2025-01-06 09:40:00'),
    (3, 1, 120.00, 'paid', '2025-01-07 11:02:00'),
    (4, 3, 64.25, 'paid', '2025-01-07 11:02:00'),
    (5, 2, 7.75, 'open', '2025-01-08 16:30:00');
"""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What was written, and what was there already and left alone."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def write_project(folder: Path) -> Scaffold:
    """Write a project into a folder, which may exist. Nothing is written if a file would be overwritten.

    A `.gitignore` that is there already is kept: most folders under version control have one.
    """
    database, ignore = folder / "shop.db", folder / ".gitignore"
    texts = {folder / name: text for name, text in _FILES.items()}
    _refuse_existing(folder, [*texts, database])
    kept = (ignore,) if ignore.exists() else ()
    if not kept:
        texts[ignore] = _GITIGNORE
    for path, text in texts.items():
        _write(path, text)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(_EXAMPLE)
    return Scaffold((*texts, database), kept)


def write_pipeline(root: Path, name: str, text: str) -> Path:
    """Write the file of one more pipeline, and overwrite none."""
    path = root / "config" / "pipelines" / f"{name}.yml"
    if path.parent != root / "config" / "pipelines" or name.startswith("."):
        raise UsageError(f"`{name}` cannot be the name of a file", hint="choose another with --pipeline")
    if path.exists():
        raise UsageError(
            "there is such a pipeline already",
            where=str(path),
            hint="nothing was written; choose another name with --pipeline, or move the file away",
        )
    _write(path, text)
    return path


def _refuse_existing(folder: Path, paths: list[Path]) -> None:
    # A connections.yaml or pipelines of one's own would be mixed with the example.
    others = [folder / "config" / "connections.yaml", *(folder / "config" / "pipelines").glob("*.y*ml")]
    found = sorted({path for path in (*paths, *others) if path.exists()})
    if found:
        names = ", ".join(path.relative_to(folder).as_posix() for path in found)
        raise UsageError(
            f"a project is here already: {names}",
            where=str(folder),
            hint="nothing was written; name another folder, or move these files away",
        )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the file: {error.strerror}", where=str(path)) from error
