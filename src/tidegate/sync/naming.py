"""What a table's columns are called at its target: decided once, remembered in the state, never changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.core.errors import ConfigError
from tidegate.core.names import NameRules, NamesClash, changed_names, name_columns
from tidegate.core.strategies import FileLayout, Placement
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId, Watermark
from tidegate.state.contract import Store
from tidegate.sync.streams import family
from tidegate.targets.contract import TargetTable

_MAPPING_HINT = "change the mapping with `tidegate columns map` or `tidegate columns unmap`"


@dataclass(frozen=True)
class Remembered:
    """What the streams of a table know of its columns at the target."""

    names: Mapping[str, str]
    loaded: bool
    """Whether any of them has loaded rows."""


@dataclass(frozen=True)
class Names:
    """What the columns of several schemas of a table are called at its target.

    Columns of different schemas can share a name: one that was renamed goes on where the old one ended.
    """

    newest: Mapping[str, str]
    older: Mapping[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    """By the columns of a schema."""

    def of(self, schema: Schema) -> Mapping[str, str]:
        return self.older.get(schema.names, self.newest)

    @property
    def all(self) -> dict[str, str]:
        """Each column's name; of one that has several, the one it has by now."""
        found: dict[str, str] = {}
        for names in (self.newest, *self.older.values()):
            found = {**names, **found}
        return found

    @property
    def lasting(self) -> dict[str, str]:
        """What the state shall remember: no name stays a column's own in which another one goes on."""
        taken = set(self.newest.values())
        return {
            column: name for column, name in self.all.items() if column in self.newest or name not in taken
        }


@dataclass(frozen=True)
class Naming:
    """How one table's columns get their names."""

    rules: NameRules
    mapped: Mapping[str, str]
    """What somebody has decided."""
    store: Store

    def names(
        self, stream: StreamId, columns: Sequence[str], there: Callable[[], Collection[str]]
    ) -> dict[str, str]:
        """The target's name of each column; `there` tells what the table has, and is asked if need be."""
        return dict(self.of_all(stream, columns, (), there).newest)

    def of_all(
        self,
        stream: StreamId,
        newest: Sequence[str],
        older: Iterable[tuple[str, ...]],
        there: Callable[[], Collection[str]],
    ) -> Names:
        """The same for the newest schema, and for those before it, of which the newest comes first."""
        known, schemas = self.remembered(stream), list(dict.fromkeys(older))
        columns = list(dict.fromkeys([*newest, *(name for schema in schemas for name in schema)]))
        if not self.mapped and not known.names and self._are_plain(columns):
            return Names({column: column for column in columns})
        present = there()
        kept = self._still_there(known, present)
        self.demand_unmoved(stream, columns, kept, present, loaded=known.loaded)
        try:
            now = name_columns(newest, self.rules, mapped=self.mapped, remembered=kept, there=present)
            if known.loaded:
                self._demand_own(stream, now, kept, present)
            return self._with_older(now, schemas, {**kept, **self.mapped}, present)
        except NamesClash as error:
            raise ConfigError(
                f"columns {error} at the target", where=str(stream), hint=_MAPPING_HINT
            ) from error

    def _with_older(
        self,
        now: dict[str, str],
        schemas: Iterable[tuple[str, ...]],
        decided: Mapping[str, str],
        there: Collection[str],
    ) -> Names:
        """A column that is there no more keeps the name that it had before the ones after it came."""
        gone = {column: name for column, name in decided.items() if column not in now}
        spelled = {self.rules.fold(name): name for name in now.values()}
        older: dict[tuple[str, ...], dict[str, str]] = {}
        for columns in schemas:
            still = {column: now[column] for column in columns if column in now}
            taken = {self.rules.fold(name) for name in still.values()}
            free = {column: name for column, name in gone.items() if self.rules.fold(name) not in taken}
            found = name_columns(columns, self.rules, mapped=still, remembered=free, there=there)
            older[columns] = {
                column: spelled.get(self.rules.fold(name), name) for column, name in found.items()
            }
            gone = {**older[columns], **gone}
            gone = {column: name for column, name in gone.items() if column not in now}
        return Names(now, older)

    def remembered(self, stream: StreamId) -> Remembered:
        """All streams of a table fill the same columns, so each knows what the others have decided."""
        marks = [self.store.read(member).watermark for member in family(stream)]
        names: dict[str, str] = {}
        for mark in marks:
            names = {**dict(mark.names if mark else ()), **names}
        return Remembered(names, any(mark is not None and mark.loaded.at is not None for mark in marks))

    def demand_unmoved(
        self,
        stream: StreamId,
        columns: Sequence[str],
        remembered: Mapping[str, str],
        there: Collection[str],
        *,
        loaded: bool,
    ) -> None:
        """Refuse a mapping that would leave a column behind in which rows have arrived already."""
        if not loaded:
            return
        present = {self.rules.fold(name): name for name in there}
        now = name_columns(columns, self.rules, remembered=remembered, there=there)
        for column, wanted in self.mapped.items():
            current = now.get(column)
            if current is None or self.rules.fold(current) == self.rules.fold(wanted):
                continue
            found = present.get(self.rules.fold(current))
            if found is not None:
                raise _left_behind(stream, column, found, wanted, renamable=wanted not in there)

    def _demand_own(
        self,
        stream: StreamId,
        names: Mapping[str, str],
        remembered: Mapping[str, str],
        there: Collection[str],
    ) -> None:
        """Refuse a mapping to a name under which another column of the source has its rows so far."""
        present = {self.rules.fold(name) for name in there}
        takers = {self.rules.fold(wanted): column for column, wanted in self.mapped.items()}
        before = name_columns(list(names), self.rules, remembered=remembered, there=there)
        for column, name in before.items():
            folded = self.rules.fold(name)
            moved = column not in self.mapped and folded != self.rules.fold(names[column])
            if moved and folded in present and folded in takers:
                raise ConfigError(
                    f"column `{takers[folded]}` is mapped to `{name}`, and that is where the rows so far "
                    f"have column `{column}`",
                    where=str(stream),
                    hint=_MAPPING_HINT,
                )

    def _are_plain(self, columns: Sequence[str]) -> bool:
        folded = {self.rules.fold(name) for name in columns}
        return len(folded) == len(columns) and all(self.rules.safe_column(name) == name for name in columns)

    def _still_there(self, known: Remembered, there: Collection[str]) -> dict[str, str]:
        """A column that somebody renamed or dropped at the target has lost the name we knew it by."""
        if not known.loaded or not there:
            return dict(known.names)
        present = {self.rules.fold(name) for name in there}
        return {column: name for column, name in known.names.items() if self.rules.fold(name) in present}


