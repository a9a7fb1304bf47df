"""People who write to a database while it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

from tests.servers import Connection, Server
from tidegate.core.strategies import CeilingSettings

IMPATIENT = CeilingSettings(max_wait=timedelta(milliseconds=300), lag=timedelta(0))
PATIENT = CeilingSettings(max_wait=timedelta(seconds=10), lag=timedelta(0))


@contextmanager
def writer(server: Server) -> Iterator[Connection]:
    """A connection that commits when it is told to."""
    with closing(server.connect()) as connection:
        yield connection


def run(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.cursor().execute(statement)


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    """Something that happens by itself a moment after the block has begun, and has happened after it."""
    timer = threading.Timer(0.5, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def meanwhile(server: Server, *statements: str, autocommit: bool = True) -> Iterator[Connection]:
    """Statements that run in a connection of their own while the block does, and have ended after it."""
    with closing(server.connect(autocommit=autocommit)) as connection:
        thread = threading.Thread(target=run, args=(connection, *statements))
        thread.start()
        try:
            yield connection
        finally:
            thread.join()
