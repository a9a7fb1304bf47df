"""Connections to Redshift through its own driver, and the driver's errors in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redshift_connector
from redshift_connector.core import Connection
from redshift_connector.error import Error as DriverError

from tidegate.core.errors import (
    ConnectError,
    LoginRefused,
    OutcomeUnknown,
    TargetError,
    TidegateError,
    TlsRefused,
)
from tidegate.reach import alive, tls, tunnel
from tidegate.reach.login import APPLICATION_NAME, CONNECT_TIMEOUT_SECONDS, Login

_CANCELLED, _DENIED, _CONFLICTS = "57014", "42501", ("40001", "1023")


class _Unencrypted(TlsRefused):
    """The server has no TLS at all; one whose certificate is not right is another matter."""


@dataclass(frozen=True)
class Line:
    """How sessions are opened: where, and what each of them is told first."""

    login: Login
    query_group: str | None = None
    statement_timeout: float | None = None
    """Seconds that one statement may take; None: as the cluster says."""
    lock_wait: float = field(default=600.0)
    """Seconds to wait for another load into the same schema."""

    @property
    def where(self) -> str:
        return f"{self.login.database} at {self.login.host}:{self.login.port}"

    def connect(self) -> Connection:
        """A connection in autocommit: BEGIN and COMMIT are written out, so that the answer can be read."""
        connection = self._connected()
        connection.autocommit = True
        with self.in_words():
            cursor = connection.cursor()
            if self.query_group is not None:
                cursor.execute(f"SET query_group TO {literal(self.query_group)}")
            cursor.execute(self.limit(self.statement_timeout))
        return connection

    def limit(self, seconds: float | None) -> str:
        """The statement that bounds the ones after it."""
        if seconds is None:
            return "RESET statement_timeout"
        return f"SET statement_timeout TO {max(1, round(seconds * 1000))}"

    def _connected(self) -> Connection:
        tls.demand_files(self.login)
        mode = self.login.tls.mode
        try:
            return self._dial(encrypted=mode != "disable")
        except _Unencrypted:
            if mode != "prefer":
                raise
            return self._dial(encrypted=False)

    def _dial(self, *, encrypted: bool) -> Connection:
        host, port = self.login.endpoint()
        who = self.login.credentials()
        # The driver always looks at the certificate: it has Amazon's authorities with it.
        checked = "verify-full" if self.login.tls.mode == "verify-full" else "verify-ca"
        try:
            connection = redshift_connector.connect(
                host=host,
                port=port,
                database=self.login.database,
                user=who.username,
                password=who.password,
                ssl=encrypted,
                sslmode=checked,
                timeout=CONNECT_TIMEOUT_SECONDS,
                tcp_keepalive=True,
                tcp_keepalive_idle=alive.IDLE_SECONDS,
                tcp_keepalive_interval=alive.PAUSE_SECONDS,
                tcp_keepalive_count=alive.ATTEMPTS,
                application_name=APPLICATION_NAME.split()[0],
            )
        except (DriverError, OSError) as error:
            raise self._unreachable(error, who.password) from error
        connection._usock.settimeout(None)  # noqa: SLF001 - the driver knows one timeout for all, also for COPY
        return connection

    def _unreachable(self, error: Exception, secret: str) -> TidegateError:
        said = said_by(error)
        clean = said.replace(secret, "***") if secret else said
        refused = code_of(error) in _LOGIN_CODES or "authentication failed" in said
        if "refuses SSL" in said:
            return _Unencrypted(
                "the server does not encrypt", where=self.where, hint="check `tls` of the target"
            )
        on_the_way = None if refused else tls.refused(self.login, clean) or tunnel.beyond(self.login)
        if on_the_way is not None:
            return on_the_way
        hint = next((hint for sign, hint in _HINTS.items() if sign in said), "check host, port and network")
        kind = LoginRefused if refused else ConnectError
        who = f" as {self.login.username}" if self.login.username else ""
        return kind(f"cannot connect to Redshift{who}: {clean}", where=self.where, hint=hint)

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """The driver's errors as Tidegate's."""
        try:
            yield
        except (DriverError, OSError) as error:
            raise self._failure(error) from error

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The same around a COMMIT: whoever gets no answer does not know."""
        try:
            yield
        except (DriverError, OSError) as error:
            if code_of(error):
                raise TargetError(
                    f"Redshift refused to commit: {said_by(error)}", where=self.where
                ) from error
            raise OutcomeUnknown(
                f"the answer to the commit was lost: {said_by(error)}", where=self.where
            ) from error

    def _failure(self, error: Exception) -> TidegateError:
        code, said = code_of(error), said_by(error)
        if code is None:
            return ConnectError(f"the connection was lost: {said}", where=self.where, hint="run it again")
        hint = None
        if code == _CANCELLED:
            hint = "raise `statement_timeout` of the target, or look in stv_recents for what is in the way"
        elif code == _DENIED:
            hint = f"grant {self.login.username or 'the user'} what is missing"
        elif any(sign in (code, said) or sign in said for sign in _CONFLICTS):
            hint = "somebody else writes to the same tables: run it again"
        return TargetError(f"Redshift: {said}", where=self.where, hint=hint)


_LOGIN_CODES = ("28000", "28P01", "3D000")
_HINTS = {
    "authentication failed": "check the target's username and password",
    "does not exist": "check the target's database and username",
    "Connection refused": "is the cluster running, and are host and port right?",
    "Unable to determine ip": "check the target's host",
    "time out": "is the host right, and do security group and network let you through?",
}


def hang_up(connection: Connection) -> None:
    """Close it, whatever state it is in: what was not committed is rolled back by the server."""
    with suppress(DriverError, OSError):
        connection.close()


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def code_of(error: Exception) -> str | None:
    """The server's code; None if it was not the server that spoke."""
    told = error.args[0] if error.args else None
    return str(told.get("C", "XX000")) if isinstance(told, dict) else None


def timed_out(error: TargetError) -> bool:
    """Whether the server gave a statement up for the time it took."""
    cause = error.__cause__
    return isinstance(cause, DriverError) and code_of(cause) == _CANCELLED


def said_by(error: Exception) -> str:
    told: Any = error.args[0] if error.args else None
    if not isinstance(told, dict):
        return " ".join(str(part) for part in error.args).strip() or type(error).__name__
    detail = f" ({told['D']})" if told.get("D") and not _LONG_DETAIL.search(told["D"]) else ""
    return " ".join(f"{told.get('M', '')}{detail}".split())


_LONG_DETAIL = re.compile(r"-{20}")
"""Redshift's own reports of where in its program something happened."""
