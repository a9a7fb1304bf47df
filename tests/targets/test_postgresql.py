"""PostgreSQL as a target."""

from __future__ import annotations

import pytest

from tests.servers import Server
from tidegate.targets.contract import Target
from tidegate.targets.postgresql import PostgresTarget
from tidegate.testing.targets import TargetContract


def target_in(server: Server, **changes: object) -> PostgresTarget:
    settings = {
        "host": server.host,
        "port": server.port,
        "database": server.database,
        "user": server.user,
        "password": server.password,
    }
    return PostgresTarget(**{**settings, **changes})  # type: ignore[arg-type]


class TestContract(TargetContract):
    @pytest.fixture
    def target(self, postgres_database: Server) -> Target:
        return target_in(postgres_database)
