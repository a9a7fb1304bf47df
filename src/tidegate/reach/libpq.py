"""A login in the words of libpq, for everything that speaks to PostgreSQL through it."""

from __future__ import annotations

from typing import Any

from tidegate.reach import alive, tls
from tidegate.reach.login import Login

_ALIVE = {
    "keepalives_idle": alive.IDLE_SECONDS,
    "keepalives_interval": alive.PAUSE_SECONDS,
    "keepalives_count": alive.ATTEMPTS,
}


def parameters(login: Login) -> dict[str, Any]:
    """Where to connect, as whom and how encrypted. Holds the password: never to be shown."""
    tls.demand_files(login)
    address, port = login.endpoint()
    who = login.credentials()
    given: dict[str, Any] = {
        "host": login.host,
        "hostaddr": address if login.tunnel else None,  # the certificate is still compared with `host`
        "port": port,
        "dbname": login.database,
        "user": who.username,
        "password": who.password or None,
        **_tls(login),
        **_ALIVE,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tls(login: Login) -> dict[str, str | None]:
    """Without a file libpq would trust nobody where a certificate is to be verified, and look into the
    home folder where it is not."""
    settings = login.tls
    trusted = (settings.ca or tls.authorities()) if settings.verified else None
    return {
        "sslmode": settings.mode,
        "sslrootcert": trusted,
        "sslcert": settings.cert,
        "sslkey": settings.key,
    }
