"""What the guides tell to write is a valid project."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from tests.config.conftest import CONNECTIONS, Folder

GUIDES = Path(__file__).parents[2] / "docs/how-to"
SERVERS = """
connections:
  sources:
    shop: {type: mysql, host: h, database: d}
    shop_rw: {type: mysql, host: h, database: d, username: writer}
  targets:
    warehouse: {type: duckdb, path: warehouse.duckdb}
"""


def blocks(guide: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (GUIDES / guide).read_text(encoding="utf-8"), re.DOTALL)


def test_the_job_of_the_guide(folder: Folder) -> None:
    [pipeline] = blocks("temp-table-job.md")
    folder.connections(SERVERS).pipeline(pipeline)
    job = folder.open("parcels", {"DOWNLOAD_TOKEN": "hunter2"}).demanded_job
    assert job.download is not None
    assert job.download.command == ("./download_tool.sh", "--mode", "incremental")
    assert (job.download.timeout, job.download.directory) == (timedelta(minutes=45), folder.root / "etl")


def test_the_receivers_of_the_guide(folder: Folder) -> None:
    receivers, chosen = blocks("alerts.md")
    folder.connections(CONNECTIONS + receivers)
    folder.pipeline(
        f"{chosen}  source: shop\n  target: warehouse\ntables: {{orders: {{cdc_id_column: id}}}}\n"
    )
    known = {"ALERT_URL": "https://a", "ALERT_SECRET": "s", "SLACK_WEBHOOK_URL": "https://b"}
    project = folder.load(known)
    project.validate()
    assert project.pipeline("shop").alert_names == ("ops",)
