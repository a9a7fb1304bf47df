"""Connections tried step by step: every step says in words what works, or what is missing and how to get it.

A step that fails ends the probe, since those behind it would fail for the same reason.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConnectError, LoginRefused, StagingError, TidegateError, TlsRefused

if TYPE_CHECKING:
    from tidegate.config.connections import Connections, Section
    from tidegate.reach.login import Login
    from tidegate.sources.contract import Source
    from tidegate.sources.facts import Facts

_MOST_SKEW = timedelta(seconds=1)
"""What `ceiling.lag` covers where clients set timestamps by their own clocks."""

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Step:
    """What one step found. Without an error it worked; a warning says with what reservation."""

    name: str
    answer: str
    warning: bool = False
    hint: str | None = None
    error: TidegateError | None = None


@dataclass(frozen=True)
class Finding:
    answer: str
    warning: bool = False
    hint: str | None = None


Check = tuple[str, Callable[[], Finding | None]]
"""A step's name and how to take it; None: there is nothing to do here."""


def probe(connections: Connections, section: Section, name: str) -> Iterator[Step]:
    """Try a connection, and tell each step as it is done."""
    from tidegate.config.connections import Section

    checks: dict[Section, Callable[[Connections, str], Iterator[Check]]] = {
        Section.SOURCE: _source,
        Section.TARGET: _target,
        Section.STAGING: _staging,
        Section.STATE: _state,
    }
    step = "configuration"
    try:
        for step, check in checks[section](connections, name):
            found = check()
            if found is not None:
                yield Step(step, found.answer, found.warning, found.hint)
    except TidegateError as error:
        where = f"{error.where}: " if error.where else ""
        yield Step(step, f"{where}{error.message}", hint=error.hint, error=error)


# --- The four kinds ----------------------------------------------------------


def _source(connections: Connections, name: str) -> Iterator[Check]:
    from tidegate.sync.library import source_of

    model = connections.source(name)
    if model.type != "sqlite":
        yield from _Server(model.type, _login(model), getattr(model, "schema_name", None)).checks()
    with closing(source_of(connections, name)) as source:
        tables: list[str] = []
        yield "tables", lambda: _tables(source, tables, model)
        yield "transactions", lambda: _transactions(source, tables)


def _tables(source: Source, found: list[str], model: Any) -> Finding:
    from tidegate.observe.figures import counted

    found += source.tables()
    if found:
        return Finding(f"{counted(len(found), 'table')} can be read")
    hint = None
    if model.type != "sqlite":
        what = (
            f"`{model.database}`.*" if model.type == "mysql" else f"ALL TABLES IN SCHEMA {model.schema_name}"
        )
        hint = f"GRANT SELECT ON {what} TO {model.username or 'this user'}"
    return Finding("there is no table that can be read", warning=True, hint=hint)


def _transactions(source: Source, tables: list[str]) -> Finding | None:
    """Whether open transactions can be seen here, so that no row is skipped because it committed late."""
    from tidegate.core.strategies import CeilingSettings, Cursor

    if not tables:
        return None
    # A cursor without columns asks for the clock and the open transactions alone.
    ceiling = source.freeze(source.table(tables[0]), Cursor(), CeilingSettings(max_wait=timedelta(0)))
    if not ceiling.warnings:
        return Finding("those that are open can be seen, so no row is missed that commits late")
    reason, _, remedy = ceiling.warnings[0].rpartition(": ")
    return Finding(reason or remedy, warning=True, hint=remedy if reason else None)


def _target(connections: Connections, name: str) -> Iterator[Check]:
    from tidegate.core.watermark import StreamId
    from tidegate.sync.library import target_of

    model = connections.target(name)
    if model.type == "postgresql":
        yield from _Server(model.type, _login(model)).checks()
        yield "privileges", lambda: _may_create(model)

    if model.type == "redshift":
        yield from _Server(model.type, _login(model)).way()
    if model.type == "delta" and "://" not in model.path:
        yield "folder", lambda: _folder(Path(model.path))

    def ask() -> Finding:
        with closing(target_of(model)) as target:
            # Any question will do; this one is cheap, and asks what loading asks first.
            target.last_run(StreamId("tidegate", "connections test"))
        return Finding("it answers what a load asks first")

    yield "ledger", ask


