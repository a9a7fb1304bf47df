"""Connecting to MySQL and MariaDB with PyMySQL."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.cursors import Cursor

from tidegate.core.errors import TlsRefused
from tidegate.reach import tls
from tidegate.reach.alive import keep_alive
from tidegate.reach.login import CONNECT_TIMEOUT_SECONDS, Login


def connect(login: Login, **options: Any) -> Connection[Cursor]:
    """A session; `options` are the driver's own. Its errors are the driver's."""
    tls.demand_files(login)
    who = login.credentials()
    session = pymysql.connect(
        host=login.host,
        port=login.port,
        user=who.username,
        # The driver knows Latin-1 passwords only; this hands it the bytes of the UTF-8 one.
        password=who.password.encode().decode("latin-1"),
        database=login.database,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        defer_connect=True,
        auth_plugin_map=dict.fromkeys(_IN_CLEAR, _OnlyEncrypted),
        **_tls(login),
        **options,
    )
    session.connect(_tunnelled(login))
    keep_alive(session._sock)  # type: ignore[attr-defined] # noqa: SLF001 - the driver knows no option for it
    return session


_IN_CLEAR = ("mysql_clear_password", "dialog")
"""Ways to log in that send the password as it is: AWS's tokens go so, and PAM."""


class _OnlyEncrypted:
    """Sends a password as it is, through an encrypted connection: nobody may ask for it through another."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        del packet
        if not self._connection._secure:  # noqa: SLF001 - the driver tells it to its own plugins alone
            raise pymysql.err.OperationalError(
                CR.CR_SSL_CONNECTION_ERROR, "the server wants the password in clear text, without TLS"
            )
        self._connection.write_packet(self._connection.password + b"\0")
        answer = self._connection._read_packet()  # noqa: SLF001
        answer.check_error()
        return answer


def _tunnelled(login: Login) -> socket.socket | None:
    """A socket through the tunnel, so that the driver still takes the server for `host`."""
    if login.tunnel is None:
        return None
    try:
        return socket.create_connection(login.endpoint(), CONNECT_TIMEOUT_SECONDS)
    except OSError as error:  # as the driver would say it
        raise pymysql.err.OperationalError(CR.CR_CONN_HOST_ERROR, str(error)) from error


def _tls(login: Login) -> dict[str, Any]:
    """The driver would skip the host name where no CA is named, so the context is made here."""
    settings = login.tls
    if settings.mode == "disable":
        return {"ssl_disabled": True}
    if settings.mode == "prefer" and not settings.cert:
        return {}
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        # Private authorities often lack extensions that newer Pythons insist on; libpq does not either.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if settings.cert:
            context.load_cert_chain(settings.cert, settings.key)
    except OSError as error:
        hint = "check ca, cert and key under `tls`"
        raise TlsRefused(f"a TLS file cannot be used: {error}", where=login.where, hint=hint) from error
    context.check_hostname = settings.mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if settings.verified else ssl.CERT_NONE
    return {"ssl": context}


def limited(login: Login) -> str:
    """The limit of a query's time, as the beginning of a list of session variables, for both families.

    Each of them takes the comment of the other for a comment.
    """
    if login.max_query is None:
        return ""
    milliseconds = max(1, round(login.max_query * 1000))
    mariadb = f"/*M!100101 max_statement_time = {milliseconds / 1000:.3f}, */"
    return f"{mariadb} /*!50708 max_execution_time = {milliseconds}, */"
