"""How a table could be followed, judged by its columns: what `tidegate init --from-source` writes down.

A suggestion never loses a row in silence. A table that shows when its rows change is followed by that; one
that does not is read whole, since nobody but its owner knows whether its rows are only ever added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from tidegate.core.strategies import Strategy
from tidegate.core.types import Column, Kind, Schema

_MOMENTS = frozenset({Kind.TIMESTAMP, Kind.INSTANT})
_INTEGERS = frozenset(
    {Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64}
)
_CHANGED = ("updat", "modif", "chang")
"""What names of columns contain that say when a row was last changed."""


_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Suggestion:
    strategy: Strategy
    timestamp: str | None
    id: str | None
    remarks: tuple[str, ...]
    """What the owner of the table should know, and may know better."""


def suggest(schema: Schema) -> Suggestion:
    moment, number = _changed(schema), _number(schema)
    if moment is None:
        return _whole(number)
    remarks = []
    if moment.nullable:
        remarks.append(
            f"{moment.name} may be NULL; rows without it stop the table unless `null_cursor` says more"
        )
    if not schema.key:
        remarks.append("without a primary key every version of a row is kept; name `keys` to merge them")
    strategy = Strategy.TIMESTAMP_ONLY if number is None else Strategy.HYBRID
    return Suggestion(strategy, moment.name, number.name if number else None, tuple(remarks))


def _whole(number: Column | None) -> Suggestion:
    remarks = ["no column tells when a row was changed, so all of it is read every time"]
    if number is not None:
        remarks.append(
            f"if its rows are only ever added: cdc_strategy: id_only, cdc_id_column: {_scalar(number.name)}"
        )
    return Suggestion(Strategy.FULL_SYNC, None, None, tuple(remarks))


def _changed(schema: Schema) -> Column | None:
    """The column that tells when a row was changed; rather one that always does."""
    found = [
        column
        for column in schema.columns
        if column.type.kind in _MOMENTS and any(part in column.name.lower() for part in _CHANGED)
    ]
    return min(found, key=lambda column: column.nullable, default=None)


def _number(schema: Schema) -> Column | None:
    """The key, where it is one number."""
    if len(schema.key) != 1:
        return None
    column = schema.column(schema.key[0])
    return column if column.type.kind in _INTEGERS else None


# --- As a file -----------------------------------------------------------------


def pipeline_text(described: Mapping[str, str], tables: Mapping[str, Suggestion]) -> str:
    """A pipeline's file, for a person to go over."""
    lines = [
        "# Written from the tables of its source: go over it before the first sync.",
        f"# See what it would do: tidegate sync -p {_scalar(described['name'])} --dry-run",
        "",
        "pipeline:",
        *(f"  {key}: {_scalar(value)}" for key, value in described.items()),
        "",
        "tables:",
    ]
    for name, suggestion in tables.items():
        lines += [f"  {_scalar(name)}:", *(f"    {line}" for line in _entry(suggestion)), ""]
    return "\n".join(lines)


def _entry(suggestion: Suggestion) -> list[str]:
    settings = {
        "cdc_strategy": suggestion.strategy.value,
        "cdc_timestamp_column": suggestion.timestamp,
        "cdc_id_column": suggestion.id,
    }
    return [
        *(f"# {remark}" for remark in suggestion.remarks),
        *(f"{key}: {_scalar(value)}" for key, value in settings.items() if value is not None),
    ]


def _scalar(text: str) -> str:
    """As YAML writes it, on one line: plain where it reads back as the same text, else in double quotes."""
    plain = _PLAIN.fullmatch(text) is not None and yaml.safe_load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)
