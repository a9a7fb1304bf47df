from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tidegate.config.project import Project
from tidegate.config.scaffold import write_project
from tidegate.core.errors import UsageError


def test_a_new_project_is_valid_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "project"
    written = write_project(folder).written
    assert sorted(path.relative_to(folder).as_posix() for path in written) == [
        ".env.example",
        ".gitignore",
        "config/connections.yml",
        "config/pipelines/shop.yml",
        "shop.db",
    ]
    project = Project.find(folder, {})
    project.validate()
    pipeline = project.pipeline("shop")
    assert (pipeline.source.type, pipeline.target.type) == ("sqlite", "duckdb")
    assert (pipeline.staging.type, pipeline.state.type) == ("local", "local")


def test_the_example_database_has_what_the_pipeline_names(tmp_path: Path) -> None:
    write_project(tmp_path)
    pipeline = Project.load(tmp_path, {}).pipeline("shop")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        for table in pipeline.expand([]):
            settings = pipeline.settings_for(table)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            assert set(settings.cursor.columns) <= set(columns)
            assert database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] > 0


def test_what_is_commented_out_is_valid_too(tmp_path: Path) -> None:
    write_project(tmp_path)
    file = tmp_path / "config" / "connections.yml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line.replace("    # ", "    ", 1) for line in lines))
    names = {line.partition("${")[2].partition("}")[0] for line in lines if '"${' in line}
    project = Project.load(tmp_path, dict.fromkeys(names, "x"))
    project.validate()
    assert {name for name in names if f"# {name}=" not in (tmp_path / ".env.example").read_text()} == set()
    assert set(yaml.safe_load(file.read_text())["connections"]["sources"]) == {"shop", "crm", "billing"}


@pytest.mark.parametrize(
    "existing",
    [
        "config/connections.yml",
        "config/connections.yaml",
        "config/pipelines/mine.yml",
        ".env.example",
        "shop.db",
    ],
)
def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path: Path, existing: str) -> None:
    path = tmp_path / existing
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match=f"a project is here already: {existing}"):
        write_project(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path]
    assert path.read_text() == "mine"


def test_a_gitignore_of_ones_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    assert write_project(tmp_path).kept == (tmp_path / ".gitignore",)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_secrets_and_data_stay_out_of_version_control(tmp_path: Path) -> None:
    write_project(tmp_path)
    ignored = (tmp_path / ".gitignore").read_text().splitlines()
    assert {".env", "/staging/", "/state/", "*.duckdb"} <= set(ignored)


def test_a_file_in_the_folders_place_is_answered_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the file: "):
        write_project(tmp_path / "file")
