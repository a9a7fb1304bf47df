"""How to reach a database server. Travels to executors with a reader, so it is small and can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

APPLICATION_NAME = "tidegate reader"
"""How connections that read a source call themselves: they never write, so no ceiling waits for them."""

CONNECT_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Tls:
    mode: str = "prefer"
    """disable, prefer, require, verify-ca or verify-full."""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def verified(self) -> bool:
        """Whether the server has to prove who it is."""
        return self.mode in ("verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Login:
    host: str
    port: int
    database: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls = field(default_factory=Tls)

    @property
    def where(self) -> str:
        """The server in messages. Never the password."""
        return f"{self.host}:{self.port}/{self.database}"


def login_of(config: Any) -> Login:
    """The address and credentials of a server's entry in connections.yml."""
    return Login(
        host=config.host,
        port=config.port,
        database=config.database,
        username=config.username,
        password=_plain(config.password),
        tls=tls_of(getattr(config, "tls", None)),
    )


def tls_of(config: Any) -> Tls:
    if config is None:
        return Tls()
    files = {name: getattr(config, name, None) for name in ("ca", "cert", "key")}
    return Tls(config.mode, **{name: str(path) for name, path in files.items() if path is not None})


def _plain(secret: Any) -> str | None:
    if secret is None:
        return None
    return str(secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret)
