"""Two declarations of one column, in the words of its source."""

from __future__ import annotations

import pytest

from tidegate.core.natives import Relation, relation

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
        ("mysql", "point", "geometry", Relation.WIDER),
        ("mysql", "point", "blob", Relation.OTHER),
        ("mysql", "inet4", "inet6", Relation.OTHER),
        ("mysql", "double(12,4)", "double(12,2)", Relation.NARROWER),
        ("postgresql", "interval", "int4range", Relation.OTHER),
        ("postgresql", "integer[]", "text[]", Relation.OTHER),
        ("postgresql", "numeric(50,10)", "numeric(50,2)", Relation.NARROWER),
        ("postgresql", "numeric", "text", Relation.OTHER),
    ],
)
def test_what_else_can_become_of_a_column(source: str, before: str, after: str, wanted: Relation) -> None:
    assert relation(source, before, after) is wanted
