"""Syncs tell their receivers, and end as they would have ended without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Run, Shop
from tests.receiving import Receiver, receiving

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TIMESTAMP NOT NULL);"
PIPELINE = """
pipeline: {name: shop, source: shop, target: warehouse}
tables:
  orders: {cdc_timestamp_column: updated_at, cdc_id_column: id}
"""


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def told(shop: Shop, server: Receiver) -> Shop:
    """A shop whose orders are missing, and somebody who is told so."""
    shop.pipeline(PIPELINE)
    shop.execute("DROP TABLE orders;")
    _alerts(
        shop, f'  ops: {{type: webhook, url: "{server.url}/hunter2", attempts: 1, timeout: 1m, max_time: 1m}}'
    )
    return shop


def _alerts(shop: Shop, entries: str) -> None:
    path = shop.root / "config/connections.yml"
    before = path.read_text().partition("alerts:")[0]
    path.write_text(f"{before.rstrip()}\nalerts:\n{entries}\n")


def test_a_sync_that_fails_and_recovers_tells_both_once(told: Shop, run: Run, server: Receiver) -> None:
    assert [run("sync").exit_code for _ in range(2)] == [1, 1]
    told.execute(TABLE)
    assert [run("sync").exit_code for _ in range(2)] == [0, 0]
    assert server.alerts == [("began", "failure", "orders"), ("over", "failure", "orders")]
    first, last = (message.json for message in server.arrived)
    assert first["execution_id"].startswith("sync_")
    assert "recovered" in last["text"]


def test_a_receiver_that_is_gone_changes_no_exit_code(told: Shop, run: Run, server: Receiver) -> None:
    server.answers = [404, 404]
    failed = run("sync")
    assert failed.exit_code == 1
    assert "the alert could not be delivered to `ops`: 127.0.0.1 answered 404" in failed.stderr
    assert "hunter2" not in failed.output
    told.execute(TABLE)
    assert run("sync").exit_code == 0


def test_what_waits_for_too_long_is_told(told: Shop, run: Run, server: Receiver) -> None:
    told.execute(TABLE)
    told.extract(hours=1)
    assert run("sync", "--extract-only").exit_code == 0
    assert server.alerts == [("began", "pending", "orders")]
    assert server.arrived[0].json["alerts"][0]["message"] == "1 file with 10 rows wait to be loaded"


def test_a_pipeline_that_cannot_start_is_told_and_recovers(told: Shop, run: Run, server: Receiver) -> None:
    told.execute(TABLE)
    state = told.root / "state"
    state.write_text("not a folder")
    assert run("sync").exit_code != 0
    state.unlink()
    assert run("sync").exit_code == 0
    assert [turn for turn, _, _ in server.alerts] == ["began", "over"]


def test_a_wrong_command_line_is_nobody_elses_business(told: Shop, run: Run, server: Receiver) -> None:
    assert run("sync", "-t", "ordres").exit_code == 2
    assert server.arrived == []


def test_no_secret_of_the_project_leaves_it(
    told: Shop, run: Run, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.core.errors import SourceError
    from tidegate.sync import pipeline

    def leaky(*_: object, **__: object) -> None:
        raise SourceError(
            "cannot log in with hunter2hunter2 at mysql://u:p4ss@db/x", where=f"{server.url}/hunter2"
        )

    path = told.root / "config/connections.yml"
    leak = "    other: {type: mysql, host: h, database: d, username: u, password: hunter2hunter2}\n"
    path.write_text(path.read_text().replace("  sources:\n", f"  sources:\n{leak}"))
    monkeypatch.setattr(pipeline, "tables_of", leaky)
    assert run("sync").exit_code == 1
    [message] = server.arrived
    for secret in (b"hunter2", b"p4ss", b"/hook"):
        assert secret not in message.body


def test_a_pipeline_chooses_who_is_told(told: Shop, run: Run, server: Receiver) -> None:
    told.pipeline(PIPELINE.replace("target: warehouse}", "target: warehouse, alerts: []}"))
    assert run("sync").exit_code == 1
    assert server.arrived == []
    told.pipeline(PIPELINE.replace("target: warehouse}", "target: warehouse, alerts: [obs]}"))
    assert "there is no alert `obs`: did you mean `ops`?" in run("sync").stderr


def test_a_receiver_without_its_variable_is_a_warning(told: Shop, run: Run) -> None:
    told.execute(TABLE)
    _alerts(told, '  ops: {type: webhook, url: "${NOWHERE_DEFINED}"}')
    done = run("sync")
    assert done.exit_code == 0
    assert "the alert `ops` cannot be used" in done.stderr


def test_receivers_can_be_tried_out(told: Shop, run: Run, server: Receiver) -> None:
    (told.root / "config/pipelines/gold.yml").write_text(
        "pipeline: {name: gold, kind: delta}\nupstreams: {a: {path: ./a, keys: [id]}}\n"
    )
    done = run("alerts", "test")
    assert "gold: `ops` took the message" in done.output
    done = run("alerts", "test", "-p", "shop")
    assert (done.exit_code, "`ops` took the message" in done.output) == (0, True)
    assert "this is a test" in server.arrived[0].json["text"]
    server.answers = [500]
    assert run("alerts", "test").exit_code == 1
