"""`tidegate init --from-source` writes a pipeline that can be run as it stands, and overwrites nothing."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.conftest import Run, Shop
from tidegate.config.project import Project
from tidegate.core.strategies import Strategy
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.sync.suggesting import pipeline_text, suggest

ID = Column("id", DataType(Kind.INT64), nullable=False)
CODE = Column("code", DataType(Kind.TEXT), nullable=False)
CREATED = Column("created_at", DataType(Kind.INSTANT), nullable=False)
UPDATED = Column("updated_at", DataType(Kind.INSTANT), nullable=False)


@pytest.mark.parametrize(
    ("schema", "strategy", "cursor"),
    [
        (Schema((ID, CREATED, UPDATED), ("id",)), Strategy.HYBRID, ("updated_at", "id")),
        (Schema((CODE, UPDATED), ("code",)), Strategy.TIMESTAMP_ONLY, ("updated_at", None)),
        (Schema((ID, CODE, UPDATED), ("id", "code")), Strategy.TIMESTAMP_ONLY, ("updated_at", None)),
        (Schema((ID, CREATED), ("id",)), Strategy.FULL_SYNC, (None, None)),
        (Schema((CODE,)), Strategy.FULL_SYNC, (None, None)),
    ],
)
def test_a_table_is_followed_by_what_tells_that_a_row_has_changed_or_else_read_whole(
    schema: Schema, strategy: Strategy, cursor: tuple[str | None, str | None]
) -> None:
    suggestion = suggest(schema)
    assert (suggestion.strategy, (suggestion.timestamp, suggestion.id)) == (strategy, cursor)


def test_a_column_that_always_tells_is_preferred_to_one_that_may_be_null() -> None:
    sometimes = Column("last_modified", DataType(Kind.TIMESTAMP))
    assert suggest(Schema((ID, sometimes, UPDATED), ("id",))).timestamp == "updated_at"
    assert "may be NULL" in suggest(Schema((ID, sometimes), ("id",))).remarks[0]


def test_a_text_or_a_person_named_after_changes_is_not_taken_for_a_moment() -> None:
    who = Column("updated_by", DataType(Kind.TEXT))
    assert suggest(Schema((ID, who), ("id",))).strategy is Strategy.FULL_SYNC


def test_the_pipeline_it_writes_is_valid(shop: Shop, run: Run) -> None:
    shop.execute(
        """
        CREATE TABLE "no" (code TEXT PRIMARY KEY, "changed: when" TIMESTAMP NOT NULL);
        INSERT INTO "no" VALUES ('a', '2025-01-01 00:00:00');
        """
    )
    result = run("init", "--from-source", "shop", "-p", "all")
    assert result.exit_code == 0, result.output
    pipeline = Project.load(shop.root).pipeline("all")
    assert {name: pipeline.settings_for(name).strategy for name in pipeline.tables} == {
        "countries": Strategy.FULL_SYNC,
        "customers": Strategy.FULL_SYNC,
        "no": Strategy.TIMESTAMP_ONLY,
        "orders": Strategy.HYBRID,
    }
    assert "cdc_strategy: id_only, cdc_id_column: id" in (shop.root / "config/pipelines/all.yml").read_text()


def test_tables_can_be_chosen_and_what_is_there_is_not_overwritten(shop: Shop, run: Run) -> None:
    before = (shop.root / "config/pipelines/shop.yml").read_bytes()
    refused = run("init", "--from-source", "shop")
    assert (refused.exit_code, "there is such a pipeline already" in refused.stderr) == (2, True)
    assert (shop.root / "config/pipelines/shop.yml").read_bytes() == before

    run("init", "--from-source", "shop", "-p", "some", "-t", "c*")
    assert list(Project.load(shop.root).pipeline("some").tables) == ["countries", "customers"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from-source", "shopp"], "there is no source `shopp`"),
        (["--from-source", "shop", "-p", "a", "-t", "none*"], "shows no such table"),
        (["--from-source", "shop", "-p", "../a"], "cannot be the name of a file"),
        (["--from-source", "shop", "-p", "a", "--target", "x"], "there is no target `x`"),
        (["-p", "a"], "go with --from-source"),
    ],
)
def test_what_cannot_be_meant_is_said_and_nothing_is_written(
    shop: Shop, run: Run, words: list[str], said: str
) -> None:
    result = run("init", *words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert [path.name for path in (shop.root / "config/pipelines").iterdir()] == ["shop.yml"]


def test_names_of_any_kind_are_written_so_that_they_are_read_back() -> None:
    names = ["a b", "on", "12", "naïve", "x: y", "#z", '"q"', "two\nlines"]
    text = pipeline_text({"name": "p"}, {name: suggest(Schema((CODE,))) for name in names})
    assert list(yaml.safe_load(text)["tables"]) == names
