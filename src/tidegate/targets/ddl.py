"""What has to happen to a table before rows can go in: decided here, as a value, done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.names import RUN_COLUMN, NameRules
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, DataType, Kind, Schema
from tidegate.targets.contract import TargetTable
from tidegate.targets.fitting import holds, is_text_of, widened

_RUN = Column(RUN_COLUMN, DataType(Kind.INT64))


@dataclass(frozen=True, slots=True)
class TableName:
    schema: str
    name: str

    @classmethod
    def parse(cls, text: str, default_schema: str) -> TableName:
        """`name` lies in the target's own schema, `schema.name` in another one."""
        schema, dot, name = text.partition(".")
        found = cls(schema, name) if dot else cls(default_schema, text)
        if not found.schema or not found.name:
            raise TargetError(f"`{text}` is not the name of a table", hint="write `name` or `schema.name`")
        return found

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column as it is at the target."""

    name: str
    native: str
    """Its type in the target's own words."""
    type: DataType | None
    """The same in declared terms; None for a type that no rows of ours could fill exactly."""
    nullable: bool = True
    automatic: bool = False
    """It has a default, is an identity or is computed: it looks after itself when rows do not bring it."""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    """Quoted names, as SQL wants them."""
    return ", ".join(quote(name) for name in names)


@dataclass(frozen=True, slots=True)
class Words:
    """What databases call differently in statements that are the same otherwise."""

    text: str = "text"
    now: str = "now()"


PLAIN = Words()


def _alter_type(relation: str, column: str, native: str) -> list[str]:
    return [f"ALTER TABLE {relation} ALTER COLUMN {quote(column)} TYPE {native}"]


def _no_attributes(table: TargetTable) -> str:  # noqa: ARG001 - the signature of those that have some
    return ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a target's DDL has of its own."""

    native: Callable[[DataType], str]
    names: NameRules
    unique_keys: bool
    """Whether a table to be merged into is made with its key as primary key."""
    words: Words = PLAIN
    tells_nulls: bool = True
    """Whether it has IS NOT DISTINCT FROM."""
    pads_texts: bool = False
    """Whether texts are equal to it that differ only in the blanks at their ends."""
    retype: Callable[[str, str, str], list[str]] = _alter_type
    """The statements that give a column of a relation another type."""
    attributes: Callable[[TargetTable], str] = _no_attributes
    """What a new table is told beside its columns."""
    writes_text: bool = False
    """Whether dates, times and decimals go into a text column as text, and their columns can become one."""

    def fold(self, name: str) -> str:
        """Two names that fold to the same are the same to this target."""
        return self.names.fold(name)


@dataclass(frozen=True, slots=True)
class Widening:
    column: str
    before: str
    after: DataType


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The steps that make a table ready; none if it is."""

    create: tuple[Column, ...] = ()
    key: tuple[str, ...] = ()
    attributes: str = ""
    add: tuple[Column, ...] = ()
    widen: tuple[Widening, ...] = ()

    @property
    def ready(self) -> bool:
        return not (self.create or self.add or self.widen)

    def statements(self, relation: str, dialect: Dialect) -> list[str]:
        if self.create:
            return [_create(relation, self.create, self.key, dialect) + self.attributes]
        added = [
            f"ALTER TABLE {relation} ADD COLUMN {quote(column.name)} {dialect.native(column.type)}"
            for column in self.add
        ]
        changed = [
            statement
            for step in self.widen
            for statement in dialect.retype(relation, step.column, dialect.native(step.after))
        ]
        return added + changed

    def words(self, name: str, dialect: Dialect) -> list[str]:
        if self.create:
            return [f"create table {name}"]
        words = []
        if self.add:
            names = ", ".join(column.name for column in self.add)
            words.append(f"add {'column' if len(self.add) == 1 else 'columns'} {names} to {name}")
        words += [
            f"widen {step.column} of {name} from {step.before} to {dialect.native(step.after)}"
            for step in self.widen
        ]
        return words


def action(table: TargetTable, plan: TablePlan, dialect: Dialect) -> str:
    """What preparing and loading would do, in words."""
    deed, preposition = _deed(table)
    steps = plan.words(table.name, dialect)
    return ", ".join([*steps, f"then {deed}"]) if steps else f"{deed} {preposition} {table.name}"


def _deed(table: TargetTable) -> tuple[str, str]:
    """What a load does, and the word that joins it to the table's name."""
    match table.mode:
        case WriteMode.APPEND:
            return "append", "to"
        case WriteMode.MERGE:
            return f"merge by {', '.join(table.key)}", "into"
        case WriteMode.REPLACE:
            return "replace all rows", "of"


def demand_ready(
    table: TargetTable, schemas: Iterable[Schema], columns: Sequence[TargetColumn], dialect: Dialect
) -> None:
    """Raise unless rows of these schemas go into the table as it is."""
    if not columns:
        raise TargetError("the table is gone", where=table.name, hint="run the sync again")
    for schema in schemas:
        plan = plan_table(table, schema, columns, dialect)
        if not plan.ready:
            steps = ", ".join(plan.words(table.name, dialect))
            raise IncompatibleTable(f"the table is not ready: {steps}", where=table.name)


