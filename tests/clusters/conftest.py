from __future__ import annotations

import pytest

from tests.spark_servers import SparkServer
from tests.system.conftest import build

__all__ = ["build"]


@pytest.fixture(params=["standalone", "connect"])
def spark_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, spark_kind: str) -> SparkServer:
    found = request.getfixturevalue(f"spark_{spark_kind}")
    assert isinstance(found, SparkServer)
    return found
