"""The server: clients on one side, PostgreSQL on the other, Redshift's rules in between.

Every message of a client is answered before the next one is read, so a statement can be refused, changed or
done by the stand-in itself at the place where the client expects its answer.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import socketserver
import struct
import threading
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psycopg

from tidegate.core.errors import ConfigError, ConnectError
from tidegate.s3 import S3Place
from tidegate.testing.redshift import catalog, wire
from tidegate.testing.redshift.copying import CopyColumn, Copying, CopyStatement, LoadError, parse_copy
from tidegate.testing.redshift.sql import (
    CATALOG,
    SCHEMA,
    Refused,
    Tokens,
    kept,
    leads,
    long_names,
    resized,
    statements,
    tokens_of,
    translate,
)
from tidegate.testing.redshift.wire import Line, Message

_ENCRYPT, _ENCRYPT_BY_KERBEROS, _CANCEL = 80877103, 80877104, 80877102
_SESSION = "SET TimeZone = 'UTC'; SET client_min_messages = warning; SET extra_float_digits = 1"


class Fault(StrEnum):
    """What can be made to go wrong, once for each time it is armed."""

    COPY_HALF_WAY = "copy fails half-way"
    DROP_BEFORE_COMMIT = "the connection is lost before the commit"
    DROP_AFTER_COMMIT = "the connection is lost after the commit, before its answer"


@dataclass(frozen=True, slots=True)
class Backend:
    """The PostgreSQL behind, and the superuser to log in as. Clients log in as the same user."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)


class RedshiftLocal:
    """The stand-in. Listens as soon as it is made; `close` ends it and every session.

    `s3` says how COPY reaches S3 when a statement names a role; its bucket does not matter.
    """

    def __init__(self, backend: Backend, s3: S3Place, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.backend = backend
        self.s3 = s3
        self._armed: Counter[Fault] = Counter()
        self._turn = threading.Lock()
        self._lines: set[Line] = set()
        self._long: set[tuple[str, str]] = set()
        stand_in = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                stand_in._serve(self.request)

        self._server = socketserver.ThreadingTCPServer((host, port), Handler, bind_and_activate=False)
        self._server.allow_reuse_address = True
        self._server.daemon_threads = True
        try:
            self._server.server_bind()
            self._server.server_activate()
        except OSError as error:
            self._server.server_close()
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port"
            ) from error
        self.host = host
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="redshift", daemon=True).start()

    def arm(self, fault: Fault) -> None:
        """Let it go wrong the next time."""
        with self._turn:
            self._armed[fault] += 1

    def strikes(self, fault: Fault) -> bool:
        with self._turn:
            armed = self._armed[fault] > 0
            self._armed[fault] -= armed
            return armed

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for line in list(self._lines):
            with suppress(OSError):
                line.cut()

    def connect_backend(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=self.backend.host,
            port=self.backend.port,
            user=self.backend.user,
            password=self.backend.password,
            dbname=database,
            sslmode="disable",
            autocommit=True,
            application_name="redshift-local",
        )

    def remember(self, database: str, names: set[str]) -> None:
        """Let the views of a database tell these names whole, whatever becomes of the transaction."""
        for name in sorted(names):
            if (database, name) not in self._long:
                statement = f"INSERT INTO {SCHEMA}.long_names VALUES (%s, %s) ON CONFLICT DO NOTHING"
                with self.connect_backend(database) as beside:
                    beside.execute(statement.encode(), [kept(name), name])
                self._long.add((database, name))

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(client)
        self._lines.add(line)
        try:
            # A client may go at any moment, and so may we.
            with suppress(ConnectError, OSError, ValueError):
                _greet(self, line)
        finally:
            self._lines.discard(line)
            with suppress(OSError):
                line.close()


