"""Names become safe for a target, and stay what they are."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import Server
from tidegate.core import reserved
from tidegate.core.names import RULES, NameRules, NamesClash, name_columns, rules_for

DUCKDB, POSTGRESQL, REDSHIFT, DELTA = (RULES[name] for name in ("duckdb", "postgresql", "redshift", "delta"))
LONG = "a" * 62 + "ü" * 40
RULES_BY_NAME = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)

some_names = st.lists(
    st.text("aAbB1 .$-_ü表", max_size=5) | st.sampled_from(["order", "Order", "xmin", "_tidegate_run", LONG]),
    unique=True,
    max_size=6,
)


@pytest.mark.parametrize(
    ("rules", "name", "safe"),
    [
        (POSTGRESQL, "select", "select"),
        (POSTGRESQL, 'a "b" %s', 'a "b" %s'),
        (POSTGRESQL, "a\0b", "a_b"),
        (POSTGRESQL, "xmin", "xmin_"),
        (POSTGRESQL, "_tidegate_run", "_tidegate_run_"),
        (POSTGRESQL, "x" * 63, "x" * 63),
        (POSTGRESQL, "x" * 64, "x" * 54 + "_7ce100971f64e7001e8fe5a51973ecdf"[:9]),
        (DUCKDB, "Order Id", "Order Id"),
        (DUCKDB, "_TIDEGATE_RUN", "_TIDEGATE_RUN_"),
        (REDSHIFT, "Order Id", "order_id"),
        (REDSHIFT, "2nd", "_2nd"),
        (REDSHIFT, "ORDER", "order_"),
        (REDSHIFT, "oid", "oid_"),
        (REDSHIFT, "Größe", "größe"),
        (REDSHIFT, "a$b", "a$b"),
        (DELTA, "a b;c", "a_b_c"),
        (DELTA, "order", "order"),
    ],
)
def test_a_name_changes_only_where_it_must(rules: NameRules, name: str, safe: str) -> None:
    assert rules.safe_column(name) == safe


def test_tables_have_rules_of_their_own() -> None:
    assert POSTGRESQL.safe_table("xmin") == "xmin"
    assert REDSHIFT.safe_table("Order") == "order_"
    assert DELTA.safe_table("../etc/passwd") == "t___etc_passwd"
    assert rules_for("another kind").safe_table("any thing") == "any thing"


@RULES_BY_NAME
def test_a_long_name_is_cut_between_characters_and_told_from_its_like(rules: NameRules) -> None:
    one, other = ("表" * 30_000 + end for end in "ab")
    short = rules.safe_column(one)
    assert len(short.encode()) <= rules.longest
    assert short != rules.safe_column(other)
    assert short.rpartition("_")[0] == "表" * len(short.rpartition("_")[0])


@RULES_BY_NAME
@given(names=some_names)
def test_names_are_legal_and_all_different(rules: NameRules, names: list[str]) -> None:
    found = name_columns(names, rules)
    assert list(found) == names
    assert len({rules.fold(name) for name in found.values()}) == len(names)
    for name in found.values():
        assert rules.wrong(name) is None
        assert rules.safe_column(name) == name  # safe names are as safe as they get


@RULES_BY_NAME
@given(before=some_names, after=some_names, order=st.randoms(use_true_random=False))
def test_no_name_changes_because_another_column_came(
    rules: NameRules, before: list[str], after: list[str], order: object
) -> None:
    first = name_columns(before, rules)
    columns = list(dict.fromkeys([*after, *before]))
    order.shuffle(columns)  # type: ignore[attr-defined]
    remembered = {column: name for column, name in first.items() if column != name}
    second = name_columns(columns, rules, remembered=remembered, there=list(first.values()))
    assert {column: second[column] for column in before} == first


def test_of_two_names_that_are_the_same_here_the_first_keeps_its_own() -> None:
    assert name_columns(["Name", "name"], DUCKDB)["Name"] == "Name"
    assert name_columns(["name", "Name"], DUCKDB, there=["Name"])["Name"] == "Name"
    assert name_columns(["a b", "a_b"], REDSHIFT)["a_b"] == "a_b"
    later = name_columns(["a_b", "a b"], REDSHIFT, remembered={"a b": "a_b"}, there=["a_b"])
    assert later["a b"] == "a_b"
    assert later["a_b"].startswith("a_b_")


def test_a_mapping_goes_first_and_must_be_unambiguous() -> None:
    found = name_columns(["id", "customer"], DUCKDB, mapped={"customer": "ID"})
    assert found["customer"] == "ID"
    assert found["id"].startswith("id_")
    with pytest.raises(NamesClash, match="a and b would both be called x"):
        name_columns(["a", "b"], DUCKDB, mapped={"a": "X", "b": "x"})


def test_the_name_of_a_column_that_is_gone_stays_its_own() -> None:
    found = name_columns(["a_b"], REDSHIFT, remembered={"a b": "a_b"}, there=["a_b"])
    assert found["a_b"] != "a_b"


def test_reserved_words_are_those_of_duckdb() -> None:
    found = duckdb.connect().execute(
        "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    )
    assert {word for (word,) in found.fetchall()} == reserved.DUCKDB


def test_reserved_words_hold_those_of_postgresql(postgres: Server) -> None:
    found = postgres.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')")
    assert {word for (word,) in found} <= reserved.POSTGRESQL


def test_system_columns_are_those_of_postgresql(postgres: Server) -> None:
    found = postgres.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_class'::regclass AND attnum < 0"
    )
    assert {str(name) for (name,) in found} == reserved.POSTGRESQL_COLUMNS
