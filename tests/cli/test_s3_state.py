"""What people are told when their state lies in S3 and they cannot get at it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import servers
from tests.cli.conftest import Run, Shop
from tests.servers import S3Server
from tests.state.careless import careless_server


def keep_state_in(shop: Shop, state: dict[str, Any]) -> None:
    file = shop.root / "config" / "connections.yml"
    text = file.read_text(encoding="utf-8").split("\nstate:")[0]
    file.write_text(f"{text}\nstate: {json.dumps({'default': state})}\n", encoding="utf-8")


@pytest.mark.parametrize("command", ["status", "sync", "watermark"])
def test_who_cannot_get_in_is_told_why_with_the_right_exit_code(
    shop: Shop, run: Run, fresh_bucket: S3Server, command: str
) -> None:
    args = ["watermark", "set", "-t", "orders", "--id", "1"] if command == "watermark" else [command]
    pipeline = shop.root / "config/pipelines/shop.yml"
    shop.pipeline(
        pipeline.read_text(encoding="utf-8").replace("pipeline:\n", "pipeline:\n  retries: {max: 0}\n")
    )
    right = "s3:PutObject" if command == "sync" else "s3:ListBucket"
    wrong = [
        ({**fresh_bucket.config, "secret_access_key": "hush-hush"}, "does not belong to the access key"),
        ({**fresh_bucket.config, "bucket": "t-none"}, "there is no bucket `t-none`"),
        (servers.s3_user(fresh_bucket).config, f"grant {right}"),
        (fresh_bucket.behind(1).config, "no answer from S3"),
    ]
    for state, words in wrong:
        keep_state_in(shop, state)
        done = run(*args)
        said = " ".join(done.output.split())
        assert (done.exit_code, words in said) == (5, True), done.output
        assert "Traceback" not in said
        assert "hush-hush" not in said


def test_a_server_that_ignores_conditions_is_a_mistake_in_the_configuration(shop: Shop, run: Run) -> None:
    with careless_server() as server:
        keep_state_in(shop, server.config)
        done = run("sync")
    assert done.exit_code == 2, done.output
    assert "ignores conditions" in done.output


def test_connections_test_finds_a_server_that_ignores_conditions_before_any_sync(
    shop: Shop, run: Run, fresh_bucket: S3Server
) -> None:
    keep_state_in(shop, fresh_bucket.config)
    done = run("connections", "test", "-c", "default")
    assert (done.exit_code, "the server heeds them" in done.output) == (0, True), done.output
    with careless_server() as server:
        keep_state_in(shop, server.config)
        done = run("connections", "test", "-c", "default")
    assert (done.exit_code, "ignores conditions" in done.output) == (2, True), done.output
