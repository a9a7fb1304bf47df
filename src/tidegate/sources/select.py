"""A user's own SQL, held to one plain SELECT.

The parse is one of three fences: the SELECT is also wrapped in brackets as a relation, where most of what
writes is a syntax error, and it runs in a read-only session. A function of the user's own can still have
effects that no parser sees.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidegate.core.errors import ConfigError

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token

_PLACEHOLDER = re.compile(r"\{(low|high)\}")
_EXECUTABLE_COMMENT = ("!", "M!")
_SESSION_HINT = "SET_VAR"
_WITH_EFFECTS = frozenset(
    {
        "dblink",
        "dblink_exec",
        "get_lock",
        "lo_export",
        "lo_import",
        "lo_unlink",
        "load_extension",
        "load_file",
        "nextval",
        "pg_advisory_lock",
        "pg_cancel_backend",
        "pg_reload_conf",
        "pg_terminate_backend",
        "release_all_locks",
        "release_lock",
        "set_config",
        "setval",
    }
)


def check(sql: str, dialect: str) -> str:
    """The SELECT, without a closing semicolon. Raises `ConfigError` if it is anything else."""
    text = sql.strip().rstrip(";").rstrip()
    tokens = _tokens(text, dialect)
    _demand_start(tokens)
    _demand_plain_comments(tokens)
    _demand_harmless(_one_statement(text, dialect))
    return text


def check_condition(condition: str, dialect: str) -> None:
    """A row filter: one condition, which cannot close the bracket it is put in."""
    from sqlglot import exp

    text = f"SELECT 1 FROM t WHERE (\n{condition}\n)"
    _demand_plain_comments(_tokens(text, dialect))
    statement = _one_statement(text, dialect)
    where = statement.args.get("where")
    inside = where.this if isinstance(where, exp.Where) else None
    if not isinstance(inside, exp.Paren) or _other_clauses(statement):
        raise ConfigError(
            f"a filter has to be one condition: {condition.strip() or 'it is empty'}",
            hint="write what could stand between WHERE ( and )",
        )
    _demand_harmless(statement)


def tables(sql: str, dialect: str) -> list[tuple[str | None, str]]:
    """The schema, if it is named, and the name of everything that a SELECT reads from."""
    from sqlglot import exp

    statement = _one_statement(sql.strip().rstrip(";"), dialect)
    own = {(None, cte.alias) for cte in statement.find_all(exp.CTE)}
    named = [(table.db or None, table.name) for table in statement.find_all(exp.Table) if table.name]
    return [found for found in dict.fromkeys(named) if found not in own]


def placeholders(sql: str, dialect: str) -> frozenset[str]:
    """Which of `low` and `high` a SELECT asks for. Raises `ConfigError` where one stands inside quotes."""
    found = _PLACEHOLDER.findall(sql)
    marked = _PLACEHOLDER.sub(lambda match: f" tidegate_{match[1]} ", sql)
    bare = [token.text for token in _tokens(marked, dialect) if token.token_type.name == "VAR"]
    seen = sum(bare.count(f"tidegate_{name}") for name in ("low", "high"))
    if seen != len(found):
        raise ConfigError(
            "a placeholder stands inside quotes or a comment",
            hint="write {low} and {high} without quotes: they are filled with complete literals",
        )
    return frozenset(found)


def _demand_start(tokens: list[Token]) -> None:
    if any(token.token_type.name == "SEMICOLON" for token in tokens):
        raise _refused("it is not exactly one statement", "a semicolon")
    words = (token for token in tokens if token.token_type.name != "L_PAREN")
    first = next(words, None)
    if first is None or first.token_type.name not in ("SELECT", "WITH"):
        raise _refused("it does not begin with SELECT or WITH", first.text if first else "nothing")


def _demand_plain_comments(tokens: list[Token]) -> None:
    for token in tokens:
        if token.token_type.name == "HINT" or any(_SESSION_HINT in text.upper() for text in token.comments):
            raise _refused("optimiser hints can change the session", "/*+")
        if any(text.startswith(_EXECUTABLE_COMMENT) for text in token.comments):
            raise _refused("some servers execute what stands in such a comment", "/*!")


def _demand_harmless(statement: exp.Expr) -> None:
    from sqlglot import exp

    plain = (exp.Select, exp.SetOperation, exp.Subquery)
    if not isinstance(statement, plain):
        raise _refused("it is not a SELECT", statement.key.upper())
    writing = (exp.DML, exp.DDL, exp.Command, exp.Into, exp.Lock, exp.Set)
    for node in statement.walk():
        if isinstance(node, writing) and not isinstance(node, plain):
            raise _refused("it would write or lock", node.key.upper())
        name = _function(node)
        if name in _WITH_EFFECTS:
            raise _refused("it calls a function that does more than read", f"{name}()")


def _function(node: exp.Expr) -> str | None:
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else None


def _other_clauses(statement: exp.Expr) -> bool:
    """Whether the condition has closed its bracket and gone on: with an ORDER BY, a UNION, …"""
    ours = {"kind", "expressions", "from_", "from", "where"}
    return any(value and name not in ours for name, value in statement.args.items())


def _one_statement(sql: str, dialect: str) -> exp.Expr:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        statements = [statement for statement in sqlglot.parse(sql, dialect=dialect) if statement is not None]
    except SqlglotError as error:
        raise _refused("it cannot be parsed", str(error).splitlines()[0]) from None
    if len(statements) != 1:
        raise _refused("it is not exactly one statement", f"{len(statements)} statements")
    return statements[0]


def _tokens(sql: str, dialect: str) -> list[Token]:
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise ConfigError(
            "checking your own SQL needs a parser that is not installed",
            hint="install it with `pip install 'tidegate[custom-sql]'`",
        ) from None
    try:
        return list(sqlglot.tokenize(sql, dialect=dialect))
    except SqlglotError as error:
        raise _refused("it cannot be parsed", str(error).splitlines()[0]) from None


def _refused(reason: str, found: str) -> ConfigError:
    return ConfigError(
        f"custom SQL has to be one plain SELECT: {reason} ({found})",
        hint="one SELECT, without INTO, FOR UPDATE, a writing WITH or a second statement",
    )
