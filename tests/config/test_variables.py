from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.conftest import Folder
from tidegate.config.connection_models import MySQLSource
from tidegate.config.variables import Variables, read_variables, substitute
from tidegate.core.errors import ConfigError

KNOWN = Variables({"USER": "ada", "EMPTY": ""}, {"USER": "from-file", "HOME_TOWN": "London"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${USER}", "ada"),
        ("${USER}@${HOME_TOWN}", "ada@London"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${NOWHERE:-}", ""),
        ("${NOWHERE:-a b: c}", "a b: c"),
        ("${USER:-x}", "ada"),
        ("$${USER}", "${USER}"),
        ("$USER costs $5 {a}", "$USER costs $5 {a}"),
        ("$$${USER}", "$${USER}"),
    ],
)
def test_variables_in_text_are_replaced(text: str, expected: str) -> None:
    assert substitute(text, KNOWN).text == expected


def test_the_environment_wins_over_dotenv() -> None:
    assert KNOWN.get("USER") == "ada"
    assert KNOWN.get("HOME_TOWN") == "London"


@pytest.mark.parametrize("text", ["${", "${}", "${a b}", "${A:-${B}}", "${1A}", "${A-x}", "x${A"])
def test_a_dollar_brace_that_is_no_variable_is_malformed(text: str) -> None:
    assert substitute(text, KNOWN).malformed


def test_every_missing_variable_is_named() -> None:
    assert substitute("${A}${USER}${B}", KNOWN).missing == ("A", "B")


def test_a_value_that_looks_like_a_variable_is_left_as_it_is() -> None:
    assert substitute("${P}", Variables({"P": "${Q}$${"})).text == "${Q}$${"


def test_dotenv_is_read_as_python_dotenv_reads_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "# secrets\nexport A=1\nB='two words'  # comment\nC=\"line\\nbreak\"\nD=${A}-${OUTSIDE}\nE\nF=\n"
    )
    found = read_variables(file, {"OUTSIDE": "out"})
    assert found.dotenv == {"A": "1", "B": "two words", "C": "line\nbreak", "D": "1-out", "F": ""}


def test_a_variable_of_the_environment_also_wins_inside_dotenv(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=file\nB=${A}\n")
    assert read_variables(file, {"A": "environment"}).get("B") == "environment"


def test_a_dotenv_that_is_not_utf8_is_an_error_that_shows_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"A=hunter2\xff\n")
    with pytest.raises(ConfigError) as caught:
        read_variables(file, {})
    assert str(caught.value) == ".env: the file is not UTF-8 text"


def test_a_line_of_dotenv_that_cannot_be_read_is_mentioned_when_a_variable_is_missing(folder: Folder) -> None:
    folder.write(".env", "GOOD=1\n\n\nDB PASSWORD=hunter2\n")
    folder.connections(
        """
        connections:
          sources:
            shop: {type: mysql, host: h, database: d, password: "${DB_PASSWORD}"}
          targets:
            warehouse: {type: duckdb, path: warehouse.duckdb}
        """
    )
    with pytest.raises(ConfigError) as caught:
        folder.load().connections.source("shop")
    assert str(caught.value) == (
        "config/connections.yml:3:57: connections.sources.shop.password: the variable `DB_PASSWORD` is not "
        "defined (define it in the environment or in .env beside config/; line 4 of .env cannot be read)"
    )


def test_a_value_that_is_one_variable_becomes_what_the_model_wants(folder: Folder) -> None:
    folder.connections(
        """
        connections:
          sources:
            shop:
              type: mysql
              host: "${HOST}"
              port: ${PORT}
              database: shop
              password: "${PASSWORD}"
              ssh_tunnel: {enabled: "${TUNNEL:-false}"}
          targets:
            warehouse: {type: duckdb, path: warehouse.duckdb}
        """
    )
    source = folder.load({"HOST": "db", "PORT": "3307", "PASSWORD": "007"}).connections.source("shop")
    assert isinstance(source, MySQLSource)
    assert (source.host, source.port) == ("db", 3307)
    assert source.password is not None
    assert source.password.get_secret_value() == "007"
    assert source.ssh_tunnel is not None
    assert source.ssh_tunnel.enabled is False


def test_dotenv_beside_config_is_used(folder: Folder) -> None:
    folder.write(".env", "TARGET=warehouse\n")
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: "${TARGET}"}
        tables: {orders: {cdc_id_column: id}}
        """
    )
    assert folder.open().target_name == "warehouse"


def test_keys_are_never_substituted(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables: {"${TABLE}": {cdc_id_column: id}}
        """
    )
    assert folder.open(environ={"TABLE": "orders"}).tables == ("${TABLE}",)
