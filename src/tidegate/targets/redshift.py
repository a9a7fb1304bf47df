"""Redshift as a warehouse: staged files go in by COPY from S3, in one transaction with the ledger.

Redshift enforces no keys and lets a transaction see a snapshot, so every transaction that writes begins with
a LOCK of the ledger, before it has read anything: what it sees then is what the one before it has left.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from redshift_connector.core import Connection

from tidegate.core.errors import IncompatibleTable, InvariantBroken, TargetError
from tidegate.core.names import RULES
from tidegate.core.types import DataType, Kind
from tidegate.targets.contract import FENCES, LEDGER, StagedSegment, TargetTable
from tidegate.targets.ddl import (
    Dialect,
    TableName,
    TablePlan,
    TargetColumn,
    Words,
    listed,
    quote,
    unwidened,
)
from tidegate.targets.ledger import Ledger
from tidegate.targets.redshift_files import File, Shelf, shelf
from tidegate.targets.redshift_line import Line, hang_up, literal, timed_out
from tidegate.targets.redshift_types import declared_type, landed, landing, native, spelled
from tidegate.targets.sql import SqlTarget, pages

_WORDS = Words(text="VARCHAR(1024)", now="GETDATE()")
_ATTEMPTS = 5
_GIVEN_AT_ONCE = 5_000
"""Values in one INSERT."""


def _retype(relation: str, column: str, native: str) -> list[str]:
    """Only the length of a VARCHAR can be altered; any other column is made anew, with its values."""
    new = quote(f"_tidegate_{_short_hash(column)}")
    return [
        f"ALTER TABLE {relation} ADD COLUMN {new} {native}",
        f"UPDATE {relation} SET {new} = CAST({quote(column)} AS {native})",
        f"ALTER TABLE {relation} DROP COLUMN {quote(column)}",
        f"ALTER TABLE {relation} RENAME COLUMN {new} TO {quote(column)}",
    ]


def _attributes(table: TargetTable) -> str:
    """How the rows of a new table are distributed and sorted."""
    place = table.placement
    words = []
    if place.dist_style is not None:
        words.append(f" DISTSTYLE {place.dist_style.upper()}")
    if place.dist_key is not None:
        words.append(f" DISTKEY ({quote(place.dist_key)})")
    if place.sort_key:
        words.append(f" SORTKEY ({listed(place.sort_key)})")
    return "".join(words)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


DIALECT = Dialect(
    native=native,
    names=RULES["redshift"],
    unique_keys=False,  # the planner would believe in them, and nobody else
    words=_WORDS,
    tells_nulls=False,
    pads_texts=True,
    retype=_retype,
    attributes=_attributes,
)


class RedshiftTarget(SqlTarget):
    """A schema of a Redshift database as a target. `iam_role` None stands for the cluster's default role."""

    def __init__(self, line: Line, *, schema: str = "public", iam_role: str | None = None) -> None:
        self.redshift = Redshift(line, schema, iam_role)
        super().__init__(self.redshift, schema)

    def present(self, name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
        """One look at the table for all of them: it may be large, and there is no index to find a few by."""
        distinct = list(dict.fromkeys(rows))
        if not distinct:
            return 0
        with self.redshift.reading() as session:
            session.change("BEGIN")  # what is asked for is a temporary table, of which each part is no commit
            relation = session.relation(self._name(name))
            asked = session.temporary("_tidegate_asked", f"SELECT {listed(columns)} FROM {relation} LIMIT 0")
            for page in pages(distinct, _GIVEN_AT_ONCE):
                session.change(*_given(asked, page))
            same = [
                _same(f"existing.{quote(column)}", f"asked.{quote(column)}", value)
                for column, value in zip(columns, distinct[0], strict=True)
            ]
            [(count,)] = session.rows(
                f"SELECT count(*) FROM {relation} AS existing JOIN {asked} AS asked ON {' AND '.join(same)}"
            )
            return int(count)

    def _change_outside(self, table: TargetTable, plan: TablePlan) -> None:
        """Lengths change in no transaction. If somebody else was quicker, it is done all the same."""
        texts = [step for step in plan.widen if step.after.kind is Kind.TEXT]
        if not plan.widen:
            return
        with self.redshift.reading() as session:
            relation = session.relation(self._name(table.name))
            anew = [step.column for step in plan.widen if step not in texts]
            for column in anew:
                if session.guarded(self._name(table.name), column):
                    reason = f"{column} would be made anew, without the grants or policies that hang on it"
                    raise unwidened(table, plan, DIALECT, reason)
            try:
                for step in texts:
                    wide = native(DataType(Kind.TEXT))
                    session.change(f"ALTER TABLE {relation} ALTER COLUMN {quote(step.column)} TYPE {wide}")
            except TargetError as error:
                raise unwidened(table, plan, DIALECT, error.message) from error


def _given(relation: str, rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[object]]:
    """An INSERT of these rows, and its parameters.

    The driver writes bytes as digits, and what reads those has to be told so.
    """
    values = [value for row in rows for value in row]
    places = [
        f"to_varbyte(${place}, 'hex')" if isinstance(value, bytes) else f"${place}"
        for place, value in enumerate(values, start=1)
    ]
    width = len(rows[0])
    each = [f"({', '.join(places[at : at + width])})" for at in range(0, len(places), width)]
    parameters = [value.hex() if isinstance(value, bytes) else value for value in values]
    return f"INSERT INTO {relation} VALUES {', '.join(each)}", parameters


def _same(one: str, other: str, value: object) -> str:
    """Whether two columns with values of this kind hold the same; blanks at the end of a text count."""
    same = f"{one} = {other}"
    return f"{same} AND octet_length({one}) = octet_length({other})" if isinstance(value, str) else same


@dataclass(frozen=True)
class Redshift:
    line: Line
    schema: str
    iam_role: str | None = None

    @property
    def dialect(self) -> Dialect:
        return DIALECT

    @contextmanager
    def reading(self) -> Iterator[RedshiftSession]:
        """In autocommit: a table that was replaced between two statements is not taken for an empty one."""
        connection = self.line.connect()
        try:
            yield RedshiftSession(connection, self)
        finally:
            hang_up(connection)

    @contextmanager
    def writing(self) -> Iterator[RedshiftSession]:
        with self.reading() as session:
            self._ensure_ledger(session)
            session.begin()
            yield session  # on an error the connection closes, and the transaction is gone with it
            session.commit()

    def ledger(self, session: RedshiftSession) -> Ledger:
        loads, fences = (session.relation(TableName(self.schema, name)) for name in (LEDGER, FENCES))
        return Ledger(loads, fences, session, DIALECT.words)

    def _ensure_ledger(self, session: RedshiftSession) -> None:
        """Others may be making it at this moment, and nothing can be locked before it is there.

        Of two that create the same table at once, one may fail even with IF NOT EXISTS: then it looks again.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if session.columns(TableName(self.schema, LEDGER)):
                return
            try:
                session.create_schema(self.schema)
                self.ledger(session).create()
            except TargetError:
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(0.2 * attempt)


class RedshiftSession:
    def __init__(self, connection: Connection, server: Redshift) -> None:
        self._connection = connection
        self._server = server
        self._line = server.line

    def begin(self) -> None:
        """The lock comes first: the snapshot of the transaction is taken by what comes after it."""
        ledger = self._server.ledger(self)
        self.change(self._line.limit(self._line.lock_wait))
        self.change("BEGIN")
        try:
            self.change(f"LOCK {ledger.relation}, {ledger.fences}")
        except TargetError as error:
            if not timed_out(error):
                raise
            raise TargetError(
                f"another load has held the ledger for more than {self._line.lock_wait:g} s: {error.message}",
                where=self._line.where,
                hint="wait for it to end, or look for it in svv_transactions, then run this again",
            ) from error
        self.change(self._line.limit(self._line.statement_timeout))

    def commit(self) -> None:
        with self._line.committing():
            self._connection.cursor().execute("COMMIT")

    def relation(self, table: TableName) -> str:
        return f"{quote(table.schema)}.{quote(table.name)}"

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        cursor = self._execute(sql, parameters)
        with self._line.in_words():
            return [tuple(row) for row in cursor.fetchall()]

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        return max(0, int(self._execute(sql, parameters).rowcount))

    def _execute(self, sql: str, parameters: Sequence[object]) -> Any:
        cursor = self._connection.cursor()
        cursor.paramstyle = "numeric"  # which leaves `$1` as it is
        with self._line.in_words():
            return cursor.execute(sql, list(parameters) or None)

    def columns(self, table: TableName) -> tuple[TargetColumn, ...]:
        rows = self.rows(
            "SELECT c.column_name, c.data_type, c.character_maximum_length, c.numeric_precision, "
            "c.numeric_scale, c.is_nullable, c.column_default, t.table_type FROM svv_columns c "
            "JOIN svv_tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name "
            "WHERE c.table_schema = $1 AND c.table_name = $2 ORDER BY c.ordinal_position",
            _folded(table),
        )
        if rows and rows[0][-1] == "VIEW":
            raise IncompatibleTable(
                "there is a view of that name, and rows cannot go into it", where=str(table)
            )
        return tuple(
            TargetColumn(
                name,
                spelled(kind, *sizes),
                declared_type(kind, *sizes),
                nullable == "YES",
                default is not None,
            )
            for name, kind, *sizes, nullable, default, _ in rows
        )

    def guarded(self, table: TableName, column: str) -> bool:
        """Whether grants or masking hang on a column, as far as we are shown."""
        [(grants,)] = self.rows(_COLUMN_GRANTS, [*_folded(table), DIALECT.fold(column)])
        [(masked,)] = self.rows(_MASKING_ON, _folded(table))
        return bool(grants or masked)

    def create_schema(self, name: str) -> None:
        if not self.rows("SELECT 1 FROM pg_namespace WHERE nspname = $1", [DIALECT.fold(name)]):
            self.change(f"CREATE SCHEMA {quote(name)}")

    def lock(self, name: str) -> None:
        """The ledger's lock, which the transaction has begun with, keeps all others out."""

    def temporary(self, name: str, select: str) -> str:
        self.change(f"CREATE TEMP TABLE {quote(name)} AS {select}")
        return quote(name)

    def analyze(self, relation: str, columns: Sequence[str]) -> None:
        """COPY and CREATE TABLE AS look at what they bring."""

    def copy(self, staged: Sequence[StagedSegment], into: str, *, run_column: str | None) -> int:
        with shelf(secrets.token_hex(4)) as here:
            files = here.files(staged)
            alike = groupby(files, key=lambda file: (file.columns, file.staged.segment.run))
            return sum(
                self._copy(here, list(group), into, {} if run_column is None else {run_column: run})
                for (_, run), group in alike
            )

    def _copy(self, here: Shelf, files: list[File], into: str, constants: Mapping[str, int]) -> int:
        """COPY takes columns by their position and count, so it fills a table of the files' own shape."""
        columns = files[0].columns
        landing_table = quote("_tidegate_landing")
        shape = ", ".join(f"{quote(column.name)} {landing(column.type)}" for column in columns)
        self.change(f"CREATE TEMP TABLE {landing_table} ({shape})")
        self._copy_files(landing_table, here.manifest(files), files)
        self._demand_all(files)
        names = [*(column.name for column in columns), *constants]
        values = [landed(column.type, quote(column.name)) for column in columns]
        values += map(str, constants.values())
        rows = self.change(
            f"INSERT INTO {into} ({listed(names)}) SELECT {', '.join(values)} FROM {landing_table}"
        )
        self.change(f"DROP TABLE {landing_table}")
        return rows

    def _copy_files(self, into: str, manifest: str, files: Sequence[File]) -> None:
        role = "default" if self._server.iam_role is None else literal(self._server.iam_role)
        try:
            self.change(f"COPY {into} FROM {literal(manifest)} IAM_ROLE {role} FORMAT AS PARQUET MANIFEST")
        except TargetError as error:
            raise self._unloaded(error, [manifest, *(file.url for file in files)]) from error

    def _unloaded(self, error: TargetError, urls: Sequence[str]) -> TargetError:
        """What the server has written down about the files that did not go in."""
        self.change("ROLLBACK")
        try:
            found = self.rows(_LOAD_ERRORS)
        except TargetError:  # not everybody may look; then there is what COPY itself said
            found = []
        # Sessions that have ended leave their numbers to later ones, and long addresses are cut there.
        if found and not any(url.startswith(_stripped(found[0][0]) or "") for url in urls):
            found = []
        if not found:
            hint = f"`SELECT * FROM sys_load_error_detail` and `stl_load_errors` may tell more; {_ROLE_HINT}"
            return TargetError(error.message, where=error.where, hint=hint)
        file, row, column, kind, length, said = (_stripped(value) for value in found[0])
        place = f"column {column} ({kind}{f'({length})' if length else ''})" if column else "the file"
        at = f", row {row}" if row and row != "0" else ""
        return TargetError(
            f"COPY refused {place}{at}: {said}",
            where=file or error.where,
            hint=next((hint for sign, hint in _LOAD_HINTS.items() if sign in (said or "")), None),
        )

    def _demand_all(self, files: Sequence[File]) -> None:
        expected = sum(file.staged.segment.rows for file in files)
        [(found,)] = self.rows("SELECT pg_last_copy_count()")
        if int(found) != expected:
            raise InvariantBroken(
                f"COPY brought {int(found)} rows, the receipts say {expected}",
                where=files[0].staged.segment.key,
            )

    def replace(self, table: TableName, fill: Callable[[str], int]) -> int:
        relation = self.relation(table)
        if self._bound(table):
            self.change(f"DELETE FROM {relation}")  # not TRUNCATE, which commits
            return fill(relation)
        beside = TableName(table.schema, f"_tidegate_new_{_short_hash(str(table))}")
        self.change(f"CREATE TABLE {self.relation(beside)} (LIKE {relation} INCLUDING DEFAULTS)")
        rows = fill(self.relation(beside))
        for statement in self._grants(table, beside):
            self.change(statement)
        self.change(f"DROP TABLE {relation}")
        self.change(f"ALTER TABLE {self.relation(beside)} RENAME TO {quote(table.name)}")
        return rows

    def _bound(self, table: TableName) -> bool:
        """Whether more hangs on the table than a new one could take over: views, an owner, an identity, keys,
        comments, grants on columns, policies that hide rows or values.

        Only superusers are shown all of it; what others do not see would go with the old table.
        """
        [(all_seen,)] = self.rows(_SUPERUSER)
        [(own,)] = self.rows(_OWN, _folded(table))
        automatic = any(column.automatic for column in self.columns(table))
        if not all_seen or not own or automatic:
            return True
        return self._asked_beside(_HANGING_ON, _folded(table))

    def _asked_beside(self, questions: Sequence[str], names: Sequence[str]) -> bool:
        """Whether any of them finds something, or may not be asked, which would end our own transaction."""
        with self._server.reading() as beside:
            try:
                return any(beside.rows(question, names)[0][0] for question in questions)
            except TargetError:
                return True

    def _grants(self, table: TableName, beside: TableName) -> list[str]:
        """What gives the new table the privileges of the old one, and no others."""
        old, new = (set(self._privileges(one)) for one in (table, beside))
        relation = self.relation(beside)
        taken = [f"REVOKE {kind} ON {relation} FROM {who}" for kind, who, _ in sorted(new - old)]
        given = [f"GRANT {kind} ON {relation} TO {who}{how}" for kind, who, how in sorted(old - new)]
        return taken + given

    def _privileges(self, table: TableName) -> list[tuple[str, str, str]]:
        rows = self.rows(
            "SELECT privilege_type, identity_type, identity_name, admin_option FROM svv_relation_privileges "
            "WHERE namespace_name = $1 AND relation_name = $2 AND identity_name <> current_user",
            _folded(table),
        )
        return [
            (kind, _grantee(what, who), " WITH GRANT OPTION" if passing_on and what == "user" else "")
            for kind, what, who, passing_on in rows
        ]


def _folded(table: TableName) -> list[str]:
    """Names as the catalog has them."""
    return [DIALECT.fold(name) for name in (table.schema, table.name)]


def _grantee(kind: str, name: str) -> str:
    match kind:
        case "public":
            return "PUBLIC"
        case "role" | "group":
            return f"{kind.upper()} {quote(name)}"
        case _:
            return quote(name)


def _stripped(value: object) -> str | None:
    return None if value is None else str(value).strip()


_ROLE_HINT = "the role needs s3:GetObject and s3:ListBucket, and the bucket must lie in the cluster's region"
_LOAD_HINTS = {
    "exceeds DDL length": "lengths count bytes: shorten the value at the source, or leave the column out",
    "incompatible Parquet schema": "the table was changed meanwhile: run it again",
}
_LOAD_ERRORS = (
    "SELECT file_name, line_number, column_name, column_type, column_length, error_message "
    "FROM sys_load_error_detail WHERE session_id = pg_backend_pid() ORDER BY start_time DESC LIMIT 1"
)
_VIEWS_ON = (
    "SELECT count(*) FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
    "JOIN pg_class c ON c.oid = d.refobjid JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = $1 AND c.relname = $2 AND r.ev_class <> c.oid"
)
_KEYS_OF = (
    "SELECT count(*) FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = $1 AND c.relname = $2 AND o.contype IN ('p', 'u', 'f')"
)
_COMMENTS_ON = (
    "SELECT count(*) FROM pg_description d JOIN pg_class c ON c.oid = d.objoid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2"
)
_COLUMN_GRANTS = (
    "SELECT count(*) FROM svv_column_privileges "
    "WHERE namespace_name = $1 AND relation_name = $2 AND column_name = $3"
)
_MASKING_ON = "SELECT count(*) FROM svv_attached_masking_policy WHERE schema_name = $1 AND table_name = $2"
_HANGING_ON = (
    _VIEWS_ON,
    _KEYS_OF,
    _COMMENTS_ON,
    "SELECT count(*) FROM svv_column_privileges WHERE namespace_name = $1 AND relation_name = $2",
    "SELECT count(*) FROM svv_rls_attached_policy WHERE relschema = $1 AND relname = $2",
    _MASKING_ON,
)
_OWN = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = $2 AND tableowner = current_user"
_SUPERUSER = "SELECT count(*) FROM svv_user_info WHERE user_name = current_user AND superuser"