def _create(relation: str, columns: tuple[Column, ...], key: tuple[str, ...], dialect: Dialect) -> str:
    parts = [
        f"{quote(column.name)} {dialect.native(column.type)}{' NOT NULL' if column.name in key else ''}"
        for column in columns
    ]
    if key and dialect.unique_keys:
        parts.append(f"PRIMARY KEY ({listed(key)})")
    return f"CREATE TABLE {relation} ({', '.join(parts)})"


def plan_table(
    table: TargetTable, schema: Schema, existing: Sequence[TargetColumn], dialect: Dialect
) -> TablePlan:
    """The steps from the table as it is (no columns: it is not there) to one that takes these rows.

    Raises `IncompatibleTable`, naming everything that is in the way, and then nothing must be changed.
    """
    _check_names(table, schema, dialect)
    wanted = schema.columns + ((_RUN,) if table.mode is WriteMode.MERGE else ())
    if not existing:
        key = table.key if table.mode is WriteMode.MERGE else ()
        return TablePlan(create=wanted, key=key, attributes=dialect.attributes(table))
    there = {dialect.fold(column.name): column for column in existing}
    clashes: list[str] = []
    added: list[Column] = []
    changed: list[Widening] = []
    for column in wanted:
        found = there.get(dialect.fold(column.name))
        if found is None:
            added.append(column)
        elif found.type is None or not _takes(found.type, column.type, dialect):
            becomes_text = dialect.writes_text and column.name in table.texts
            wide = (
                _widened(found.type, column.type, becomes_text=becomes_text)
                if found.type is not None
                else None
            )
            if wide is None:
                clashes.append(_clash(column, found, dialect))
            else:
                changed.append(Widening(found.name, found.native, wide))
    clashes += _demanding(wanted, existing, dialect)
    if clashes:
        raise _incompatible(table, clashes)
    return TablePlan(add=tuple(added), widen=tuple(changed))


def _takes(column: DataType, value: DataType, dialect: Dialect) -> bool:
    return holds(column, value) or (dialect.writes_text and is_text_of(column, value))


def _widened(column: DataType, value: DataType, *, becomes_text: bool) -> DataType | None:
    return value if becomes_text and is_text_of(value, column) else widened(column, value)


def _check_names(table: TargetTable, schema: Schema, dialect: Dialect) -> None:
    problems = []
    seen: dict[str, str] = {}
    for name in schema.names:
        twin = seen.get(dialect.fold(name))
        if twin == name:
            problems.append(f"there are two columns {name}")
        elif twin is not None:
            problems.append(f"columns {twin} and {name} have the same name here, where case does not count")
        seen[dialect.fold(name)] = name
        if len(name.encode()) > dialect.names.longest:
            problems.append(f"column {name} is longer than {dialect.names.longest} bytes")
    if RUN_COLUMN in seen:
        problems.append(f"column {RUN_COLUMN} of the rows has a name that Tidegate needs for itself")
    needed = (*table.key, *table.cursor) if table.mode is WriteMode.MERGE else ()
    absent = [name for name in dict.fromkeys(needed) if name not in schema.names]
    problems += [f"column {name} is needed to merge, and the rows do not have it" for name in absent]
    if table.mode is WriteMode.MERGE and not table.key:
        problems.append("rows are merged by a key, and none is known")
    if problems:
        hint = "choose the columns with `columns:` and the key with `keys:`"
        raise IncompatibleTable("; ".join(problems), where=table.name, hint=hint)


def _clash(column: Column, found: TargetColumn, dialect: Dialect) -> str:
    return (
        f"column {column.name}: the rows bring {column.type} ({dialect.native(column.type)}), "
        f"the table has {found.native}"
    )


def _demanding(wanted: Sequence[Column], existing: Sequence[TargetColumn], dialect: Dialect) -> list[str]:
    brought = {dialect.fold(column.name) for column in wanted}
    return [
        f"column {column.name}: the rows do not have it, the table has {column.native} NOT NULL"
        for column in existing
        if not column.nullable and not column.automatic and dialect.fold(column.name) not in brought
    ]


def _incompatible(table: TargetTable, clashes: Sequence[str]) -> IncompatibleTable:
    return IncompatibleTable(
        "the table does not fit the rows; " + "; ".join(clashes),
        where=table.name,
        hint="change those columns, or rename the table and it is made anew, or choose another `target_name`",
    )


def unwidened(table: TargetTable, plan: TablePlan, dialect: Dialect, reason: str) -> IncompatibleTable:
    """For a target that refuses to change a column's type."""
    steps = [
        f"column {step.column}: the rows need {dialect.native(step.after)}, the table has {step.before}"
        for step in plan.widen
    ]
    return _incompatible(table, [*steps, reason])
