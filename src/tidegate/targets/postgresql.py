"""PostgreSQL as a warehouse, loaded through COPY."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors

from tidegate.core.errors import (
    ConnectError,
    IncompatibleTable,
    InvariantBroken,
    LoginRefused,
    OutcomeUnknown,
    TargetError,
)
from tidegate.core.mappings import native_type
from tidegate.core.names import RULES
from tidegate.core.types import DataType, Kind
from tidegate.reach import libpq, tls, tunnel
from tidegate.reach.login import Login
from tidegate.targets.contract import StagedSegment
from tidegate.targets.copy_text import copy_text
from tidegate.targets.ddl import Dialect, TableName, TargetColumn, listed, quote
from tidegate.targets.segments import at_hand, batches
from tidegate.targets.sql import SqlTarget

_DECLARED: dict[str, Kind] = {
    "boolean": Kind.BOOL,
    "smallint": Kind.INT16,
    "integer": Kind.INT32,
    "bigint": Kind.INT64,
    "real": Kind.FLOAT32,
    "double precision": Kind.FLOAT64,
    "numeric": Kind.DECIMAL,
    "text": Kind.TEXT,
    "character varying": Kind.TEXT,
    "bytea": Kind.BYTES,
    "date": Kind.DATE,
    "time without time zone": Kind.TIME,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.INSTANT,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,  # whoever made the column so has chosen what jsonb does to a document
    "uuid": Kind.UUID,
}
_SIZED = re.compile(r"([a-z ]+?) ?\((\d+)(?:,(\d+))?\)( with(?:out)? time zone)?")

DIALECT = Dialect(
    native=partial(native_type, "postgresql"), names=RULES["postgresql"], unique_keys=True, writes_text=True
)


def declared_type(native: str) -> DataType | None:
    """A column's type in declared terms; None for one that no declared kind is like."""
    sized = _SIZED.fullmatch(native)
    name = f"{sized[1]}{sized[4] or ''}" if sized else native
    kind = _DECLARED.get(name)
    if kind is None or sized is None:
        return DataType(kind) if kind else None
    first, second = int(sized[2]), int(sized[3] or 0)
    if kind is Kind.DECIMAL:
        return DataType(kind, precision=first, scale=second)
    return DataType(kind, length=first) if kind is Kind.TEXT else DataType(kind, precision=first)


class PostgresTarget(SqlTarget):
    """A schema of a PostgreSQL database as a target.

    `options` are further parameters of the connection, in libpq's words. `lock_wait` is how many seconds
    to wait for another transaction that uses the same table, `swap_wait` how many to keep readers waiting
    while a table is replaced.
    """

    def __init__(
        self,
        login: Login,
        *,
        schema: str = "public",
        options: Mapping[str, str] | None = None,
        lock_wait: float = 60.0,
        swap_wait: float = 5.0,
    ) -> None:
        super().__init__(Postgres(login, dict(options or {}), lock_wait, swap_wait), schema)


@dataclass(frozen=True)
class Postgres:
    login: Login
    options: Mapping[str, str] = field(default_factory=dict)
    lock_wait: float = 60.0
    swap_wait: float = 5.0

    @property
    def dialect(self) -> Dialect:
        return DIALECT

    @property
    def where(self) -> str:
        return f"{self.login.database} at {self.login.host}:{self.login.port}"

    @contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        with closing(self._connect()) as connection:
            session = PostgresSession(connection, self)
            session.change("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session

    @contextmanager
    def writing(self) -> Iterator[PostgresSession]:
        with closing(self._connect()) as connection:
            session = PostgresSession(connection, self)
            session.begin()
            yield session  # on an error the connection closes, and the transaction is gone with it
            self._commit(connection)

    def _commit(self, connection: psycopg.Connection[Any]) -> None:
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if connection.closed:
                raise OutcomeUnknown(
                    f"the answer to the commit was lost: {_said(error)}", where=self.where
                ) from error
            raise TargetError(f"PostgreSQL refused to commit: {_said(error)}", where=self.where) from error
        if status != "COMMIT":
            raise InvariantBroken(f"the transaction ended with {status}", where=self.where)

    def _connect(self) -> psycopg.Connection[Any]:
        settings: dict[str, Any] = {
            "connect_timeout": 10,
            "application_name": "tidegate",
            **libpq.parameters(self.login),
            **self.options,
        }
        try:
            return psycopg.connect(
                autocommit=True,  # BEGIN and COMMIT are written out, so that the answer to COMMIT can be read
                cursor_factory=psycopg.RawCursor,  # `$1` instead of `%s`: a name may hold a percent sign
                client_encoding="utf8",
                prepare_threshold=None,
                **settings,
            )
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: psycopg.OperationalError) -> ConnectError:
        said = _said(error)
        refused = any(sign in said for sign in _REFUSED)
        on_the_way = None if refused else tls.refused(self.login, said) or tunnel.beyond(self.login)
        if on_the_way is not None:
            return on_the_way
        hint = next((hint for sign, hint in _HINTS.items() if sign in said), "check host, port and network")
        secret = self.login.credentials().password
        clean = said.replace(secret, "***") if secret else said
        who = f" as {self.login.username}" if self.login.username else ""
        kind = LoginRefused if refused else ConnectError
        return kind(f"cannot connect to PostgreSQL{who}: {clean}", where=self.where, hint=hint)


