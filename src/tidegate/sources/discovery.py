"""What was found out about a source's tables, remembered on disk for an hour.

It serves to see whether there is anything new. Before rows are read, the table is looked at afresh: a column
that somebody added a minute ago would otherwise be missing from rows that no later run reads again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate.core.types import Schema

FORMAT = 1
MAX_AGE = timedelta(hours=1)


@dataclass(frozen=True, order=True)
class TableName:
    schema: str
    name: str


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class SchemaCache:
    """The schemas of one source. Shared by the threads of a sync; a file that cannot be used is no file."""

    path: Path | None = None
    """None: only for as long as this object lives."""
    clock: Callable[[], datetime] = _now
    max_age: timedelta = MAX_AGE
    _found: dict[TableName, tuple[datetime, Schema]] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._found.update(_read(self.path))

    def get(self, table: TableName) -> Schema | None:
        with self._turn:
            at, schema = self._found.get(table, (None, None))
        # A moment in the future is not to be trusted: the clock was set back since.
        if at is None or not timedelta(0) <= self.clock() - at < self.max_age:
            return None
        return schema

    def put(self, schemas: Mapping[TableName, Schema]) -> None:
        """Remember what was found just now. Not being able to write it down costs a query next time."""
        if not schemas:
            return
        now = self.clock()
        with self._turn:
            news = any(self._is_news(table, schema, now) for table, schema in schemas.items())
            if not news:
                return
            self._found.update({table: (now, schema) for table, schema in schemas.items()})
            if self.path is not None:
                with suppress(OSError):
                    _write(self.path, self._found)

    def forget(self) -> None:
        """Look at everything anew."""
        with self._turn:
            self._found.clear()

    def _is_news(self, table: TableName, schema: Schema, now: datetime) -> bool:
        """Whether the file would say something else, or for much longer."""
        at, known = self._found.get(table, (now, None))
        return known != schema or not timedelta(0) <= now - at < self.max_age / 2


def _read(path: Path) -> dict[TableName, tuple[datetime, Schema]]:
    """What the file says; nothing, if it is not there or not what we wrote."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            return {}
        return {
            TableName(*item["table"]): (datetime.fromisoformat(item["at"]), Schema.from_json(item["columns"]))
            for item in data["tables"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(path: Path, found: Mapping[TableName, tuple[datetime, Schema]]) -> None:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    tables = [
        {"table": [table.schema, table.name], "at": at.isoformat(), "columns": schema.to_json()}
        for table, (at, schema) in sorted(found.items(), key=lambda item: item[0])
    ]
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_text(json.dumps({"format": FORMAT, "tables": tables}), encoding="utf-8")
    beside.replace(path)
