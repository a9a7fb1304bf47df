from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observe.test_terminal import ORDERS, Outcome, staged
from tidegate.core.errors import SourceError, UsageError
from tidegate.observe.logs import LoggedProgress, Secrets, configure, remove


@pytest.fixture
def secrets() -> Secrets:
    secrets = Secrets()
    secrets.add(["hunter2", "hunter2hunter2", "ab"])
    return secrets


@pytest.fixture
def log(tmp_path: Path, secrets: Secrets) -> Iterator[Path]:
    handlers = configure(debug=True, file=tmp_path / "logs/it.log", as_json=True, secrets=secrets)
    yield tmp_path / "logs/it.log"
    remove(handlers)


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_json_logs_are_one_object_a_line_with_the_facts_beside_the_words(log: Path) -> None:
    progress = LoggedProgress()
    progress.planned(ORDERS, 3, 100)
    progress.staged(ORDERS, staged(100))
    progress.finished(ORDERS, Outcome(rows_extracted=100))
    planned, stage, finished = lines(log)
    assert planned["event"] == "planned"
    assert (planned["pipeline"], planned["table"], planned["chunks"]) == ("shop", "orders", 3)
    assert stage["rows"] == 100
    assert finished["status"] == "success"


def test_a_failure_is_logged_as_an_error_with_its_trace(log: Path) -> None:
    LoggedProgress().finished(ORDERS, Outcome("failed", error=SourceError("gone")))
    failure, trace = lines(log)
    assert failure["level"] == "error"
    assert "gone" in str(trace["trace"])


def test_no_secret_is_ever_logged(log: Path) -> None:
    error = ValueError("password hunter2hunter2 is wrong")
    logging.getLogger("tidegate.x").error("%s at mysql://u:p4ss@host/db", "hunter2", exc_info=error)
    text = log.read_text()
    assert "hunter2" not in text
    assert "p4ss" not in text
    assert "mysql://u:" in text


def test_no_secret_is_in_the_facts_beside_the_words_either(log: Path) -> None:
    LoggedProgress().note(ORDERS, "mysql://u:p4ss@host/db refused hunter2")
    [noted] = lines(log)
    assert noted["text"] == "mysql://u:•••@host/db refused •••"


def test_a_secret_is_hidden_whole_even_where_it_holds_another(secrets: Secrets) -> None:
    assert secrets.hidden("hunter2hunter2 and hunter2") == "••• and •••"
    assert secrets.hidden("about") == "about"  # too short to be told from a word


def test_a_log_file_that_cannot_be_written_is_a_wrong_usage(tmp_path: Path, secrets: Secrets) -> None:
    with pytest.raises(UsageError):
        configure(debug=False, file=tmp_path, as_json=False, secrets=secrets)


def test_logging_leaves_no_handler_behind(tmp_path: Path, secrets: Secrets) -> None:
    before = list(logging.getLogger().handlers)
    remove(configure(debug=True, file=tmp_path / "a.log", as_json=False, secrets=secrets))
    assert logging.getLogger().handlers == before
