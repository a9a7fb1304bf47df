"""Two declarations of one column, in the words of its source."""

from __future__ import annotations

import pytest

from tidegate.core.natives import Relation, is_wide_decimal, outgrown, relation

WIDER: list[tuple[str, str, str]] = [
    ("mysql", "mediumint(9)", "int(11)"),
    ("mysql", "mediumint unsigned", "int unsigned"),
    ("mysql", "year(4)", "smallint(6)"),
    ("mysql", "decimal(50,10)", "decimal(65,12)"),
    ("mysql", "time", "time(6)"),
    ("mysql", "bit(4)", "bit(8)"),
    ("mysql", "enum('a','b')", "enum('b','a','c')"),
    ("mysql", "set('a','b')", "set('a','b','c')"),
    ("mysql", "float(10,2)", "float"),
    ("postgresql", "numeric(50,10)", "numeric"),
    ("postgresql", "interval(3)", "interval"),
    ("postgresql", "interval day to second(2)", "interval day to second(3)"),
    ("postgresql", "time(3) with time zone", "time with time zone"),
    ("postgresql", "bit varying(5)", "bit varying"),
    ("postgresql", "character varying(5)[]", "character varying(9)[]"),
]


@pytest.mark.parametrize(("source", "less", "more"), WIDER)
def test_what_holds_more_is_wider_and_what_holds_less_narrower(source: str, less: str, more: str) -> None:
    assert relation(source, less, more) is Relation.WIDER
    assert relation(source, more, less) is Relation.NARROWER


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("mysql", "int(11)", "int"),
        ("mysql", "int(5)", "int(11)"),
        ("mysql", "varchar(5)", "text"),
        ("mysql", "varchar(5)", "varchar(5) /*M!100301 COMPRESSED*/"),
        ("mysql", "binary(4)", "varbinary(4)"),
        ("mysql", "char(4)", "char(9)"),
        ("mysql", "char(4)", "varchar(4)"),
        ("postgresql", "name", "text"),
        ("postgresql", "character varying(5)", "citext"),
        ("sqlite", "int", "tinyint"),
        ("", "interval", "xml"),
        ("postgresql", "", "xml"),
    ],
)
def test_what_is_written_otherwise_is_the_same(source: str, before: str, after: str) -> None:
    assert relation(source, before, after) is Relation.SAME


@pytest.mark.parametrize(
    ("source", "before", "after", "wanted"),
    [
        ("mysql", "decimal(65,30)", "decimal(65,2)", Relation.NARROWER),
        ("mysql", "decimal(9,2)", "decimal(12,2) unsigned", Relation.NARROWER),
        ("mysql", "decimal(9,2) unsigned", "decimal(9,2)", Relation.SAME),
        ("mysql", "enum('a','b')", "enum('a','B')", Relation.NARROWER),
        ("mysql", "enum('it''s','b(1)')", "enum('b(1)','it''s')", Relation.SAME),
        ("mysql", "enum('a','bcd')", "varchar(3)", Relation.WIDER),
        ("mysql", "enum('a','bcd')", "varchar(2)", Relation.NARROWER),
        ("mysql", "set('a','bcd')", "varchar(5)", Relation.WIDER),
        ("mysql", "set('a','bcd')", "varchar(4)", Relation.NARROWER),
        ("mysql", "varchar(9)", "enum('a')", Relation.OTHER),
        ("mysql", "enum('a')", "set('a')", Relation.OTHER),
        ("mysql", "set('a','b')", "set('b','a')", Relation.NARROWER),
        ("mysql", "set('a','c')", "set('a','b','c')", Relation.WIDER),
        ("mysql", "binary(4)", "binary(8)", Relation.NARROWER),
        ("mysql", "varbinary(4)", "binary(4)", Relation.NARROWER),
        ("mysql", "varchar(4)", "char(9)", Relation.NARROWER),
        ("mysql", "point", "geometry", Relation.WIDER),
        ("mysql", "point", "blob", Relation.OTHER),
        ("mysql", "inet4", "inet6", Relation.OTHER),
        ("mysql", "double(12,4)", "double(12,2)", Relation.NARROWER),
        ("postgresql", "bit(5)", "bit(8)", Relation.NARROWER),
        ("postgresql", "bit(8)", "bit(5)", Relation.NARROWER),
        ("postgresql", "text", "character(9)", Relation.NARROWER),
        ("postgresql", "text", "name", Relation.NARROWER),
        ("postgresql", "interval", "int4range", Relation.OTHER),
        ("postgresql", "integer[]", "text[]", Relation.OTHER),
        ("postgresql", "numeric(50,10)", "numeric(50,2)", Relation.NARROWER),
        ("postgresql", "numeric", "text", Relation.WIDER),
        ("postgresql", "numeric", "character varying(5)", Relation.OTHER),
        ("postgresql", "bit varying(5)", "text", Relation.WIDER),
        ("postgresql", "interval", "text", Relation.OTHER),
        ("postgresql", "enum('a','b')", "text", Relation.WIDER),
        ("postgresql", "enum('a','bcd')", "character varying(2)", Relation.NARROWER),
        ("postgresql", "enum('a','b')", "enum('a','c')", Relation.NARROWER),
        ("postgresql", "enum('a','b')", "enum('b','a')", Relation.SAME),
        ("postgresql", "enum('a','b')[]", "enum('a','c','b')[]", Relation.WIDER),
        ("postgresql", "enum('a','b')[]", "text", Relation.OTHER),
        ("postgresql", "enum('a','b')[]", "enum('a','b')", Relation.OTHER),
        ("postgresql", "text", "enum('a','b')", Relation.OTHER),
    ],
)
def test_what_else_can_become_of_a_column(source: str, before: str, after: str, wanted: Relation) -> None:
    assert relation(source, before, after) is wanted


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("numeric(38,2)", "numeric(40,2)", True),
        ("decimal(10,2)", "decimal(65,2)", True),
        ("numeric(38,2)", "numeric(40,4)", False),
        ("numeric(38,2)", "numeric", False),
        ("decimal(38,2)", "decimal(40,2) unsigned", False),
        ("numeric(38,2)", "text", False),
    ],
)
def test_decimals_outgrow_all_targets_if_their_text_stays_the_same(
    before: str,
    after: str,
    wanted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert outgrown("postgresql" if "numeric" in before else "mysql", before, after) is wanted


@pytest.mark.parametrize(
    ("native", "wide"),
    [
        ("decimal(38,10)", False),
        ("decimal(39,10) unsigned", True),
        ("numeric(5,-34)", True),
        ("numeric(3,39)", True),
        ("numeric", False),
        ("numeric(40,2)[]", False),
        ("text", False),
    ],
)
def test_decimals_are_wide_beyond_38_digits(native: str, wide: bool) -> None:  # noqa: FBT001
    assert is_wide_decimal(native) is wide