def _left_behind(stream: StreamId, column: str, current: str, wanted: str, *, renamable: bool) -> ConfigError:
    rename = (
        f"rename it at the target first (ALTER TABLE … RENAME COLUMN {current} TO {wanted}), "
        "and the mapping is accepted"
        if renamable
        else f"move its values to {wanted} and drop it at the target first, and the mapping is accepted"
    )
    return ConfigError(
        f"column `{column}` is mapped to `{wanted}`, but its rows so far are in `{current}`, "
        "and would stay there",
        where=str(stream),
        hint=f"{rename}; or keep the name with `tidegate columns map`",
    )


def newly_named(mark: Watermark, names: Mapping[str, str]) -> dict[str, str] | None:
    """What the state shall remember from now on; None if it does already."""
    before = dict(mark.names)
    after = {**{c: n for c, n in before.items() if c not in names}, **changed_names(names)}
    return None if after == before else after


def named_table(table: TargetTable, names: Mapping[str, str]) -> TargetTable:
    return replace(
        table,
        key=tuple(names[column] for column in table.key),
        cursor=tuple(names[column] for column in table.cursor),
        texts=tuple(names[column] for column in table.texts if column in names),
        files=_named_files(table, names),
        placement=_named_placement(table, names),
    )


def _named_files(table: TargetTable, names: Mapping[str, str]) -> FileLayout:
    layout = table.files
    absent = [column for column in (*layout.partition_by, *layout.cluster_by) if column not in names]
    if absent:
        raise ConfigError(
            f"there is no column `{absent[0]}` to lay out files by",
            where=str(table.stream),
            hint="look at `partition_by` and `cluster_by` under `delta`",
        )
    return FileLayout(
        tuple(names[column] for column in layout.partition_by),
        tuple(names[column] for column in layout.cluster_by),
    )


def _named_placement(table: TargetTable, names: Mapping[str, str]) -> Placement:
    place = table.placement
    wanted = (*place.sort_key, *((place.dist_key,) if place.dist_key else ()))
    absent = [column for column in wanted if column not in names]
    if absent:
        raise ConfigError(
            f"there is no column `{absent[0]}` to place rows by",
            where=str(table.stream),
            hint="look at `dist_key` and `sort_key` under `redshift`",
        )
    return replace(
        place,
        dist_key=names[place.dist_key] if place.dist_key else None,
        sort_key=tuple(names[column] for column in place.sort_key),
    )
