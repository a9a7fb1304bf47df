"""Packing in Spark's tasks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.archive.conftest import Site
from tidegate.archive.contract import Tools
from tidegate.core.errors import ArchiveError
from tidegate.testing.faults import Fault, Faulty, Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def on_spark(site: Site, spark: SparkSession) -> Site:
    site.configure(packer={"n_bits": 4, "engine": "spark"}, spark={"master": "local[2]"})
    return site


def test_tasks_pack_what_a_process_would(on_spark: Site) -> None:
    on_spark.add(150)
    result = on_spark.cycle()
    assert result.files == 150
    on_spark.demand_complete()
    assert on_spark.updates("des_archive_config", 1) == 1
    names = {listed.key for listed in on_spark.place.list("v1")}
    # The same window once more, by this process: the very same shards.
    on_spark.configure(packer={"n_bits": 4, "engine": "process"})
    on_spark.move_mark(result.window.low.values[0])  # type: ignore[union-attr,arg-type]
    assert on_spark.cycle().already == 150
    assert {listed.key for listed in on_spark.place.list("v1")} == names


def test_a_file_that_a_task_cannot_read_stops_the_window(on_spark: Site) -> None:
    uids = on_spark.add(40)
    on_spark.path(uids[11]).unlink()
    with pytest.raises(ArchiveError, match="`file-11` cannot be archived: missing"):
        on_spark.cycle()
    on_spark.configure(packer={"n_bits": 4, "engine": "spark", "on_problem": {"missing": "skip"}})
    assert on_spark.cycle().skipped == 1
    del on_spark.files[uids[11]]
    on_spark.demand_complete()


@pytest.mark.parametrize("method", ["publish", "jot"])
def test_a_window_whose_task_is_killed_is_finished_by_the_next_run(on_spark: Site, method: str) -> None:
    on_spark.add(60)

    def deadly(tools: Tools) -> None:
        fault = Fault(method, moment=Moment.AFTER, only_in_workers=True)
        tools.place = Faulty(tools.place, fault)

    with pytest.raises(ArchiveError, match="Spark task failed"):
        on_spark.cycle(change=deadly)
    on_spark.cycle()
    on_spark.demand_complete()


def test_nothing_to_pack_starts_no_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGABRT)

    monkeypatch.setattr("tidegate.spark.session.start", forbidden)
    site.configure(packer={"engine": "spark"})
    assert site.cycle().moved
