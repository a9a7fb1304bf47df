"""Sources on the servers of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tests import servers
from tests.servers import Server
from tidegate.sources.contract import Source
from tidegate.sources.opening import open_source

Opened = Callable[..., Source]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens sources, and closes them when the test is over."""
    with ExitStack() as stack:

        def open_(server: Server, primary: Server | None = None) -> Source:
            source = open_source(
                SimpleNamespace(**server.config), SimpleNamespace(**primary.config) if primary else None
            )
            stack.callback(source.close)
            return source

        yield open_


@pytest.fixture(scope="session")
def mariadb_berlin() -> Iterator[Server]:
    """MariaDB on a machine whose clock is set back in autumn."""
    with servers.mariadb(system_timezone="Europe/Berlin", time_zone="SYSTEM") as server:
        yield server


@pytest.fixture
def mariadb_source(mariadb_database: Server, opened: Opened) -> Source:
    return opened(mariadb_database)


@pytest.fixture
def postgres_source(postgres_database: Server, opened: Opened) -> Source:
    return opened(postgres_database)
