"""Whatever stands in the files: a valid project, or an error that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.conftest import CONNECTIONS, PIPELINE
from tidegate.config.binding import keys_of
from tidegate.config.connection_models import ConnectionsFile, MySQLSource, S3Config
from tidegate.config.pipeline_models import (
    PipelineFile,
    PipelineOptions,
    PipelineProcessing,
    TableCeiling,
    TableOptions,
)
from tidegate.config.project import Project
from tidegate.core.errors import TidegateError

_MODELS = (
    ConnectionsFile,
    MySQLSource,
    PipelineFile,
    PipelineOptions,
    PipelineProcessing,
    S3Config,
    TableCeiling,
    TableOptions,
)
_KNOWN = sorted(
    {key for model in _MODELS for key in keys_of(model)} | {"sources", "targets", "shop", "orders_*"}
)
_VALUES = [
    "mysql",
    "duckdb",
    "sqlite",
    "local",
    "hybrid",
    "full_sync",
    "merge",
    "shop",
    "warehouse",
    "${A}",
    "${",
    "~",
]

words = st.sampled_from(_KNOWN) | st.text(max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.sampled_from(_VALUES)
    | st.text(max_size=10)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=6),
    max_leaves=25,
)
sections = st.dictionaries(st.sampled_from(_KNOWN), values, max_size=8)
entries = st.dictionaries(words, sections | values, max_size=4)
connections = st.fixed_dictionaries(
    {"connections": st.fixed_dictionaries({"sources": entries, "targets": entries})},
    optional={"staging": entries, "state": entries, "s3_configs": entries, "spark": sections},
)
pipelines = st.fixed_dictionaries({"pipeline": sections | values, "tables": entries | values})


def attempt(root: Path, connections: bytes, pipeline: bytes) -> None:
    """Load and use everything; only our own errors may come of it."""
    folder = root / "config" / "pipelines"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "connections.yml").write_bytes(connections)
    (folder / "shop.yml").write_bytes(pipeline)
    try:
        project = Project.load(root, {"A": "1"})
    except TidegateError as error:
        _check(error)
        return
    project.describe()
    for name in project.pipelines:
        try:
            found = project.pipeline(name)
            for table in found.expand(["orders", "a.b", "orders_1"]):
                found.settings_for(table)
        except TidegateError as error:
            _check(error)


def _check(error: TidegateError) -> None:
    assert error.exit_code == 2
    assert error.message.strip()


def document(data: Any) -> bytes:
    return yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@settings(max_examples=150)
@given(connections | values, pipelines | values)
def test_random_documents_are_projects_or_errors_in_words(root: Path, first: Any, second: Any) -> None:
    attempt(root, document(first), document(second))


@settings(max_examples=200)
@given(values)
def test_a_table_with_random_options_is_settled_or_refused_in_words(root: Path, options: Any) -> None:
    head = {"name": "shop", "source": "shop", "target": "warehouse"}
    data = {"pipeline": head, "tables": {"orders": options, "a.*": options}}
    attempt(root, CONNECTIONS.encode(), document(data))


@settings(max_examples=200)
@given(sections, st.sampled_from(["mysql", "postgresql", "sqlite", None]))
def test_a_random_source_is_understood_or_refused_in_words(
    root: Path, entry: dict[str, Any], kind: str | None
) -> None:
    shop = {**entry, "type": kind} if kind else entry
    data = {
        "connections": {"sources": {"shop": shop}, "targets": {"warehouse": {"type": "duckdb", "path": "w"}}}
    }
    attempt(root, document(data), PIPELINE.encode())


@settings(max_examples=300)
@given(
    st.binary(max_size=60) | st.text(alphabet="ab:-?*&!|>{}[],'\"#%@` \n\t$~<\\", max_size=60).map(str.encode)
)
def test_random_bytes_are_a_project_or_an_error_in_words(root: Path, data: bytes) -> None:
    attempt(root, CONNECTIONS.encode(), data)
    attempt(root, CONNECTIONS.encode() + data, PIPELINE.encode())


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_file_is_a_project_or_an_error_in_words(root: Path, data: st.DataObject) -> None:
    whole = PIPELINE.encode()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    attempt(root, CONNECTIONS.encode(), whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])
