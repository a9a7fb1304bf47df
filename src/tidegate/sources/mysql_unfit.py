"""Values that columns of MySQL may hold and nobody else can: how to tell them, and where they are."""

from __future__ import annotations

from contextlib import closing

from tidegate.core.errors import LossyValue
from tidegate.core.types import Column, Kind
from tidegate.reach.login import Login
from tidegate.sources.contract import Read
from tidegate.sources.mysql_session import connect, errors, quote, run
from tidegate.sources.mysql_types import halved, may_be_halved, unmapped, without_halves
from tidegate.sources.readers import exact

_DATES = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.INSTANT})


def unfit(column: Column) -> str | None:
    """The condition that a column's value is such a one; None if there are none."""
    name = quote(column.name)
    if column.charset:
        return unmapped(name)
    if may_be_halved(column):
        return halved(name)
    return _is_zero(column) if column.type.kind in _DATES else None


def unreadable(login: Login, read: Read) -> LossyValue | None:
    """The first value that has made a driver give up, if there is one: a date that is none, half a character.

    What nobody has decided on is selected as it is, and no driver says more than that it cannot read it.
    """
    asked = ((column, unfit(column)) for column in read.columns if not column.charset)
    suspects = {column: wrong for column, wrong in asked if wrong and column.name not in read.nulled}
    if not suspects:
        return None
    values = [f"LEFT({without_halves(quote(column.name))}, 99)" for column in suspects]
    rows = [f"CAST({quote(name)} AS CHAR)" for name in read.positions]
    either = " OR ".join(suspects.values())
    sql = (
        f"SELECT {', '.join([*suspects.values(), *values, *rows])} FROM {read.relation} "
        f"WHERE (\n{read.where}\n) AND ({either}) LIMIT 1"
    )
    with closing(connect(login)) as session, errors(login, exact.place(read)):
        found = run(session, sql)
    for row in found:
        number = row.index("1")
        column, value = list(suspects)[number], exact.shortened(str(row[len(suspects) + number]))
        named = exact.named_row(zip(read.positions, map(str, row[2 * len(suspects) :]), strict=True))
        return exact.lossy(read, column, value, named, as_text=column.type.kind in _DATES)
    return None


def _is_zero(column: Column) -> str:
    name = quote(column.name)
    if column.type.kind is Kind.INSTANT:
        return f"COALESCE({name} = 0, 0)"
    beyond = f"DAYOFMONTH({name}) > DAYOFMONTH(LAST_DAY({name}))"
    return f"COALESCE(DAYOFMONTH({name}) = 0 OR MONTH({name}) = 0 OR {beyond}, 0)"