def _greet(stand_in: RedshiftLocal, client: Line) -> None:
    body = client.start_up()
    (code,) = struct.unpack_from("!i", body)
    if code in (_ENCRYPT, _ENCRYPT_BY_KERBEROS):
        client.send_raw(b"N")
        return _greet(stand_in, client)
    if code == _CANCEL:
        return None
    words = [part.decode() for part in body[4:].split(b"\0")]
    asked = dict(zip(words[::2], words[1::2], strict=False))
    if not _logged_in(stand_in.backend, client, asked.get("user", "")):
        client.send(wire.error(f'password authentication failed for user "{asked.get("user")}"', "28000"))
        return None
    database = asked.get("database", "")
    try:
        connection = stand_in.connect_backend(database)
    except psycopg.OperationalError as error:
        known = "does not exist" in str(error)
        told = f'database "{database}" does not exist' if known else f"PostgreSQL behind: {error}"
        client.send(wire.error(told, "3D000"))
        return None
    with closing(connection):
        try:
            catalog.ensure(connection)
            connection.execute(_SESSION)
        except psycopg.Error as error:
            client.send(wire.error(f"PostgreSQL behind: {error}", "XX000"))
            return None
        _Session(stand_in, client, connection).run()
    return None


def _logged_in(backend: Backend, client: Line, user: str) -> bool:
    salt = secrets.token_bytes(4)
    client.send(Message(b"R", struct.pack("!i", 5) + salt))
    answer = client.read().body.rstrip(b"\0").decode()
    inner = hashlib.md5((backend.password + user).encode(), usedforsecurity=False).hexdigest()
    digest = hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()
    return user == backend.user and secrets.compare_digest(answer, f"md5{digest}")


