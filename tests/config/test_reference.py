"""The reference says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.config.conftest import Folder
from tidegate.config import alerts, connection_models, delta_models, jobs, pipeline_models
from tidegate.config.binding import keys_of
from tidegate.config.kinds import Model

PAGE = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text(encoding="utf-8")
PAGE_OF_RULES = Path(__file__).parents[2] / "docs/how-to/data-quality.md"
MODULES = (connection_models, pipeline_models, alerts, delta_models, jobs)
MODELS = {
    model
    for module in MODULES
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, Model) and model is not Model
}


@pytest.mark.parametrize("model", sorted(MODELS, key=str), ids=lambda model: str(model.__name__))
def test_every_key_is_explained(model: type[Model]) -> None:
    marked = re.findall(r"`[^`\n]*`|^#+ .*$", PAGE, re.MULTILINE)
    assert set(keys_of(model)) <= set(re.findall(r"\w+", " ".join(marked)))


def test_its_examples_are_a_valid_project(folder: Folder) -> None:
    connections, pipeline, delta = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    folder.connections(connections).pipeline(pipeline).pipeline(delta, "gold.yml")
    project = folder.load(dict.fromkeys(re.findall(r"\$\{(\w+)\}", connections), "x"))
    project.validate()
    assert project.pipeline("shop").source.type == "mysql"
    assert project.delta_pipeline("gold").upstreams[0].keys == ("id",)


def test_its_links_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors


def test_the_message_it_shows_is_the_real_one(folder: Folder) -> None:
    folder.table("cdc_stategy: hybrid\ncdc_id_column: id")
    assert folder.error() in PAGE


def test_the_rules_in_the_guide_are_valid(folder: Folder) -> None:
    guide = PAGE_OF_RULES.read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\ntables:\n(.*?)```", guide, re.DOTALL)
    _, _, body = example.partition("orders:\n")
    folder.table("\n".join(line.removeprefix("    ") for line in body.splitlines()))
    rules = folder.load().pipeline("shop").settings_for("orders").validation
    assert rules is not None
    assert (rules.unique_key, len(rules.columns), len(rules.checks)) == (True, 3, 1)
