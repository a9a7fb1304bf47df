"""What people read when a file is wrong, word for word; most of it stands in messages.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.config.conftest import CONNECTIONS, Folder
from tidegate.core.errors import ConfigError

SHOP = "config/pipelines/shop.yml"
WHERE = "config/connections.yml"

CASES = re.findall(
    r"^(\w+): ?(.*)\n> (.*)$",
    Path(__file__).with_name("messages.txt").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("kind", "text", "message"), CASES, ids=[f"{kind} {text}" for kind, text, _ in CASES]
)
def test_what_is_wrong_is_said_in_these_words(folder: Folder, kind: str, text: str, message: str) -> None:
    text = text.replace("\\n", "\n").replace("\\t", "\t").replace("\\x07", "\x07")
    match kind:
        case "table":
            folder.table(f"{text}\ncdc_timestamp_column: t")
        case "options":
            folder.table(text)
        case "source":
            targets = "  targets: {w: {type: duckdb, path: w}}"
            folder.connections(f"connections:\n  sources:\n    shop: {text}\n{targets}\n")
        case "section":
            folder.connections(CONNECTIONS + text)
        case _:
            folder.pipeline(text)
    assert folder.error() == f"{WHERE if kind in ('source', 'section') else SHOP}:{message}"


def test_there_are_messages_to_check() -> None:
    assert len(CASES) > 50
    assert not any("hunter2" in message for _, _, message in CASES)


def test_an_unknown_key_is_answered_with_the_nearest_spelling(folder: Folder) -> None:
    folder.table("cdc_stategy: hybrid\ncdc_id_column: id")
    assert folder.error() == (
        f"{SHOP}:8:5: tables.orders: unknown key `cdc_stategy`: did you mean `cdc_strategy`?"
    )


def test_several_problems_of_a_file_are_reported_together_in_their_order(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline:
          name: shop
          source: shop
          target: warehouse
          processing: {batch_size: many}
        tables:
          orders:
            cdc_strategy: hybird
            cdc_id_column: id
            cdc_id_column: id2
          sales.items:
            keys: {a: b}
            cdc_id_column: id
          sales.items.old: {cdc_strategy: hybrid, cdc_id_column: id}
        """
    )
    assert folder.error().splitlines() == [
        "5 problems in the configuration",
        f"  {SHOP}:5:28: pipeline.processing.batch_size: expected a whole number, found `many`",
        f"  {SHOP}:8:19: tables.orders.cdc_strategy: {STRATEGIES}, found `hybird`: did you mean `hybrid`?",
        f"  {SHOP}:10:5: the key `cdc_id_column` stands here twice, first on line 9",
        f'  {SHOP}:12:5: tables."sales.items".keys: expected a list, found keys and values',
        f'  {SHOP}:14:3: tables."sales.items.old": hybrid needs `cdc_timestamp_column`',
    ]


STRATEGIES = "expected `timestamp_only`, `hybrid`, `id_only`, `full_sync` or `custom_sql`"


@pytest.mark.parametrize("name", ["a/b", "' a'", '"a\\nb"'])
def test_a_pipeline_is_not_called_just_anything(folder: Folder, name: str) -> None:
    head = f"pipeline: {{name: {name}, source: shop, target: warehouse}}"
    folder.pipeline(f"{head}\ntables: {{o: {{cdc_id_column: i}}}}")
    project = folder.load()
    with pytest.raises(ConfigError, match="a name has no `/`"):
        project.pipeline(project.pipelines[0])


def test_a_missing_variable_is_named_with_its_place_and_where_to_define_it(folder: Folder) -> None:
    folder.table("cdc_id_column: id\nfilter: \"region = '${REGION}'\"")
    assert folder.error(environ={"REGIN": "x"}) == (
        f"{SHOP}:9:13: tables.orders.filter: the variable `REGION` is not defined: did you mean `REGIN`? "
        "(define it in the environment or in .env beside config/)"
    )


def test_a_malformed_variable_is_an_error(folder: Folder) -> None:
    folder.table("cdc_id_column: id\nfilter: \"a = '${B C}'\"")
    assert folder.error() == (
        f"{SHOP}:9:13: tables.orders.filter: a `${{` that is no variable "
        "(write ${VAR}, ${VAR:-default} or ${provider:secret}, and $${ for a plain ${)"
    )


def test_a_dangling_reference_lists_what_exists(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: crm, target: wharehouse}
        tables: {o: {cdc_id_column: i}}
        """
    )
    near = "did you mean `warehouse`?"
    assert folder.error().splitlines()[1:] == [
        f"  {SHOP}:1:32: pipeline.source: there is no source `crm` ({WHERE} has `shop`)",
        f"  {SHOP}:1:45: pipeline.target: there is no target `wharehouse`: {near} ({WHERE} has `warehouse`)",
    ]


def test_a_primary_must_be_another_source_of_the_same_kind(folder: Folder) -> None:
    folder.connections(
        """
        connections:
          sources:
            a: {type: mysql, host: h, database: d, ceiling: {primary: b}}
            b: {type: postgresql, host: h, database: d, ceiling: {primary: b}}
            c: {type: mysql, host: h, database: d, ceiling: {primary: d}}
          targets:
            warehouse: {type: duckdb, path: w.duckdb}
        """
    )
    path = "connections.sources"
    other_kind = "a postgresql source cannot be the primary of a mysql source"
    assert folder.error().splitlines()[1:] == [
        f"  {WHERE}:3:63: {path}.a.ceiling.primary: {other_kind}",
        f"  {WHERE}:4:68: {path}.b.ceiling.primary: a source cannot be its own primary",
        f"  {WHERE}:5:63: {path}.c.ceiling.primary: there is no source `d`; there are `a`, `b` and `c`",
    ]


def test_a_file_that_is_not_utf8_is_answered_with_the_place(folder: Folder) -> None:
    path = folder.root / SHOP
    path.write_bytes(b"pipeline:\n  name: caf\xe9\n")
    assert folder.error() == f"{SHOP}:2:12: the file is not UTF-8 text (save the file as UTF-8)"


def test_a_folder_in_a_files_place_is_answered_in_words(folder: Folder) -> None:
    (folder.root / "config/pipelines/odd.yml").mkdir()
    assert folder.error() == "config/pipelines/odd.yml: cannot be read: Is a directory"


def test_very_many_problems_are_cut_short(folder: Folder) -> None:
    folder.table("\n".join(f"zz{number}: 1" for number in range(50)) + "\ncdc_id_column: id")
    lines = folder.error().splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("50 problems in the configuration", 32, "  and 20 more")


def test_a_message_shows_the_variable_and_never_its_value(folder: Folder) -> None:
    folder.table('cdc_id_column: id\nprocessing: {batch_size: "${SIZE}"}\ncolumns: {mask: {a: "${SIZE}"}}')
    message = folder.error(environ={"SIZE": "hunter2"})
    assert "expected a whole number, found `${SIZE}`" in message
    assert "hunter2" not in message


def test_small_files_that_stand_for_enormous_ones_are_refused(folder: Folder) -> None:
    levels = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 9))
    folder.connections(f"{CONNECTIONS}\nx0: &x0 [a]\n{levels}\n")
    assert "more than 200,000 values, counting those that anchors repeat" in folder.error()
