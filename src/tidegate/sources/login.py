"""How to reach a database server. Travels to executors with a reader, so it is small and can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field

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
