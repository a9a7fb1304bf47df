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
from tidegate.reach.login import CONNECT_TIMEOUT_SECONDS, Login


def connect(login: Login, **options: Any) -> Connection[Cursor]:
    """A session; `options` are the driver's own. Its errors are the driver's."""
    tls.demand_files(login)
    session = pymysql.connect(
        host=login.host,
        port=login.port,
        user=login.username,
        # The driver knows Latin-1 passwords only; this hands it the bytes of the UTF-8 one.
        password=(login.password or "").encode().decode("latin-1"),
        database=login.database,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        defer_connect=True,
        **_tls(login),
        **options,
    )
    session.connect(_tunnelled(login))
    return session


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