class _Session:
    """One client and its backend. libpq has logged in; from here on its line to the backend is ours."""

    def __init__(
        self, stand_in: RedshiftLocal, client: Line, connection: psycopg.Connection[tuple[Any, ...]]
    ) -> None:
        self._stand_in = stand_in
        self._client = client
        self._database = connection.info.dbname
        self._pid = connection.info.backend_pid
        end = socket.socket(fileno=os.dup(connection.fileno()))
        end.settimeout(None)
        self._backend = Line(end)
        self._status = b"I"
        self._ours: dict[str, CopyStatement] = {}
        """Prepared statements that the stand-in does by itself."""
        self._texts: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._of_catalog: set[str] = set()
        """Prepared statements whose parameters may be names of tables."""

    def run(self) -> None:
        statuses = {
            "server_version": "8.0.2",
            "server_encoding": "UNICODE",
            "client_encoding": "UTF8",
            "DateStyle": "ISO, MDY",
            "TimeZone": "UTC",
            "integer_datetimes": "on",
            "is_superuser": "on",
            "server_protocol_version": "0",
        }
        self._client.send(
            Message(b"R", struct.pack("!i", 0)),
            *(Message(b"S", wire.text(name, value)) for name, value in statuses.items()),
            Message(b"K", struct.pack("!ii", self._pid, 0)),
            Message(b"Z", b"I"),
        )
        try:
            while self._answer(self._client.read()):
                pass
        finally:
            # Said and not only closed: libpq holds the same line, and the backend must know at once.
            with suppress(OSError):
                self._backend.send(Message(b"X"))
            self._backend.close()

    def _answer(self, message: Message) -> bool:
        """Answer one message of the client; False when it has said goodbye."""
        try:
            match message.kind:
                case b"X":
                    return False
                case b"Q":
                    self._query(message.body.rstrip(b"\0").decode())
                case b"P":
                    self._parse(message)
                case b"B":
                    self._bind(message)
                case b"D":
                    self._describe(message)
                case b"E":
                    self._execute(message)
                case b"C":
                    self._relay(message, until=b"3")
                case b"S":
                    self._backend.send(message)
                    self._pass_on(until=b"Z")
                case b"H":
                    pass
                case _:
                    self._fail(Refused(f"a message of kind {message.kind!r} is not understood", "08P01"))
        except Refused as error:
            self._fail(error)
            self._skip()
        return True

    # --- The extended protocol

    def _parse(self, message: Message) -> None:
        (name, sql), rest = wire.strings(message.body, 2)
        tokens = tokens_of(sql)
        self._ours.pop(name, None)
        self._of_catalog.discard(name)
        if any(token.name in CATALOG for token in tokens):
            self._of_catalog.add(name)
        self._texts[name] = tokens[0].word if tokens else ""
        if leads(tokens, "COPY"):
            self._ours[name] = parse_copy(tokens)
            self._client.send(Message(b"1"))
            return
        changed = self._translated(tokens) if tokens else sql
        self._relay(Message(b"P", wire.text(name, changed) + rest), until=b"1")

    def _bind(self, message: Message) -> None:
        (portal, name), _ = wire.strings(message.body, 2)
        self._portals[portal] = name
        if name in self._ours:
            self._client.send(Message(b"2"))
            return
        if name in self._of_catalog:
            message = Message(b"B", wire.with_texts(message.body, kept))
        self._relay(message, until=b"2")

    def _describe(self, message: Message) -> None:
        name = message.body[1:].rstrip(b"\0").decode()
        statement = name if message.body[:1] == b"S" else self._portals.get(name, "")
        if statement not in self._ours:
            self._relay(message, until=b"Tn")
        elif message.body[:1] == b"S":
            self._client.send(Message(b"t", struct.pack("!h", 0)), Message(b"n"))
        else:
            self._client.send(Message(b"n"))

    def _execute(self, message: Message) -> None:
        (portal,), _ = wire.strings(message.body, 1)
        name = self._portals.get(portal, "")
        if name in self._ours:
            self._copy(self._ours[name])
            return
        first = self._texts.get(name, "")
        if first in ("COMMIT", "END") and self._stand_in.strikes(Fault.DROP_BEFORE_COMMIT):
            raise ConnectError(Fault.DROP_BEFORE_COMMIT)
        if first in ("COMMIT", "END") and self._stand_in.strikes(Fault.DROP_AFTER_COMMIT):
            self._do("COMMIT")
            raise ConnectError(Fault.DROP_AFTER_COMMIT)
        self._relay(message, until=b"CIs")
        if first == "TRUNCATE" and self._status == b"T":
            self._do("COMMIT")

    def _relay(self, message: Message, *, until: bytes) -> None:
        """Hand a message on and its answer back; an error ends the client's turn."""
        self._backend.send(message, Message(b"H"))
        self._pass_on(until=until)

    def _pass_on(self, *, until: bytes) -> None:
        while True:
            answer = self._backend.read()
            if answer.kind == b"E":
                self._client.send(_in_redshifts_words(answer))
                self._skip()
                return
            self._client.send(answer)
            if answer.kind == b"Z":
                self._status = answer.body
            if answer.kind in (until[place : place + 1] for place in range(len(until))):
                return

    def _skip(self) -> None:
        """After an error, what the client has sent before it knew does not count."""
        while True:
            message = self._client.read()
            if message.kind == b"S":
                self._backend.send(message)
                self._pass_on(until=b"Z")
                return

    def _fail(self, error: Refused) -> None:
        """Say what is refused. A transaction is over with it, as after any error."""
        if self._status == b"T":
            with suppress(Refused):
                self._do("SELECT 1 / 0")
        self._client.send(wire.error(error.message, error.code))

    # --- The simple protocol

    def _query(self, sql: str) -> None:
        try:
            for tokens in statements(sql):
                if leads(tokens, "COPY"):
                    self._copy(parse_copy(tokens))
                else:
                    self._ask(self._translated(tokens), aloud=True)
                    if leads(tokens, "TRUNCATE") and self._status == b"T":
                        self._do("COMMIT")
        except Refused as error:
            self._fail(error)
        self._client.send(Message(b"Z", self._status))

    def _translated(self, tokens: Tokens) -> str:
        changed = translate(tokens, in_transaction=self._status == b"T")
        longer = resized(tokens)
        if longer is not None:
            self._demand_varchar(*longer)
        self._stand_in.remember(self._database, long_names(tokens))
        return changed

    def _demand_varchar(self, table: str, column: str) -> None:
        varchar = "character varying"
        kinds = {found.name: found.type for found in self._columns(table)}
        if not kinds.get(column, varchar).startswith(varchar):
            raise Refused(f'cannot alter type of column "{column}": it is no VARCHAR', "0A000")

    # --- What the stand-in does by itself

    def _do(self, sql: str) -> None:
        self._ask(sql, aloud=False)

    def _ask(self, sql: str, *, aloud: bool) -> list[list[str | None]]:
        """Run a statement of ours, or one of the client's; raises `Refused` with what the backend says."""
        self._backend.send(Message(b"Q", wire.text(sql)))
        rows: list[list[str | None]] = []
        problem: dict[str, str] | None = None
        while True:
            answer = self._backend.read()
            if answer.kind == b"Z":
                self._status = answer.body
                break
            if answer.kind == b"E":
                problem = wire.fields_of(_in_redshifts_words(answer))
            elif aloud:
                self._client.send(answer)
            elif answer.kind == b"D":
                rows.append(wire.cells(answer))
        if problem is not None:
            raise Refused(problem.get("M", ""), problem.get("C", "XX000"))
        return rows

    def _copy(self, statement: CopyStatement) -> None:
        copying = Copying(statement, self._columns(statement.table), self._stand_in.s3)
        try:
            rows = self._load(copying)
        except LoadError as error:
            self._note(statement.table, error)
            raise Refused(
                f"Load into table '{statement.table}' failed. Check 'sys_load_error_detail' system table for "
                f"details. {error.message}",
                error.code,
            ) from error
        self._do(f"SELECT set_config('redshift.last_copy_count', '{rows}', false)")
        told = f"Load into table '{statement.table}' completed, {rows} record(s) loaded successfully."
        self._client.send(wire.notice(told), Message(b"C", wire.text("COPY")))

    def _columns(self, table: str) -> list[CopyColumn]:
        quoted = table.replace("'", "''")
        rows = self._ask(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{quoted}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            aloud=False,
        )
        return [CopyColumn(str(name), str(kind)) for name, kind in rows]

    def _load(self, copying: Copying) -> int:
        """Feed the files to the backend's own COPY, on the client's connection."""
        self._backend.send(
            Message(b"Q", wire.text(f"COPY {copying.statement.table} FROM STDIN (FORMAT csv)"))
        )
        answer = self._backend.read()
        problem: Refused | None = None
        loaded = 0
        if answer.kind == b"G":
            try:
                for rows, text in copying.texts():
                    if self._stand_in.strikes(Fault.COPY_HALF_WAY):
                        self._backend.send(Message(b"d", bytes(text[: len(text) // 2])))
                        raise LoadError(Fault.COPY_HALF_WAY, code=15001, file=copying.statement.url)
                    self._backend.send(Message(b"d", bytes(text)))
                    loaded += rows
                self._backend.send(Message(b"c"))
            except Refused as error:
                problem = error
                self._backend.send(Message(b"f", wire.text("COPY is given up")))
            answer = self._backend.read()
        while answer.kind != b"Z":
            if answer.kind == b"E" and problem is None:
                said = wire.fields_of(_in_redshifts_words(answer))
                problem = LoadError(said.get("M", ""), code=1200, file=copying.statement.url)
            answer = self._backend.read()
        self._status = answer.body
        if problem is not None:
            raise problem
        return loaded

    def _note(self, table: str, error: LoadError) -> None:
        """Beside the transaction, which is lost: the load-error views keep what happened."""
        names = ["session_id", "table_name", *error.detail]
        values = [self._pid, table, *error.detail.values()]
        listed, places = ", ".join(names), ", ".join(["%s"] * len(names))
        with self._stand_in.connect_backend(self._database) as beside:
            statement = f"INSERT INTO {SCHEMA}.load_errors ({listed}) VALUES ({places})"
            beside.execute(statement.encode(), values)


def _in_redshifts_words(message: Message) -> Message:
    """A length in bytes is a constraint to PostgreSQL, and a property of the type to Redshift."""
    said = wire.fields_of(message)
    if said.get("C") == "23514" and said.get("n", "").startswith("_rs_"):
        return wire.error("Value too long for character type", "22001")
    return message
