"""Projects written by the tests themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidegate.config.pipelines import Pipeline
from tidegate.config.project import Project
from tidegate.core.errors import TidegateError

CONNECTIONS = """
connections:
  sources:
    shop: {type: sqlite, path: shop.db}
  targets:
    warehouse: {type: duckdb, path: warehouse.duckdb}
"""

PIPELINE = """
pipeline: {name: shop, source: shop, target: warehouse}
tables:
  orders: {cdc_id_column: id}
"""


class Folder:
    """A project's folder: write files, then load it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.connections(CONNECTIONS)
        self.pipeline(PIPELINE)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).removeprefix("\n"), encoding="utf-8")
        return path

    def connections(self, text: str) -> Folder:
        self.write("config/connections.yml", text)
        return self

    def pipeline(self, text: str, file: str = "shop.yml") -> Folder:
        self.write(f"config/pipelines/{file}", text)
        return self

    def table(self, options: str, pipeline: str = "") -> Folder:
        """One pipeline with one table, `orders`, given its options and the pipeline's as YAML."""
        head = "pipeline:\n  name: shop\n  source: shop\n  target: warehouse\n"
        body = textwrap.indent(textwrap.dedent(options).strip(), "    ")
        more = textwrap.indent(textwrap.dedent(pipeline).strip(), "  ")
        self.write("config/pipelines/shop.yml", f"{head}{more}\ntables:\n  orders:\n{body}\n")
        return self

    def load(self, environ: Mapping[str, str] | None = None) -> Project:
        return Project.load(self.root, environ or {})

    def open(self, name: str = "shop", environ: Mapping[str, str] | None = None) -> Pipeline:
        return self.load(environ).pipeline(name)

    def error(self, name: str = "shop", environ: Mapping[str, str] | None = None) -> str:
        """What a user reads when the pipeline cannot be had."""
        with pytest.raises(TidegateError) as caught:
            self.open(name, environ)
        assert caught.value.exit_code == 2
        return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A project that loads: one pipeline, `shop`, with one table, `orders`."""
    return Folder(tmp_path)
