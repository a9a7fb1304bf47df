"""What people have decided columns shall be called at the target: `column_mappings/*.json` of a project.

One file for each table, made by `tidegate columns map`, to be kept in version control like `config/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegate.core.errors import ConfigError

FOLDER = "column_mappings"


@dataclass(frozen=True, slots=True)
class ColumnMappings:
    """The mappings of one pipeline."""

    root: Path
    pipeline: str

    def of(self, table: str) -> dict[str, str]:
        """The names at the target by those at the source; none if nobody has decided anything."""
        path = self.path(table)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise self._wrong(path, f"it cannot be read: {error}") from error
        try:
            data = json.loads(text)
        except ValueError as error:
            raise self._wrong(path, f"it is not JSON: {error}") from error
        return self._checked(path, data)

    def save(self, table: str, columns: Mapping[str, str]) -> Path:
        """Write the mapping of a table, whole or not at all; without columns there is no file."""
        path = self.path(table)
        if not columns:
            path.unlink(missing_ok=True)
            return path
        path.parent.mkdir(exist_ok=True)
        data = {"pipeline": self.pipeline, "table": table, "columns": dict(columns)}
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
        return path

    def path(self, table: str) -> Path:
        """Pipelines and tables may have any name, a file may not; a long one is told by its digest."""
        name = f"{quote(self.pipeline, safe=' ')}.{quote(table, safe=' ')}"
        return self.root / FOLDER / f"{_short(name)}.json"

    def _checked(self, path: Path, data: Any) -> dict[str, str]:
        columns = data.get("columns") if isinstance(data, dict) else None
        if not isinstance(columns, dict) or not all(
            isinstance(name, str) and name for name in columns.values()
        ):
            raise self._wrong(path, "it has no `columns` that map names to names")
        return columns

    def _wrong(self, path: Path, problem: str) -> ConfigError:
        return ConfigError(
            problem,
            where=path.relative_to(self.root).as_posix(),
            hint="correct the file, or delete it and map the columns again with `tidegate columns map`",
        )


def _short(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    import hashlib

    return f"{name[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


_LONGEST = 180
