"""What a table's columns are called at its target: decided once, remembered in the state, never changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.core.errors import ConfigError
from tidegate.core.names import NameRules, NamesClash, changed_names, name_columns
from tidegate.core.strategies import FileLayout, Placement
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
        known = self.remembered(stream)
        if not self.mapped and not known.names and self._are_plain(columns):
            return {column: column for column in columns}
        present = there()
        kept = self._still_there(known, present)
        self.demand_unmoved(stream, columns, kept, present, loaded=known.loaded)
        try:
            return name_columns(columns, self.rules, mapped=self.mapped, remembered=kept, there=present)
        except NamesClash as error:
            raise ConfigError(
                f"columns {error} at the target", where=str(stream), hint=_MAPPING_HINT
            ) from error

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
