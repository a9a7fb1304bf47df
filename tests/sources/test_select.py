"""A user's own SQL is one plain SELECT, or it is refused."""

from __future__ import annotations

import sys

import pytest

from tidegate.core.errors import ConfigError
from tidegate.sources import select

ACCEPTED = [
    ("mysql", "SELECT a, b FROM t WHERE a > 1"),
    ("mysql", "select * from t -- a comment"),
    ("mysql", "/* a comment */ SELECT 'a;b', \"x;y\" FROM `odd;name` # the end"),
    ("mysql", "(SELECT a FROM t)"),
    ("mysql", "SELECT a FROM t UNION ALL SELECT b FROM u"),
    ("mysql", "WITH x AS (SELECT 1 AS n) SELECT n FROM x"),
    ("mysql", "SELECT 'INSERT INTO t FOR UPDATE', `delete` FROM t"),
    ("postgres", "SELECT $$a;b$$, E'it\\'s' FROM t"),
    ("postgres", "SELECT /* nested /* comment */ */ a FROM t"),
    ("postgres", "SELECT DISTINCT ON (a) a, b->>'c' FROM t ORDER BY a, b DESC"),
    ("postgres", "SELECT count(*) FILTER (WHERE a > 0) OVER w FROM t WINDOW w AS (PARTITION BY b)"),
    ("sqlite", "SELECT a FROM t WHERE b LIKE 'x%' LIMIT 3"),
]

REFUSED = [
    ("mysql", "SELECT a INTO OUTFILE '/tmp/x' FROM t"),
    ("mysql", "SELECT a FROM t INTO DUMPFILE '/tmp/x'"),
    ("mysql", "SELECT a INTO @x FROM t"),
    ("mysql", "SELECT a FROM t FOR UPDATE"),
    ("mysql", "SELECT a FROM t LOCK IN SHARE MODE"),
    ("mysql", "SELECT a FROM t FOR SHARE SKIP LOCKED"),
    ("mysql", "SELECT a FROM (SELECT a FROM t FOR UPDATE) x"),
    ("mysql", "SELECT 1; DROP TABLE t"),
    ("mysql", "SELECT 1 /*! INTO OUTFILE '/tmp/x' */"),
    ("mysql", "SELECT 1 /*!50000 FOR UPDATE */"),
    ("mysql", "SELECT 1 /*M! INTO OUTFILE '/tmp/x' */"),
    ("mysql", "SELECT /*+ SET_VAR(time_zone = '+09:00') */ 1"),
    ("mysql", "SELECT 1 --1 INTO OUTFILE '/tmp/x'"),
    ("mysql", "CALL cleanup()"),
    ("mysql", "SET @x = 1"),
    ("mysql", "DO sleep(1)"),
    ("mysql", "HANDLER t OPEN"),
    ("mysql", "TABLE t"),
    ("mysql", "EXPLAIN SELECT 1"),
    ("mysql", "INSERT INTO t SELECT 1"),
    ("mysql", "REPLACE INTO t VALUES (1)"),
    ("mysql", "UPDATE t SET a = 1"),
    ("mysql", "WITH x AS (SELECT 1) DELETE FROM t"),
    ("mysql", "SELECT GET_LOCK('x', 10)"),
    ("mysql", "SELECT LOAD_FILE('/etc/passwd')"),
    ("mysql", ""),
    ("mysql", "-- nothing"),
    ("mysql", "SELECT ("),
    ("postgres", "SELECT a INTO u FROM t"),
    ("postgres", "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d"),
    ("postgres", "WITH i AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM i"),
    ("postgres", "SELECT a FROM t FOR NO KEY UPDATE"),
    ("postgres", "SELECT 1; SELECT 2"),
    ("postgres", "SELECT 1; -- and nothing else"),
    ("postgres", "COPY t TO STDOUT"),
    ("postgres", "DO $$ BEGIN END $$"),
    ("postgres", "VALUES (1)"),
    ("postgres", "SELECT nextval('s')"),
    ("postgres", "SELECT set_config('default_transaction_read_only', 'off', false)"),
    ("postgres", "SELECT pg_terminate_backend(1)"),
    ("postgres", "EXPLAIN ANALYZE DELETE FROM t"),
    ("sqlite", "ATTACH 'x' AS y"),
    ("sqlite", "PRAGMA query_only = OFF"),
    ("sqlite", "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x"),
    ("sqlite", "SELECT load_extension('x')"),
]


@pytest.mark.parametrize(("dialect", "sql"), ACCEPTED)
def test_one_plain_select_is_accepted_as_it_stands(dialect: str, sql: str) -> None:
    assert select.check(sql, dialect) == sql


def test_a_closing_semicolon_is_taken_off() -> None:
    assert select.check(" SELECT 1 ;; \n", "mysql") == "SELECT 1"


@pytest.mark.parametrize(("dialect", "sql"), REFUSED)
def test_anything_else_is_refused_as_a_mistake_in_the_configuration(dialect: str, sql: str) -> None:
    with pytest.raises(ConfigError, match="one plain SELECT") as caught:
        select.check(sql, dialect)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "condition", ["a = 1", "a = 1 OR b = 2 -- both", "a IN (SELECT b FROM u)", "EXISTS (SELECT 1)", "a"]
)
def test_a_filter_is_a_condition(condition: str) -> None:
    select.check_condition(condition, "mysql")


@pytest.mark.parametrize(
    "condition",
    [
        "1 = 1) OR (1 = 1",
        "a = 1) UNION SELECT (1",
        "a = 1) ORDER BY (1",
        "a = 1; DROP TABLE t",
        "EXISTS (SELECT 1 FROM t FOR UPDATE)",
        "a = 1 /*! OR 1 */",
        "",
        "a = 1) -- ",
    ],
)
def test_a_filter_cannot_leave_its_brackets(condition: str) -> None:
    with pytest.raises(ConfigError):
        select.check_condition(condition, "mysql")


def test_the_tables_of_a_select_are_found_wherever_they_stand() -> None:
    sql = (
        "WITH q AS (SELECT * FROM `a b`.t), r AS (SELECT * FROM q) "
        "SELECT * FROM r JOIN t ON r.id = t.id JOIN x.q ON 1 = 1 WHERE t.id IN (SELECT id FROM u) "
        "UNION ALL SELECT * FROM t;"
    )

    assert sorted(select.tables(sql, "mysql"), key=str) == [
        ("a b", "t"),
        ("x", "q"),
        (None, "t"),
        (None, "u"),
    ]


def test_placeholders_are_found() -> None:
    sql = "SELECT * FROM t WHERE a > {low} AND a <= {high}"
    assert select.placeholders(sql, "mysql") == {"low", "high"}
    assert select.placeholders("SELECT 1", "mysql") == frozenset()


@pytest.mark.parametrize("sql", ["SELECT '{low}'", "SELECT 1 -- {high}", "SELECT `{low}`", 'SELECT "{low}"'])
def test_placeholders_inside_quotes_are_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="inside quotes"):
        select.placeholders(sql, "mysql")


def test_a_missing_parser_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(ConfigError, match=r"tidegate\[custom-sql\]"):
        select.check("SELECT 1", "mysql")
