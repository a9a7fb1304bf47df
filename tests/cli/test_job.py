"""`tidegate job`: what is wrong is said before anything is begun."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run, Shop

PIPELINE = """
pipeline: {name: shop, source: shop, target: warehouse, staging: files, state: default}
tables:
  orders: {cdc_timestamp_column: updated_at, cdc_id_column: id}
"""


def job(shop: Shop, text: str) -> None:
    shop.pipeline(f"{PIPELINE}job: {text}\n")


def test_a_pipeline_without_a_job_says_so(shop: Shop, run: Run) -> None:
    result = run("job", "run", "shop")
    assert (result.exit_code, "pipeline `shop` has no job" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{tables: [orders]}", "job: `write_connection` is missing"),
        ("{write_connection: shopp}", "there is no source `shopp`: did you mean `shop`?"),
        ("{write_connection: shop, tables: ordres}", "the pipeline has no table `ordres`: did you mean"),
        ("{write_connection: shop, download: {command: ''}}", "job.download.command: there is no command"),
        ("{write_connection: shop, downlaod: {}}", "unknown key `downlaod`: did you mean `download`?"),
        ("{write_connection: other}", "job.write_connection: it is of another type"),
    ],
)
def test_a_wrong_job_is_said_with_its_place(shop: Shop, run: Run, text: str, words: str) -> None:
    path = shop.root / "config/connections.yml"
    other = "    other: {type: mysql, host: h, database: d}\n"
    path.write_text(path.read_text().replace("  sources:\n", f"  sources:\n{other}", 1))
    job(shop, text)
    result = run("job", "run", "shop")
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert "config/pipelines/shop.yml:" in result.stderr


def test_arguments_without_a_download_are_a_wrong_usage(shop: Shop, run: Run) -> None:
    job(shop, "{write_connection: shop, download: {command: 'true'}}")
    result = run("job", "run", "shop", "--sync-only", "--", "--hours", "-1")
    assert (result.exit_code, "ARGS go to the download command" in result.stderr) == (2, True)


def test_a_table_that_could_not_be_proved_is_refused_before_anything_is_run(shop: Shop, run: Run) -> None:
    whole = PIPELINE.replace("cdc_timestamp_column: updated_at, cdc_id_column: id", "cdc_strategy: full_sync")
    shop.pipeline(f"{whole}job: {{write_connection: shop, download: {{command: touch ran}}}}\n")
    result = run("job", "run", "shop", "--json-output")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["sync"]) == (2, "failed", None)
    assert "a job needs a table that is followed by a timestamp or an id" in told["error"]
    assert not (shop.root / "ran").exists()


def test_what_a_download_is_told_in_secret_is_shown_to_nobody(shop: Shop, run: Run) -> None:
    job(
        shop,
        "{write_connection: shop, download: {command: 'true', environment: {TOKEN: hunter2hunter2}}}",
    )
    shown = run("config", "show", "--json").output
    assert ("TOKEN" in shown, "hunter2hunter2" in shown) == (True, False)