def _may_create(model: Any) -> Finding:
    """Whether tables can be made, and the schema if it is not there yet."""
    from tidegate.sources.postgresql_session import connect, errors, quote, run, text_literal

    login, schema = _login(model), model.schema_name
    with errors(login), closing(connect(login)) as session:
        [(there, may)] = run(
            session,
            f"SELECT to_regnamespace({text_literal(quote(schema))}) IS NOT NULL, "
            f"CASE WHEN to_regnamespace({text_literal(quote(schema))}) IS NULL "
            f"THEN has_database_privilege(current_database(), 'CREATE') "
            f"ELSE has_schema_privilege({text_literal(schema)}, 'CREATE') END",
        )
    place = f"SCHEMA {quote(schema)}" if there else f"DATABASE {quote(model.database)}"
    if may:
        return Finding(f"tables can be made in schema {schema}")
    hint = f"GRANT CREATE ON {place} TO {quote(model.username or 'this user')}"
    return Finding(f"new tables cannot be made in schema {schema}", warning=True, hint=hint)


def _staging(connections: Connections, name: str) -> Iterator[Check]:
    from tidegate.sync.library import open_staging

    model = connections.staging(name)
    if model.type == "local":
        yield "folder", lambda: _folder(model.path)
        return
    staging = open_staging(model)
    key, content = f"_tidegate_probe/{secrets.token_hex(8)}", secrets.token_bytes(32)

    def write() -> Finding:
        staging.put(key, content)
        return Finding("an object can be written")

    def read() -> Finding:
        if staging.get(key) != content:
            raise StagingError("what was written is not what can be read", where=key)
        return Finding("and read")

    def remove() -> Finding:
        staging.delete([key])
        return Finding("and deleted")

    def look() -> Finding:
        next(staging.list(key), None)
        next(staging.unfinished(), None)
        return Finding("what is there can be listed")

    yield "write", write
    yield "read", read
    yield "delete", remove
    yield "list", look


def _folder(path: Path) -> Finding:
    """Looked at, and not made: whoever only asks changes nothing."""
    from tidegate.observe.figures import size

    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        hint = f"give the user who runs this the right to write into {there}"
        raise StagingError("the folder cannot be written", where=str(path), hint=hint)
    space = os.statvfs(there)
    free = size(space.f_bavail * space.f_frsize)
    return Finding(f"{path} can be {'written' if there == path else 'made'}, {free} are free")


def _state(connections: Connections, name: str) -> Iterator[Check]:
    from tidegate.observe.figures import counted
    from tidegate.state.opening import open_store, server_of

    model = connections.state(name)
    server = server_of(model)
    if server is not None:
        yield from _Server(*server).checks()
    if model.type == "local":
        yield "folder", lambda: _folder(model.path)

    def ask() -> Finding:
        with closing(open_store(model)) as store:
            listing = store.streams()
        if listing.damaged:
            first = listing.damaged[0]
            answer = f"{counted(len(listing.damaged), 'record')} cannot be understood: {first.where}"
            return Finding(f"{answer}: {first.problem}", warning=True, hint="tidegate watermark check")
        return Finding(f"{counted(len(listing.streams), 'table')} known")

    if model.type == "s3":
        yield "conditions", lambda: _conditions(model)
        yield "clock", lambda: _bucket_clock(model)
    yield "records", ask


def _conditions(model: Any) -> Finding:
    """Whether one of two writers is refused. The object that shows it stays: every sync looks at it."""
    from tidegate.state.opening import open_store
    from tidegate.state.s3 import S3Store

    with closing(open_store(model)) as store:
        assert isinstance(store, S3Store)
        store.demand_conditions()
    return Finding("the server heeds them, so no run overwrites another's marks")


def _bucket_clock(model: Any) -> Finding:
    """Leases end by the clocks of those who look at them. The server tells whole seconds, and some of them
    count those by a ticker of their own."""
    from email.utils import parsedate_to_datetime

    from tidegate.core.errors import StateError
    from tidegate.s3 import S3Place

    place = S3Place.of(model)
    before = _now()
    with place.asking("s3:ListBucket", refused=StateError) as client:
        answer = client.list_objects_v2(Bucket=place.bucket, Prefix=place.key(""), MaxKeys=1)
    journey = (_now() - before) / 2
    told = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    ahead = told + _SECOND / 2 - before - journey
    hint = "set both by NTP: a run whose clock is ahead takes tables from others whose leases have not ended"
    return _compared(ahead, journey + _SECOND, hint)


