"""Redshift's SQL, made into PostgreSQL's, or refused where Redshift would refuse it.

Statements are taken apart into tokens, so that nothing inside a text or a quoted name is mistaken for syntax.
The list of what Redshift lacks is from its Database Developer Guide: "Unsupported PostgreSQL features",
"… data types" and "… functions", and the pages of the commands.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.core import reserved

MOST_NAME_BYTES = 127
_KEPT_NAME_BYTES = 63
"""What PostgreSQL keeps of a name. Longer ones have another name there, and the views tell them by theirs."""

CATALOG = frozenset({"pg_class", "pg_namespace", "pg_tables"})
"""PostgreSQL's own, which know tables by what they are called there."""

SCHEMA = "_redshift_local"
"""Where the views and functions lie that PostgreSQL does not have."""

PLACING = "_rs_key_"
"""What the constraints are called that hold on to the columns by which rows are distributed and sorted."""

_ELSEWHERE = frozenset(
    {
        "getdate",
        "pg_last_copy_count",
        "stl_load_errors",
        "svv_attached_masking_policy",
        "svv_column_privileges",
        "svv_columns",
        "svv_relation_privileges",
        "svv_rls_attached_policy",
        "svv_tables",
        "svv_user_info",
        "to_varbyte",
        "sys_load_error_detail",
    }
)

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)|(?P<string>[eE]?'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")
    |(?P<parameter>\$\d+)|(?P<number>\d+(?:\.\d*)?)|(?P<word>[^\W\d][\w$]*)|(?P<sign>::|<=|>=|<>|!=|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)


class Refused(Exception):
    """What Redshift would not do, with the code of the error."""

    def __init__(self, message: str, code: str = "42601") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The keyword that it may be; a quoted name is none."""
        return self.text.upper() if self.kind == "word" else self.text if self.kind == "sign" else ""

    @property
    def name(self) -> str:
        """The name that it is. Redshift folds A to Z in quoted names, too, unless told otherwise."""
        bare = self.text[1:-1].replace('""', '"') if self.kind == "quoted" else self.text
        return "".join(letter.lower() if letter.isascii() else letter for letter in bare)


Tokens = list[Token]


def tokens_of(sql: str) -> Tokens:
    found = (Token(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(sql))
    return [token for token in found if token.kind != "space"]


def statements(sql: str) -> Iterator[Tokens]:
    """The statements of a text, those that say something."""
    part: Tokens = []
    for token in [*tokens_of(sql), Token("sign", ";")]:
        if token.word != ";":
            part.append(token)
        elif part:
            yield part
            part = []


def leads(tokens: Sequence[Token], *words: str) -> bool:
    return tuple(token.word for token in tokens[: len(words)]) == words


# --- What Redshift lacks -------------------------------------------------------

_LACKING: tuple[tuple[str, str], ...] = (
    (r"\bON CONFLICT\b", "ON CONFLICT"),
    (r"\bRETURNING\b", "RETURNING"),
    (r"^CREATE (UNIQUE )?INDEX\b", "CREATE INDEX"),
    (r"^CREATE (OR REPLACE )?(TRIGGER|RULE|SEQUENCE|DOMAIN|TYPE|EXTENSION|POLICY|FUNCTION|PROCEDURE)\b", ""),
    (r"^(LISTEN|NOTIFY|CLUSTER|REINDEX|DO|SAVEPOINT|RELEASE|REFRESH|COMMENT ON INDEX)\b", ""),
    (r"^ROLLBACK (WORK |TRANSACTION )?TO\b", "ROLLBACK TO SAVEPOINT"),
    (r"\bLATERAL\b", "LATERAL"),
    (r"\bFILTER \( WHERE\b", "FILTER"),
    (r"\bDISTINCT ON\b", "DISTINCT ON"),
    (r"\bIS (NOT )?DISTINCT FROM\b", "IS DISTINCT FROM"),
    (r"\bFOR (UPDATE|SHARE|NO KEY|KEY SHARE)\b", "FOR UPDATE"),
    (r"\b(EXCEPT|INTERSECT) ALL\b", "EXCEPT ALL and INTERSECT ALL"),
    (r"\bON COMMIT (DROP|DELETE|PRESERVE)\b", "ON COMMIT"),
    (r"\bTABLESAMPLE\b", "TABLESAMPLE"),
    (r"\bTABLESPACE\b", "TABLESPACE"),
    (r"\bINHERITS\b", "INHERITS"),
    (r"^CREATE UNLOGGED\b", "UNLOGGED"),
    (r"^CREATE .*\) PARTITION BY\b", "PARTITION BY"),
    (r"\bFROM \( VALUES\b|^VALUES\b", "VALUES as a table"),
    (r"\bWITH ORDINALITY\b", "WITH ORDINALITY"),
    (r"\bAS (NOT )?MATERIALIZED \(", "MATERIALIZED in a WITH clause"),
    (r" FETCH (FIRST|NEXT)\b.* ONLY\b", "FETCH FIRST (use LIMIT)"),
    (r"\bARRAY \[", "arrays"),
    (r"\b(ANY|ALL) \( \$", "arrays"),
    (r"\b(GENERATE_SERIES|GENERATE_SUBSCRIPTS) \(", "GENERATE_SERIES"),
    (r"\b(STRING_AGG|ARRAY_AGG|EVERY|XML_AGG|UNNEST|ACLEXPLODE|CORR|COVAR_\w+|REGR_\w+) \(", ""),
    (r"\b(PG_ADVISORY\w*|PG_TRY_ADVISORY\w*|PG_SLEEP|CLOCK_TIMESTAMP|TRANSACTION_TIMESTAMP) \(", ""),
    (r"\b(SETSEED|WIDTH_BUCKET|DIV|JUSTIFY_\w+|NEXTVAL|CURRVAL|SETVAL|GEN_RANDOM_UUID|TO_REGCLASS) \(", ""),
    (r"\b(OVERLAY|BIT_LENGTH|CONVERT_FROM|CONVERT_TO|ENCODE|FORMAT|QUOTE_NULLABLE|REGEXP_MATCHES) \(", ""),
    (r"\b(REGEXP_SPLIT_TO_\w+|JSONB\w*|TO_JSONB?|ROW_TO_JSON|JSON_AGG|JSON_BUILD_\w+) \(", ""),
    (r"\bNOW \( \)|\b(CURRENT_TIMESTAMP|LOCALTIMESTAMP)\b", "NOW and CURRENT_TIMESTAMP (use GETDATE())"),
    (r"\bGENERATED ALWAYS\b", "GENERATED ALWAYS (use IDENTITY(seed, step))"),
    (r"\bBY DEFAULT AS IDENTITY(?! \( \d)", "GENERATED BY DEFAULT AS IDENTITY without (seed, step)"),
    (r"^CREATE (TEMP |TEMPORARY )?TABLE .*\bCHECK \(", "CHECK constraints"),
    (r"^CREATE .*TABLE IF NOT EXISTS .*\bAS (SELECT|WITH|\()", "IF NOT EXISTS in CREATE TABLE AS"),
    (r"^CREATE .*\bWITH (NO )?DATA$", "WITH DATA"),
    (r"^ALTER TABLE IF EXISTS\b|^ALTER TABLE .*\b(ADD|DROP) (COLUMN )?IF\b", "IF EXISTS in ALTER TABLE"),
    (r"^ALTER TABLE .*\bALTER (COLUMN )?\S+ (SET|DROP)\b", "SET and DROP of a column's properties"),
    (r"^TRUNCATE .*\b(CASCADE|RESTRICT|RESTART|CONTINUE)\b", "an option of TRUNCATE"),
    (r"^INSERT INTO \S+(?: \. \S+)* AS\b", "another name for the table of an INSERT"),
    (r"^INSERT .*\bOVERRIDING\b", "OVERRIDING"),
    (r"^MERGE INTO \S+(?: \. \S+)* (?!USING\b|\. )", "another name for the target of MERGE"),
    (r"^MERGE .*\bUSING \(", "a query as the source of MERGE"),
    (r"^MERGE .*\b(MATCHED AND|DO NOTHING)\b", "conditions of MERGE, and DO NOTHING"),
    (r"^LOCK (TABLE )?.* IN .*\bMODE\b", "LOCK … IN … MODE (it is always exclusive)"),
    (r"^COPY .*\bFROM STDIN\b", "COPY FROM STDIN"),
    (r"^BEGIN .*\bISOLATION LEVEL (?!SERIALIZABLE)", "isolation levels other than SERIALIZABLE"),
    (
        r"(?:::|\bAS) (BYTEA|JSONB?|UUID|XML|MONEY|INET|CIDR|MACADDR|HSTORE|TSVECTOR|INT4RANGE|REGCLASS)\b",
        "",
    ),
    (r"\b[A-Z]\w* \[ \]", "arrays"),
)
_RULES = tuple((re.compile(pattern, re.DOTALL), what) for pattern, what in _LACKING)


def demand_supported(tokens: Tokens) -> None:
    """Raise `Refused` for syntax that PostgreSQL has and Redshift does not."""
    shape = " ".join(
        token.word or {"string": "''", "quoted": '"q"'}.get(token.kind, token.text) for token in tokens
    )
    for pattern, what in _RULES:
        found = pattern.search(shape)
        if found:
            named = what or next((part for part in found.groups() if part), found[0]).strip()
            raise Refused(f"{named} is not supported by Redshift", "0A000")
    for token in tokens:
        if token.kind in ("word", "quoted"):
            _demand_length(token.name)


def _demand_length(name: str) -> None:
    size = len(name.encode())
    if size > MOST_NAME_BYTES:
        raise Refused(f'identifier "{name}" is longer than {MOST_NAME_BYTES} bytes', "42622")


def kept(name: str) -> str:
    """What a table or column of this name is called in PostgreSQL."""
    data = name.encode()
    if len(data) <= _KEPT_NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _KEPT_NAME_BYTES - len(digest) - 1].decode(errors='ignore')}_{digest}"


def long_names(tokens: Tokens) -> set[str]:
    """Those that have another name in PostgreSQL."""
    names = {token.name for token in tokens if token.kind in ("word", "quoted")}
    return {name for name in names if kept(name) != name}


# --- Types -----------------------------------------------------------------------

_PLAIN = {
    "SMALLINT": "smallint",
    "INT2": "smallint",
    "INTEGER": "integer",
    "INT": "integer",
    "INT4": "integer",
    "BIGINT": "bigint",
    "INT8": "bigint",
    "REAL": "real",
    "FLOAT4": "real",
    "DOUBLE PRECISION": "double precision",
    "FLOAT8": "double precision",
    "FLOAT": "double precision",
    "BOOLEAN": "boolean",
    "BOOL": "boolean",
    "DATE": "date",
    "TIME": "time",
    "TIMETZ": "timetz",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
    "TIME WITHOUT TIME ZONE": "time",
    "TIME WITH TIME ZONE": "timetz",
    "TIMESTAMP WITHOUT TIME ZONE": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TEXT": "varchar(256)",
    "BPCHAR": "char(256)",
}
_SIZED = {
    "VARCHAR": ("varchar", 256, 65535),
    "CHARACTER VARYING": ("varchar", 256, 65535),
    "NVARCHAR": ("varchar", 256, 65535),
    "CHAR": ("char", 1, 4096),
    "CHARACTER": ("char", 1, 4096),
    "NCHAR": ("char", 1, 4096),
    "VARBYTE": ("bytea", 64000, 16_777_216),
    "VARBINARY": ("bytea", 64000, 16_777_216),
    "BINARY VARYING": ("bytea", 64000, 16_777_216),
}
_MOST_DIGITS, _MOST_SCALE = 38, 37


def column_type(tokens: Sequence[Token], column: str) -> str:
    """PostgreSQL's type for a column of a Redshift type."""
    cut = next((at for at, token in enumerate(tokens) if token.word == "("), len(tokens))
    name = " ".join(token.word for token in tokens[:cut])
    sizes = [token.text.upper() for token in tokens[cut + 1 :] if token.kind in ("number", "word")]
    if name in _PLAIN and not sizes:
        return _PLAIN[name]
    if name in ("DECIMAL", "NUMERIC"):
        precision, scale = int(sizes[0]) if sizes else 18, int(sizes[1]) if len(sizes) > 1 else 0
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise Refused(f"NUMERIC precision {precision} must be between 1 and {_MOST_DIGITS}", "22023")
        if scale > _MOST_SCALE:
            raise Refused(f"NUMERIC scale {scale} must be between 0 and {_MOST_SCALE}", "22023")
        return f"numeric({precision},{scale})"
    if name not in _SIZED:
        raise Refused(f'Column "{column}" has unsupported type "{name.lower()}"', "0A000")
    native, default, most = _SIZED[name]
    size = most if sizes == ["MAX"] else int(sizes[0]) if sizes else default
    if not 1 <= size <= most:
        raise Refused(f"length for type {name.lower()} cannot exceed {most}", "22023")
    if native != "bytea":
        return f"{native}({size})"
    held = _quoted(column)
    check = f"_rs_{size}_{column}"[:60].replace('"', '""')
    return f'bytea CONSTRAINT "{check}" CHECK (octet_length({held}) <= {size})'


# --- Statements ------------------------------------------------------------------


def translate(tokens: Tokens, *, in_transaction: bool) -> str:
    """PostgreSQL's words for a statement of Redshift's. Raises `Refused`."""
    demand_supported(tokens)
    if leads(tokens, "BEGIN") or leads(tokens, "START", "TRANSACTION"):
        return "BEGIN ISOLATION LEVEL REPEATABLE READ"
    if leads(tokens, "CREATE") and "TABLE" in [token.word for token in tokens[:4]]:
        return _create_table(tokens)
    if leads(tokens, "ALTER", "TABLE"):
        return _alter_table(tokens, in_transaction=in_transaction)
    if leads(tokens, "TRUNCATE") and any(token.word == "," for token in tokens):
        raise Refused("TRUNCATE takes one table")
    if in_transaction and leads(tokens, "VACUUM"):
        raise Refused("VACUUM cannot run inside a transaction block", "25001")
    if (leads(tokens, "SET") or leads(tokens, "SHOW") or leads(tokens, "RESET")) and len(tokens) > 1:
        settings = {"QUERY_GROUP", "WLM_QUERY_SLOT_COUNT", "ENABLE_CASE_SENSITIVE_IDENTIFIER"}
        return joined([Token("word", f"redshift.{t.text}") if t.word in settings else t for t in tokens])
    return joined(tokens)


def joined(tokens: Sequence[Token]) -> str:
    """The tokens as PostgreSQL's SQL."""
    parts: list[str] = []
    for place, token in enumerate(tokens):
        qualified = place > 0 and tokens[place - 1].word == "."
        if token.kind == "quoted" or (token.kind == "word" and kept(token.name) != token.name):
            parts.append(_quoted(kept(token.name)))
        elif token.kind == "word" and token.text.lower() in _ELSEWHERE and not qualified:
            parts.append(f"{SCHEMA}.{token.text.lower()}")
        else:
            parts.append(token.text)
    return " ".join(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _split(tokens: Sequence[Token]) -> list[Tokens]:
    """Parts between commas that stand in no brackets."""
    parts: list[Tokens] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _closing(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for place in range(start, len(tokens)):
        depth += (tokens[place].word == "(") - (tokens[place].word == ")")
        if depth == 0:
            return place
    raise Refused("a bracket is not closed")


def _create_table(tokens: Tokens) -> str:
    first = next((at for at, token in enumerate(tokens) if token.word in ("(", "AS")), len(tokens))
    if first == len(tokens):
        raise Refused("a table needs columns")
    _demand_unreserved(tokens[first - 1])
    if tokens[first].word == "AS" or _is_query(tokens, first):
        return joined(tokens)
    last = _closing(tokens, first)
    definitions = _split(tokens[first + 1 : last])
    columns, keys, parts = _columns(definitions)
    as_query = next((at for at in range(last, len(tokens)) if tokens[at].word == "AS"), len(tokens))
    placing = _placing(tokens[last + 1 : as_query], columns)
    placing += [part[0].name for part in definitions if {"DISTKEY", "SORTKEY"} & {t.word for t in part[1:]}]
    made = [f"{part} NOT NULL" if name in keys and "NOT NULL" not in part else part for name, part in parts]
    made += [
        f"CONSTRAINT {PLACING}{number} CHECK ({_quoted(kept(name))} IS NULL OR true)"
        for number, name in enumerate(dict.fromkeys(placing))
    ]
    rest = joined(tokens[as_query:])
    return f"{joined(tokens[:first])} ({', '.join(made)}) {rest}".strip()


def _is_query(tokens: Tokens, bracket: int) -> bool:
    return tokens[bracket + 1].word == "SELECT"


_KEYS = ("PRIMARY", "UNIQUE", "FOREIGN", "CONSTRAINT")
_ATTRIBUTES = (
    {"DEFAULT", "IDENTITY", "GENERATED", "ENCODE", "DISTKEY", "SORTKEY", "NOT", "NULL", "COLLATE"}
    | set(_KEYS)
) | {"REFERENCES"}


def _columns(parts: list[Tokens]) -> tuple[set[str], set[str], list[tuple[str, str]]]:
    """The names of the columns, those of the primary key, and the definitions."""
    names: set[str] = set()
    keys: set[str] = set()
    made: list[tuple[str, str]] = []
    for part in parts:
        if leads(part, "LIKE"):
            bare = [token for token in part if token.word not in ("INCLUDING", "EXCLUDING", "DEFAULTS")]
            made.append(("", f"{joined(bare)} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY"))
        elif part and part[0].word in _KEYS:
            if "PRIMARY" in [token.word for token in part]:
                keys |= {
                    token.name for token in part[part.index(Token("sign", "(")) :] if token.word not in "(),"
                }
        else:
            name, definition = _column(part)
            if name in names:
                raise Refused(f'column "{name}" specified more than once', "42701")
            names.add(name)
            made.append((name, definition))
    return names, keys, made


def _demand_unreserved(name: Token) -> None:
    if name.kind == "word" and name.name in reserved.REDSHIFT:
        raise Refused(f'syntax error at or near "{name.text}": it is a reserved word')


def _column(part: Tokens) -> tuple[str, str]:
    if not part or part[0].kind not in ("word", "quoted"):
        raise Refused("a column needs a name")
    name = part[0].name
    _demand_unreserved(part[0])
    if name in reserved.REDSHIFT_COLUMNS:
        raise Refused(f'column name "{name}" conflicts with a system column name', "42701")
    cut = next((at for at in range(1, len(part)) if part[at].word in _ATTRIBUTES), len(part))
    kind = column_type(part[1:cut], kept(name))
    return name, f"{_quoted(kept(name))} {kind}{_attributes(part[cut:])}"


def _attributes(tokens: Tokens) -> str:
    """What PostgreSQL shall know of a column's attributes: keys and encodings are for the planner."""
    text = " ".join(token.text if token.kind != "word" else token.word for token in tokens)
    identity = re.search(r"IDENTITY \( (\d+) , (\d+) \)", text)
    kept = " NOT NULL" if re.search(r"\bNOT NULL\b|\bPRIMARY KEY\b", text) else ""
    if identity:
        how = "BY DEFAULT" if "BY DEFAULT" in text else "ALWAYS"
        return f" GENERATED {how} AS IDENTITY (MINVALUE 0 START {identity[1]} INCREMENT {identity[2]})"
    default = re.search(
        r"\bDEFAULT (.+?)(?= (?:NOT NULL|NULL|ENCODE|DISTKEY|SORTKEY|PRIMARY|UNIQUE)\b|$)", text
    )
    if default and "IDENTITY" not in text:
        kept += f" DEFAULT {default[1].replace('GETDATE ( )', f'{SCHEMA}.getdate()')}"
    return kept


def _placing(tokens: Sequence[Token], columns: set[str]) -> list[str]:
    """The columns by which rows are distributed and sorted; the other attributes are checked to be known."""
    found: list[str] = []
    place = 0
    while place < len(tokens):
        word = tokens[place].word
        if word in ("DISTKEY", "SORTKEY") and place + 1 < len(tokens) and tokens[place + 1].word == "(":
            last = _closing(tokens, place + 1)
            named = [token.name for token in tokens[place + 2 : last] if token.word != ","]
            for name in named:
                if name not in columns:
                    raise Refused(f'column "{name}" named in key does not exist', "42703")
            found += named
            place = last
        elif word in ("DISTSTYLE", "BACKUP", "ENCODE", "SORTKEY"):
            place += 1
        elif word not in ("COMPOUND", "INTERLEAVED"):
            raise Refused(f'syntax error at or near "{tokens[place].text}"')
        place += 1
    return found


def resized(tokens: Tokens) -> tuple[str, str] | None:
    """The table, as SQL, and the column whose length a statement changes."""
    words = [token.word for token in tokens]
    if words[:2] != ["ALTER", "TABLE"] or "ALTER" not in words[2:] or "TYPE" not in words:
        return None
    start = words.index("ALTER", 2)
    column = tokens[start + (2 if words[start + 1] == "COLUMN" else 1)]
    return joined(tokens[2:start]), kept(column.name)


def _alter_table(tokens: Tokens, *, in_transaction: bool) -> str:
    if len(_split(tokens)) > 1:
        raise Refused("ALTER TABLE does one thing at a time")
    words = [token.word for token in tokens]
    if "ADD" in words and "CONSTRAINT" not in words and "PRIMARY" not in words:
        start = words.index("ADD") + (2 if words[words.index("ADD") + 1] == "COLUMN" else 1)
        name, definition = _column(tokens[start:])
        if "NOT NULL" in definition and "DEFAULT" not in definition:
            raise Refused(
                f'ALTER TABLE ADD COLUMN defined as NOT NULL must have a non-null default: "{name}"'
            )
        return f"{joined(tokens[: words.index('ADD')])} ADD COLUMN {definition}"
    if "ALTER" in words[1:] and "TYPE" in words:
        if in_transaction:
            raise Refused("ALTER TABLE ALTER COLUMN cannot run inside a transaction block", "25001")
        kind = tokens[words.index("TYPE") + 1 :]
        if not column_type(kind, "").startswith("varchar"):
            raise Refused("cannot alter type of a column, but for the length of a VARCHAR", "0A000")
        return f"{joined(tokens[: words.index('TYPE')])} TYPE {column_type(kind, '')}"
    if "ADD" in words:
        return "SELECT 1 WHERE false"  # a key that nobody enforces
    return joined(tokens)
