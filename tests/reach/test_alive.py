"""A server that has silently gone is noticed within minutes, whoever talks to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from tests.servers import Server
from tidegate.reach import alive
from tidegate.reach.login import Login, Tls, login_of
from tidegate.sources import mysql_session, postgresql_session
from tidegate.targets.redshift_line import Line
from tidegate.testing.redshift import RedshiftLocal


def _mysql(login: Login) -> int:
    with closing(mysql_session.connect(login)) as session:
        return _idle_seconds(session._sock.fileno())  # type: ignore[attr-defined] # noqa: SLF001


def _postgresql(login: Login) -> int:
    with closing(postgresql_session.connect(login)) as session:
        return _idle_seconds(session.fileno())


def _idle_seconds(number: int) -> int:
    with socket.socket(fileno=os.dup(number)) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == alive.PAUSE_SECONDS
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)


@pytest.mark.parametrize(("kind", "idle_seconds"), [("mariadb", _mysql), ("postgres", _postgresql)])
def test_an_idle_connection_asks_whether_the_other_side_is_there(
    kind: str, idle_seconds: Callable[[Login], int], request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    assert idle_seconds(login_of(server.config)) == alive.IDLE_SECONDS


def test_a_long_copy_is_no_silence(redshift: RedshiftLocal, postgres_database: Server) -> None:
    """Redshift says nothing until COPY has ended, and gateways forget who is silent for six minutes."""
    login = replace(
        login_of(postgres_database.config), host=redshift.host, port=redshift.port, tls=Tls("disable")
    )
    with closing(Line(login).connect()) as connection:
        assert _idle_seconds(connection._usock.fileno()) == alive.IDLE_SECONDS  # noqa: SLF001
