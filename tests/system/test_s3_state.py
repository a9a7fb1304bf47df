"""Syncs whose state lies in S3."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from tests.lost_answers import losing_answer, watching
from tests.servers import S3Server
from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID, LONG_AGO
from tests.toxiproxy import Toxiproxy
from tidegate.config.connection_models import S3State
from tidegate.s3 import S3Place
from tidegate.state.s3_objects import ANSWER_SECONDS


@pytest.fixture
def place(build: Build) -> Place:
    made = build("sqlite-duckdb")
    made.shop.create()
    made.shop.insert(20)
    return made


def keep_state_in(place: Place, bucket: S3Server) -> None:
    place.sections["state"] = {"default": {**bucket.config, "prefix": "state/"}}
    place.configure({"orders": {**HYBRID, "write_mode": "append"}})


def client_of(bucket: S3Server) -> object:
    return S3Place.of(S3State.model_validate(bucket.config)).client(answer_seconds=ANSWER_SECONDS)


def test_a_sync_survives_the_loss_of_any_answer_about_its_state(
    place: Place, fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    """Rows are appended: what is loaded twice would stay twice."""
    with toxiproxy.before(fresh_bucket.port) as proxied:
        bucket = fresh_bucket.behind(proxied.port)
        keep_state_in(place, bucket)
        for number in count(1):
            place.shop.insert(3, first=100 * number, at=LONG_AGO + timedelta(days=number))
            with losing_answer(proxied, client_of(bucket), number) as requests:
                assert place.synced().rows_loaded > 0
            place.agree()
            if not requests.broken:
                assert len(requests.sent) > 8
                return


def test_a_sync_that_finds_nothing_new_costs_four_requests(place: Place, fresh_bucket: S3Server) -> None:
    keep_state_in(place, fresh_bucket)
    place.synced()
    with watching(client_of(fresh_bucket)) as requests:
        assert place.sync().status == "nothing_new"
    assert [request.split(" ")[0] for request in requests.sent] == ["GET", "PUT", "GET", "PUT"]
