from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidegate
from tidegate.config.scaffold import write_project
from tidegate.core.errors import UsageError
from tidegate.sync.progress import Silence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def test_sync_from_python_returns_what_it_did(project: Path, spark: SparkSession) -> None:
    result = tidegate.sync(project=project, pipeline="shop", tables=["orders", "c*"])
    assert isinstance(result, tidegate.SyncResult)
    assert (result.status, result.exit_code) == ("success", 0)
    assert {name: table.rows_loaded for name, table in result.tables.items()} == {
        "orders": 5,
        "customers": 3,
        "countries": 4,
    }
    assert tidegate.sync(str(project), tables="orders").status == "nothing_new"


def test_the_only_pipeline_need_not_be_named_but_one_of_several_must(project: Path) -> None:
    pipelines = project / "config/pipelines"
    text = (pipelines / "shop.yml").read_text().replace("name: shop", "name: other")
    (pipelines / "other.yml").write_text(text)
    with pytest.raises(UsageError, match="name the pipeline"):
        tidegate.sync(project)


def test_an_unknown_table_is_raised_before_anything_is_done(project: Path) -> None:
    with pytest.raises(UsageError, match="orders"):
        tidegate.sync(project, tables=["ordrs"], progress=Silence())
    assert not (project / "state").exists()
