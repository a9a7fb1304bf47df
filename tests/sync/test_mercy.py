from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.config.settings import Mercy, TableSettings
from tidegate.core.strategies import Strategy
from tidegate.sync.mercy import Allowance


def settings(parallelism: int | None = None) -> TableSettings:
    return TableSettings("orders", "orders", Strategy.HYBRID, parallelism=parallelism, batch_size=50_000)


@pytest.mark.parametrize(
    ("tables", "tasks", "cores", "parallelism", "rows"),
    [
        (1, None, 1, None, 50_000),
        (1, None, 4, None, 25_000),
        (2, None, 4, None, 12_500),
        (2, 2, 4, None, 25_000),
        (1, None, 4, 10, 10_000),
        (1, None, None, None, 12_500),
    ],
)
def test_the_chunks_that_are_read_at_once_are_five_seconds_of_the_rate_together(
    tables: int, tasks: int | None, cores: int | None, parallelism: int | None, rows: int
) -> None:
    allowance = Allowance(Mercy(max_rows_per_second=20_000), tables, tasks, cores)
    assert allowance.settings(settings(parallelism)).batch_size == rows


def test_without_a_rate_chunks_are_as_large_as_they_were() -> None:
    allowance = Allowance(Mercy(max_replica_lag=timedelta(seconds=1)), 2, 2, 8)
    assert allowance.settings(settings()).batch_size == 50_000
