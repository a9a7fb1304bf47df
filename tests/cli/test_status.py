from __future__ import annotations

import json

from tests.cli.conftest import Run, Shop
from tidegate.core import transitions


def test_status_shows_every_table_at_a_glance(shop: Shop, run: Run) -> None:
    shop.extract(1)
    with shop.hold("customers"):
        lines = run("status").stdout.splitlines()
    assert "2025-08-01 13:00:00 / 101" in lines[1]
    assert "success" in lines[1]
    assert "a test (process " in lines[2]
    assert "never" in lines[3]


def test_status_shows_the_last_error(shop: Shop, run: Run) -> None:
    shop.extract(1)
    with shop.hold() as held:
        assert held.watermark is not None
        held.commit(*transitions.fail(held.watermark, "the disk is full", shop.clock()))
    assert "shop/orders: the disk is full" in run("status").stdout


def test_status_as_json_is_nothing_but_json(shop: Shop, run: Run) -> None:
    shop.extract(2)
    data = json.loads(run("status", "--json").stdout)
    orders, *others = data["tables"]
    assert orders["table"] == "orders"
    assert orders["pending_files"] == 1
    assert orders["lag_seconds"] > 0
    assert {table["status"] for table in others} == {"never"}


def test_output_that_is_not_for_a_terminal_has_no_control_characters(shop: Shop, run: Run) -> None:
    shop.extract(1)
    for args in (("status",), ("watermark", "get"), ("connections", "list"), ("config", "show")):
        output = run(*args).output
        assert output
        assert all(sign.isprintable() or sign == "\n" for sign in output)
