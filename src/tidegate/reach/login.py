"""How to reach a database server. Travels to executors with a reader, so it is small and can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.reach.iam import Credentials, Iam, Server, credentials
from tidegate.reach.tunnel import LOOPBACK, Tunnel, near_end

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
    tunnel: Tunnel | None = None
    iam: Iam | None = None
    """Where AWS signs us in, and there is no password."""
    max_query: float | None = None
    """Seconds that a query of ours may run at most; None: as long as it takes."""

    @property
    def where(self) -> str:
        """The server in messages. Never the password."""
        return f"{self.host}:{self.port}/{self.database}"

    def credentials(self) -> Credentials:
        """Who we are and the password that proves it, for a connection that is opened now."""
        if self.iam is None:
            return Credentials(self.username, self.password or "")
        return credentials(self.iam, Server(self.host, self.port, self.database, self.username))

    def endpoint(self) -> tuple[str, int]:
        """Where to connect: to the server itself, or to the near end of a tunnel that leads to it.

        Whoever verifies a certificate still asks for `host`.
        """
        if self.tunnel is None:
            return self.host, self.port
        return LOOPBACK, near_end(self.tunnel, self.host, self.port)


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach a server that something else names: a URL, which can say little of it."""

    tls: Tls | None = None
    tunnel: Tunnel | None = None
    iam: Iam | None = None


DIRECT = Way()


def way_of(config: Any) -> Way:
    tls = _part(config, "tls")
    return Way(
        tls=tls_of(tls) if tls is not None else None,
        tunnel=tunnel_of(_part(config, "ssh_tunnel")),
        iam=iam_of(_part(config, "iam")),
    )


def login_of(config: Any, *, port: int = 0) -> Login:
    """The address and credentials of a server's entry in connections.yml: a model, or its values by name.

    `port` is the one that is meant where none is named.
    """
    return Login(
        host=_part(config, "host"),
        port=_part(config, "port") or port,
        database=_part(config, "database"),
        username=_part(config, "username"),
        password=_plain(_part(config, "password")),
        tls=tls_of(_part(config, "tls")),
        tunnel=tunnel_of(_part(config, "ssh_tunnel")),
        iam=iam_of(_part(config, "iam")),
    )


def tls_of(config: Any) -> Tls:
    if config is None:
        return Tls()
    files = {name: _path(_part(config, name)) for name in ("ca", "cert", "key")}
    return Tls(_part(config, "mode"), **files)


def tunnel_of(config: Any) -> Tunnel | None:
    if config is None or not _part(config, "enabled"):
        return None
    return Tunnel(
        host=_part(config, "host"),
        port=_part(config, "port"),
        username=_part(config, "username"),
        private_key=_path(_part(config, "private_key_path")),
        known_hosts=_path(_part(config, "known_hosts")),
        local_port=_part(config, "local_port") or 0,
    )


def iam_of(config: Any) -> Iam | None:
    if config is None:
        return None
    names = ("region", "profile", "cluster", "workgroup")
    secrets = ("access_key_id", "secret_access_key", "session_token")
    return Iam(
        **{name: _part(config, name) for name in names},
        **{name: _plain(_part(config, name)) for name in secrets},
    )


def _part(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _path(path: Any) -> str | None:
    return None if path is None else str(path)


def _plain(secret: Any) -> str | None:
    if secret is None:
        return None
    return str(secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret)