_HINTS = {
    "password authentication failed": "check the target's username and password",
    "no password supplied": "set the target's password",
    "does not exist": "check the target's database and username",
    "Connection refused": "is the server running, and are host and port right?",
    "resolve": "check the target's host",
    "translate host name": "check the target's host",
    "timeout expired": "is the host right, and does a firewall let you through?",
    "pg_hba.conf": "the server does not let this user in from here: ask its administrator",
}
_REFUSED = ("password authentication failed", "no password supplied", "does not exist", "pg_hba.conf")
"""Trying again would not help, and may lock the account."""


def _said(error: psycopg.Error) -> str:
    """What the server said, without the address that libpq puts before it."""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return re.sub(r"^connection failed: (connection to .*? failed: )?(FATAL: +)?", "", text.splitlines()[0])


@contextmanager
def _translated(server: Postgres, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """PostgreSQL's errors as Tidegate's."""
    try:
        yield
    except errors.LockNotAvailable as error:
        raise TargetError(
            f"another transaction has been using the table for more than {server.lock_wait:g} s",
            where=server.where,
            hint="wait for it to end, or look for it in pg_stat_activity, then run this again",
        ) from error
    except errors.InsufficientPrivilege as error:
        hint = f"grant {server.login.username or 'the user'} what is missing"
        raise TargetError(f"PostgreSQL: {_said(error)}", where=server.where, hint=hint) from error
    except (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter) as error:
        hint = "PostgreSQL cannot store this character; leave the column out, or clean it at the source"
        raise TargetError(f"PostgreSQL: {_said(error)}", where=server.where, hint=hint) from error
    except psycopg.Error as error:
        if connection.closed:
            raise ConnectError(f"the connection was lost: {_said(error)}", where=server.where) from error
        raise TargetError(f"PostgreSQL: {_said(error)}{_detail(error)}", where=server.where) from error


def _detail(error: psycopg.Error) -> str:
    """Which column it was, or what else the server adds; the rest of its context would show whole values."""
    column = re.search(r"^COPY .*, column (.+?)(?::|$)", error.diag.context or "", re.MULTILINE)
    if column:
        return f" (column {column[1]})"
    return f" ({error.diag.message_detail})" if error.diag.message_detail else ""


class PostgresSession:
    def __init__(self, connection: psycopg.Connection[Any], server: Postgres) -> None:
        self._connection = connection
        self._server = server
        self._new: set[str] = set()

    def begin(self) -> None:
        # READ COMMITTED: after waiting for the lock, the ledger must be seen as the other one left it.
        self.change("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        self._wait_for_locks(self._server.lock_wait)
        # Where a column becomes text, its dates are written as everybody reads them.
        self.rows("SELECT set_config('DateStyle', 'ISO', true), set_config('TimeZone', 'UTC', true)")
        # A commit that is answered before it is on disk could be lost after the mark has moved.
        self.rows(
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )

    def relation(self, table: TableName) -> str:
        return f"{quote(table.schema)}.{quote(table.name)}"

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _translated(self._server, self._connection):
            return self._connection.execute(sql.encode(), parameters or None).fetchall()

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        with _translated(self._server, self._connection):
            return self._connection.execute(sql.encode(), parameters or None).rowcount

    def columns(self, table: TableName) -> tuple[TargetColumn, ...]:
        rows = self.rows(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, "
            "a.atthasdef OR a.attidentity <> '', c.relkind::text FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            [table.schema, table.name],
        )
        if rows and rows[0][-1] in "vm":
            raise IncompatibleTable(
                "there is a view of that name, and rows cannot go into it", where=str(table)
            )
        return tuple(
            TargetColumn(name, native, declared_type(native), nullable, automatic)
            for name, native, nullable, automatic, _ in rows
        )

    def create_schema(self, name: str) -> None:
        # IF NOT EXISTS would ask for the right to create schemas even where nothing is to be created.
        if not self.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", [name]):
            self.change(f"CREATE SCHEMA {quote(name)}")

    def lock(self, name: str) -> None:
        digest = hashlib.sha256(f"tidegate {name}".encode()).digest()
        self.rows("SELECT pg_advisory_xact_lock($1)", [int.from_bytes(digest[:8], signed=True)])

    def temporary(self, name: str, select: str) -> str:
        relation = f"pg_temp.{quote(name)}"
        self.change(f"CREATE TEMPORARY TABLE {quote(name)} ON COMMIT DROP AS {select}")
        return relation

    def analyze(self, relation: str, columns: Sequence[str]) -> None:
        self.change(f"ANALYZE {relation} ({listed(columns)})")

    def copy(self, staged: Sequence[StagedSegment], into: str, *, run_column: str | None) -> int:
        return sum(self._copy(item, into, run_column) for here in at_hand(staged) for item in here)

    def _copy(self, item: StagedSegment, into: str, run_column: str | None) -> int:
        names = [*item.schema.names, *([run_column] if run_column else [])]
        # Frozen rows are there for readers whose snapshot is older than the table, too.
        how = "FORMAT csv, FREEZE" if into in self._new else "FORMAT csv"
        command = f"COPY {into} ({listed(names)}) FROM STDIN ({how})".encode()
        with _translated(self._server, self._connection), self._connection.cursor() as cursor:
            with cursor.copy(command) as copy:
                for batch in batches(item):
                    copy.write(copy_text(_with_run(batch, run_column, item.segment.run)))
            if cursor.rowcount != item.segment.rows:
                found = f"{cursor.rowcount} of {item.segment.rows} rows went in"
                raise InvariantBroken(found, where=item.segment.key)
            return cursor.rowcount

    def replace(self, table: TableName, fill: Callable[[str], int]) -> int:
        relation = self.relation(table)
        if self._bound(table):
            self.change(f"DELETE FROM {relation}")
            return fill(relation)
        beside = TableName(table.schema, f"_tidegate_new_{_short_hash(str(table))}")
        self.change(f"CREATE TABLE {self.relation(beside)} (LIKE {relation} INCLUDING ALL)")
        self._new.add(self.relation(beside))
        rows = fill(self.relation(beside))
        self.change(f"ANALYZE {self.relation(beside)}")
        if self._try_to_lock(relation):
            self._swap(table, beside)
        else:
            self.change(f"DELETE FROM {relation}")
            self.change(f"INSERT INTO {relation} SELECT * FROM {self.relation(beside)}")
            self.change(f"DROP TABLE {self.relation(beside)}")
        return rows

    def _bound(self, table: TableName) -> bool:
        """Whether more hangs on the table than a new one could take over.

        That is: anything but its own indexes, defaults, plain constraints and grants, or a user who does
        not own it. Then its rows are exchanged instead of the table. Readers see the old ones until the
        commit either way.
        """
        [(bound,)] = self.rows(_BOUND, [table.schema, table.name])
        return bool(bound)

    def _try_to_lock(self, relation: str) -> bool:
        """Whether the readers let the table go in time; while we wait, new ones queue up behind us."""
        self.change("SAVEPOINT swap")
        self._wait_for_locks(self._server.swap_wait)
        try:
            self._connection.execute(f"LOCK TABLE {relation} IN ACCESS EXCLUSIVE MODE".encode())
        except errors.LockNotAvailable:
            self.change("ROLLBACK TO SAVEPOINT swap")
            return False
        self._wait_for_locks(self._server.lock_wait)
        return True

    def _swap(self, table: TableName, beside: TableName) -> None:
        relation = self.relation(beside)
        for statement in self._grants(table, beside):
            self.change(statement)
        names = [name for (name,) in self.rows(_INDEXES, [table.schema, table.name])]
        self.change(f"DROP TABLE {self.relation(table)}")
        self.change(f"ALTER TABLE {relation} RENAME TO {quote(table.name)}")
        made = [name for (name,) in self.rows(_INDEXES, [table.schema, table.name])]
        for new, old in zip(made, names, strict=True):
            self.change(f"ALTER INDEX {self.relation(TableName(table.schema, new))} RENAME TO {quote(old)}")

    def _grants(self, table: TableName, beside: TableName) -> list[str]:
        """What gives the new table the privileges of the old one, and no others."""
        old, new = ({tuple(row) for row in self.rows(_GRANTS, [t.schema, t.name])} for t in (table, beside))
        relation = self.relation(beside)
        taken = [f"REVOKE {kind} ON {relation} FROM {who}" for who, kind, _ in sorted(new - old)]
        given = [
            f"GRANT {kind} ON {relation} TO {who}{' WITH GRANT OPTION' if passing_on else ''}"
            for who, kind, passing_on in sorted(old - new)
        ]
        return taken + given

    def _wait_for_locks(self, seconds: float) -> None:
        self.change(f"SET LOCAL lock_timeout = {max(1, round(seconds * 1000))}")


def _with_run(batch: pa.RecordBatch, column: str | None, run: int) -> pa.RecordBatch:
    if column is None:
        return batch
    return batch.append_column(column, pa.repeat(pa.scalar(run, pa.int64()), batch.num_rows))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_TABLE = (
    "(SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = $1 AND c.relname = $2)"
)

_BOUND = f"""
SELECT EXISTS (
  SELECT 1 FROM pg_class c WHERE c.oid = {_TABLE} AND (
    c.relkind <> 'r' OR c.relpersistence <> 'p' OR c.relispartition OR c.relhassubclass OR c.relrowsecurity
    OR c.reloptions IS NOT NULL OR c.reltablespace <> 0 OR c.relreplident <> 'd'
    OR c.relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user))
) OR EXISTS (
  SELECT 1 FROM pg_index x WHERE x.indrelid = {_TABLE} AND NOT (x.indisvalid AND x.indisready)
) OR EXISTS (
  SELECT 1 FROM pg_attribute a
  WHERE a.attrelid = {_TABLE} AND a.attnum > 0 AND (a.attacl IS NOT NULL OR a.attidentity <> '')
) OR EXISTS (
  SELECT 1 FROM pg_depend d
  WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = {_TABLE} AND d.objid NOT IN (
    SELECT reltype FROM pg_class WHERE oid = d.refobjid
    UNION ALL SELECT reltoastrelid FROM pg_class WHERE oid = d.refobjid
    UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = d.refobjid
    UNION ALL SELECT oid FROM pg_attrdef WHERE adrelid = d.refobjid
    UNION ALL SELECT oid FROM pg_statistic_ext WHERE stxrelid = d.refobjid
    UNION ALL SELECT oid FROM pg_constraint WHERE conrelid = d.refobjid AND contype <> 'f')
) OR EXISTS (
  SELECT 1 FROM pg_depend d JOIN pg_class c ON c.oid = {_TABLE} AND d.refobjid = c.reltype
  WHERE d.refclassid = 'pg_type'::regclass AND NOT (d.classid = 'pg_type'::regclass AND d.deptype = 'i')
)
"""

_INDEXES = f"""
SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = {_TABLE} ORDER BY x.indexrelid
"""

_GRANTS = f"""
SELECT CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
       g.privilege_type, g.is_grantable
FROM pg_class c, LATERAL aclexplode(COALESCE(c.relacl, acldefault('r', c.relowner))) g
WHERE c.oid = {_TABLE}
"""