def _compared(ahead: timedelta, doubt: timedelta, hint: str) -> Finding:
    """What there is to say of a clock that is ahead of ours, as far as that can be told."""
    if abs(ahead) <= doubt:
        return Finding(f"agrees with ours to {max(1, doubt / timedelta(milliseconds=1)):.0f} ms")
    side = "ahead of" if ahead > timedelta(0) else "behind"
    answer = f"{abs(ahead).total_seconds():.3f} s {side} ours"
    if abs(ahead) - doubt <= _MOST_SKEW:
        return Finding(answer)
    return Finding(answer, warning=True, hint=hint)


def _now() -> datetime:
    return datetime.now(UTC)


# --- Servers -----------------------------------------------------------------


def _login(model: Any) -> Login:
    from tidegate.reach.login import login_of

    return login_of(model)


@dataclass
class _Server:
    kind: str
    login: Login
    schema: str | None = None

    def way(self) -> Iterator[Check]:
        """Whether the server can be reached at all."""
        yield "DNS", self._dns
        yield "tunnel", self._tunnel
        yield "TCP", self._tcp

    def checks(self) -> Iterator[Check]:
        yield from self.way()
        yield "TLS", self._tls
        yield "login", self._logged_in
        yield "version", lambda: Finding(self._facts.version)
        yield "clock", self._clock
        yield "privileges", self._privileges

    def _dns(self) -> Finding | None:
        host = self.login.host
        if self.login.tunnel is not None or host.startswith("/") or _is_address(host):
            return None  # the bastion looks it up, or there is nothing to look up
        try:
            found = socket.getaddrinfo(host, self.login.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectError(
                f"the name {host} is not known: {error.strerror}",
                hint="check `host` of the connection, and the name server of this machine",
            ) from error
        return Finding(f"{host} is {', '.join(dict.fromkeys(str(item[4][0]) for item in found))}")

    def _tunnel(self) -> Finding | None:
        if self.login.tunnel is None:
            return None
        address, port = self.login.endpoint()
        return Finding(f"open through {self.login.tunnel.where}, its near end is {address}:{port}")

    def _tcp(self) -> Finding | None:
        if self.login.tunnel is not None or self.login.host.startswith("/"):
            return None  # the near end always answers; the far end shows with the login
        began = _now()
        try:
            socket.create_connection(self.login.endpoint(), timeout=10).close()
        except OSError as error:
            raise ConnectError(
                f"port {self.login.port} does not answer: {error.strerror or error}",
                hint="check host and port, that the server is running, and that no firewall is in between",
            ) from error
        spent = (_now() - began) / timedelta(milliseconds=1)
        return Finding(f"port {self.login.port} answers in {max(1, spent):.0f} ms")

    def _tls(self) -> Finding | None:
        mode = self.login.tls.mode
        try:
            cipher = self._facts.cipher
        except TlsRefused:
            raise
        except ConnectError as error:
            agreed = isinstance(error, LoginRefused) and mode not in ("disable", "prefer")
            return Finding("agreed on") if agreed else None
        if not cipher:
            why = "as mode disable says" if mode == "disable" else "the server offers no TLS"
            return Finding(f"not encrypted, {why}", warning=mode != "disable" and not _is_near(self.login))
        seen = {
            "verify-ca": "the certificate is signed by a trusted authority",
            "verify-full": f"the certificate is trusted and made out to {self.login.host}",
        }.get(mode, f"the certificate was not looked at (mode {mode})")
        return Finding(f"{cipher}, {seen}")

    def _logged_in(self) -> Finding:
        _ = self._facts  # or why not
        user = f"user `{self.login.username}`" if self.login.username else "the default user"
        return Finding(f"{user}, database `{self.login.database}`")

    def _clock(self) -> Finding:
        hint = "set both by NTP; `ceiling.lag` must cover the difference where clients set timestamps"
        return _compared(self._facts.ahead, self._facts.doubt, hint)

    def _privileges(self) -> Finding | None:
        closed = self._facts.closed
        if not closed:
            return None
        hint = f"GRANT SELECT ON {', '.join(closed[:5])} TO {self.login.username or 'this user'}"
        return Finding(
            f"{len(closed)} tables cannot be read: {', '.join(closed[:5])}", warning=True, hint=hint
        )

    @cached_property
    def _answer(self) -> Facts | TidegateError:
        from tidegate.sources.facts import facts_of

        try:
            return facts_of(self.kind, self.login, _now, self.schema)
        except TidegateError as error:
            return error

    @property
    def _facts(self) -> Facts:
        if isinstance(self._answer, TidegateError):
            raise self._answer
        return self._answer


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_near(login: Login) -> bool:
    return (
        login.tunnel is not None or login.host.startswith(("/", "127.")) or login.host in ("localhost", "::1")
    )
