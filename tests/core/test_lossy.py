"""What is decided about values that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.core.lossy import Fit, LossyPolicy, OnLossy, fit, tally
from tidegate.core.mappings import Limits
from tidegate.core.types import Column, DataType, Kind

BORN = Column("born", DataType(Kind.DATE), nullable=False, native="date")
NOTE = Column("note", DataType(Kind.TEXT), native="text")
PRICE = Column("price", DataType(Kind.DECIMAL, 12, 2), native="decimal(12,2)")
ROUTE = LossyPolicy("mysql", "duckdb")


def decided(policy: OnLossy, source: str = "mysql", target: str = "duckdb") -> LossyPolicy:
    return LossyPolicy(source, target, policy)


def test_by_default_columns_travel_as_they_are() -> None:
    assert fit([BORN, NOTE, PRICE], ROUTE) == Fit((BORN, NOTE, PRICE))


def test_a_column_that_may_hold_what_does_not_fit_is_carried_as_text_and_others_are_not() -> None:
    found = fit([BORN, NOTE, PRICE], decided(OnLossy.TEXT))

    as_text = replace(BORN, type=DataType(Kind.TEXT))
    assert found == Fit((as_text, NOTE, PRICE), as_written=("born", "note"))
    assert fit([NOTE], decided(OnLossy.TEXT, source="sqlite")) == Fit((NOTE,), as_written=("note",))


@pytest.mark.parametrize("policy", OnLossy)
def test_a_column_that_the_target_has_no_type_for_travels_as_text(policy: OnLossy) -> None:
    share, part = (Column("share", DataType(Kind.DECIMAL, 38, scale)) for scale in (38, 37))
    into_redshift = decided(policy, target="redshift")

    assert fit([share, part], into_redshift, needed={"share"}).columns == (
        replace(share, type=DataType(Kind.TEXT)),
        part,
    )
    assert fit([share], decided(policy)).columns == (share,)


def test_a_column_in_which_values_become_null_may_be_null() -> None:
    found = fit([BORN, NOTE, PRICE], decided(OnLossy.NULL))

    assert found == Fit((replace(BORN, nullable=True), NOTE, PRICE), nulled=("born", "note"))


def test_one_column_is_decided_on_by_itself() -> None:
    policy = replace(decided(OnLossy.NULL), columns={"born": OnLossy.ERROR})

    assert fit([BORN], policy) == Fit((BORN,))


@pytest.mark.parametrize("policy", OnLossy)
def test_what_rows_are_found_by_arrives_as_it_is(policy: OnLossy) -> None:
    assert fit([BORN], decided(policy), needed={"born"}) == Fit((BORN,))


def test_a_target_has_limits_of_its_own() -> None:
    into_postgres = decided(OnLossy.NULL, target="postgresql")
    into_redshift = decided(OnLossy.ERROR, target="redshift")

    assert fit([NOTE], into_postgres) == Fit((NOTE,), ("note",), (("note", Limits(nul=False)),))
    assert dict(fit([NOTE, BORN], into_redshift).limits).keys() == {"note", "born"}


def test_nobody_looks_for_what_the_source_cannot_hold_either() -> None:
    assert fit([NOTE], decided(OnLossy.NULL, source="postgresql", target="postgresql")) == Fit((NOTE,))


def test_between_unknown_databases_nothing_is_decided() -> None:
    assert fit([BORN], LossyPolicy(otherwise=OnLossy.TEXT)) == Fit((BORN,))


def test_counts_add_up_by_column() -> None:
    assert tally({"a": 1, "b": 0}, (("a", 2), ("c", 5))) == (("a", 3), ("c", 5))
    assert tally() == ()
