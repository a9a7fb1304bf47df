from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.cli.conftest import Run, Shop
from tidegate.cli.root import tidegate


def test_init_writes_a_project_that_is_valid(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = CliRunner().invoke(tidegate, ["init", str(folder)])
    assert result.exit_code == 0
    assert "wrote" in result.stdout
    assert CliRunner().invoke(tidegate, ["config", "validate", "--project", str(folder)]).exit_code == 0


def test_init_overwrites_nothing(shop: Shop) -> None:
    result = CliRunner().invoke(tidegate, ["init", str(shop.root)])
    assert result.exit_code == 2
    assert "nothing was written" in result.stderr


def test_validate_names_file_line_and_nearest_spelling(shop: Shop, run: Run) -> None:
    file = shop.root / "config/pipelines/shop.yml"
    file.write_text(file.read_text().replace("cdc_id_column: id", "cdc_id_colum: id", 1))
    result = run("config", "validate")
    assert result.exit_code == 2
    assert "config/pipelines/shop.yml:" in result.stderr
    assert "cdc_id_column" in result.stderr


def test_show_fills_in_defaults(run: Run) -> None:
    data = json.loads(run("config", "show", "--json").stdout)
    assert data["pipelines"]["shop"]["tables"]["orders"]["batch_size"] == 50000
    assert "batch_size: 50000" in run("config", "show").stdout


def test_list_pipelines_names_them(run: Run) -> None:
    assert json.loads(run("config", "list-pipelines", "--json").stdout)[0]["pipeline"] == "shop"
    assert "warehouse" in run("config", "list-pipelines").stdout


def test_connections_list_shows_where_everything_is(run: Run) -> None:
    text = run("connections", "list").stdout
    for name in ("shop.db", "warehouse.duckdb", "staging", "state"):
        assert name in text
