"""Every command line that users of the S3-Redshift backup tool have in their scripts still has a meaning."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.conftest import Run, Shop

LINES = """
sync pipeline -p shop -t orders
sync pipeline -p shop
sync -t orders
sync pipeline -p shop -t orders --json-output result.json --backup-only --limit 10000
sync pipeline -p shop -t orders --redshift-only
sync -t orders --backup-only
sync -t orders --redshift-only
sync -t orders --verify-data
sync -t orders --limit 1000
sync -t orders --debug
backup -p shop -t orders
watermark get -t orders -p shop
watermark get -t orders -p shop --show-files
watermark get -t orders
watermark set -t orders --timestamp '2025-08-01 00:00:00'
watermark reset -t orders -p shop --yes
watermark reset -t orders --mysql-only --yes
watermark reset -t orders --redshift-only --yes
watermark list
s3clean list -t orders -p shop
s3clean list -t orders
s3clean clean -t orders -p shop --force
status
config list-pipelines
connections test -c shop
--quiet status
--json-logs --log-file older.log status
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_older_command_lines_work(shop: Shop, run: Run, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.root)
    shop.execute("DELETE FROM orders;")  # so that nothing has to be moved, and no Spark is needed
    shop.pipeline(
        "pipeline: {name: shop, source: shop, target: warehouse, staging: files, state: default}\n"
        "tables:\n  orders: {cdc_timestamp_column: updated_at, cdc_id_column: id}\n"
    )
    result = run(*shlex.split(line))
    assert result.exit_code == 0, result.output


def test_the_older_result_has_the_older_fields(shop: Shop, run: Run) -> None:
    shop.execute("DELETE FROM orders;")
    told = json.loads(run("sync", "pipeline", "-p", "shop", "-t", "orders", "--json-output").stdout)
    assert {"execution_id", "status", "pipeline", "tables_requested", "table_results"} <= set(told)
    table = told["table_results"]["orders"]
    assert {"status", "rows_processed", "files_created", "duration_seconds"} <= set(table)
