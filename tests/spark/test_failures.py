"""What a person is told of a Spark job that failed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.servers import closed_port
from tidegate.core.errors import ConnectError, Interrupted, SourceError
from tidegate.delta.running import Processing
from tidegate.spark.failures import in_words
from tidegate.spark.session import LazySession, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT = """Job aborted due to stage failure: Traceback (most recent call last):
  File "worker.py", line 3, in main
{}
  at org.apache.spark.api.python.BasePythonRunner
"""
SOMETHING = cast("SparkSession", object())


@pytest.fixture
def gone() -> Iterator[LazySession]:
    """A session that was begun on a Spark Connect server, where nobody listens any more."""
    with closed_port() as port:
        yield LazySession(SparkSettings(remote=f"sc://127.0.0.1:{port}"), SOMETHING)


def said(error: Exception, session: LazySession) -> BaseException:
    return in_words(error, session, SourceError, where="shop/orders", again="the last proved chunk")


@pytest.mark.parametrize("report", [REPORT, "[PYTHON_EXCEPTION] Traceback: {}\n SQLSTATE: 38000"])
def test_what_a_task_complained_of_is_said(report: str) -> None:
    complaint = report.format("\nOSError: no more rows today")
    found = said(RuntimeError(complaint), LazySession(SparkSettings()))
    assert isinstance(found, SourceError)
    assert found.message == "a Spark task failed: OSError: no more rows today"
    assert str(found.hint).startswith("run it again to go on from the last proved chunk")


def test_a_package_that_tasks_lack_is_named_with_the_way_to_bring_it() -> None:
    report = REPORT.format("ModuleNotFoundError: No module named 'connectorx'\n  OSError: then this")
    found = said(RuntimeError(report), LazySession(SparkSettings()))
    assert "a Spark task failed: ModuleNotFoundError: No module named 'connectorx'" in str(found)
    assert "run-on-a-cluster.md" in str(found)


def test_whatever_it_failed_with_a_server_that_went_away_is_named(gone: LazySession) -> None:
    found = said(RuntimeError(REPORT.format("grpc: whatever")), gone)
    assert isinstance(found, ConnectError)
    assert "the Spark Connect server went away" in str(found)


def test_what_is_in_words_already_stays_as_it_is(gone: LazySession) -> None:
    stopped = Interrupted("its time is up")
    assert said(stopped, gone) is stopped


def test_versions_that_could_not_be_processed_say_that_the_server_went_away(gone: LazySession) -> None:
    nothing: Any = None
    item: Any = SimpleNamespace(name="orders", number=1)
    processing = Processing(nothing, gone, nothing, _upstreams={"orders": nothing})
    outcome = processing._one(nothing, item)  # noqa: SLF001 - it fails at once, since there is no plan
    assert "the Spark Connect server went away" in str(outcome.error)
