"""DuckDB as a target."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import duckdb
import pytest

from tidegate.targets.contract import Target
from tidegate.targets.duckdb import DuckDb, DuckDbTarget
from tidegate.testing.targets import TargetContract


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.duckdb"  # a catalog with the same name as its schema


class TestContract(TargetContract):
    renderings: ClassVar[Mapping[str, str]] = {
        "-0": "-0.0",
        "0.00001": ".00001",
        "NaN": "nan",
        "Infinity": "inf",
        "-Infinity": "-inf",
        "\\x": "",
        "\\x00ff5c22270a": "\\x00\\xFF\\x5C\\x22\\x27\\x0A",
        "0001-12-31 BC": "0001-12-31 (BC)",
        "0001-01-01 00:00:00 BC": "0001-01-01 (BC) 00:00:00",
        "0001-01-01 00:00:00.000001+00 BC": "0001-01-01 (BC) 00:00:00.000001+00",
    }

    @pytest.fixture
    def target(self, path: Path) -> Target:
        return DuckDbTarget(path)

    def count_beside(self, target: Target, name: str) -> int:
        assert isinstance(target, DuckDbTarget)
        assert isinstance(target.database, DuckDb)
        with closing(duckdb.connect(target.database.path)) as connection:
            rows = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
        return int(rows[0][0])
