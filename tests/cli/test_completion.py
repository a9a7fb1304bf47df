from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from tests.cli.conftest import Shop
from tidegate.cli.root import tidegate


def complete(*words: str) -> list[str]:
    *args, incomplete = words
    found = ShellComplete(tidegate, {}, "tidegate", "_TIDEGATE_COMPLETE").get_completions(args, incomplete)
    return [item.value for item in found]


def test_commands_complete_and_old_names_do_not() -> None:
    assert complete("s") == ["sync", "staging", "status"]
    assert complete("watermark", "re") == ["reset"]


def test_pipelines_and_tables_complete(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.root)
    assert complete("sync", "-p", "") == ["shop"]
    assert complete("sync", "-t", "c") == ["customers", "countries"]
    assert complete("watermark", "get", "-p", "shop", "-t", "o") == ["orders"]
    assert complete("connections", "test", "-c", "w") == ["warehouse"]


def test_a_project_named_on_the_line_is_the_one_that_completes(shop: Shop) -> None:
    assert complete("--project", str(shop.root), "sync", "-p", "") == ["shop"]
    assert complete("sync", "--project", str(shop.root), "-t", "o") == ["orders"]


def test_without_a_project_nothing_completes_and_nothing_breaks(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert complete("sync", "-p", "") == []
