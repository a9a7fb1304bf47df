"""What is wrong is told once, what is over is told once, and telling never gets in the way."""

from __future__ import annotations

import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from tests.receiving import Arrived, receiving
from tests.receiving import Receiver as Server
from tidegate.config.alerts import SlackReceiver, WebhookReceiver
from tidegate.observe.alerts import Alerts, Condition, Kind, Look, Receiver
from tidegate.observe.telling import FileMemory

GUIDE = Path(__file__).parents[2] / "docs/how-to/alerts.md"
NOON = datetime(2025, 8, 1, 12, tzinfo=UTC)
ORDERS = (Kind.FAILURE, "orders")
PATIENT = {"timeout": timedelta(minutes=1), "max_time": timedelta(minutes=1)}
"""A machine that does something else for a while does not make a server silent."""
BROKEN = Condition(Kind.FAILURE, "orders", "the table is gone")


@pytest.fixture
def server() -> Iterator[Server]:
    with receiving() as server:
        yield server


class Desk:
    """A pipeline's alerts, with a clock to turn."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.path, self.server, self.now = folder / "alerts.json", server, NOON
        self.options: dict[str, Any] = PATIENT

    def tell(self, *found: Condition, looked_at: Any = frozenset({ORDERS})) -> list[str]:
        model = WebhookReceiver(url=SecretStr(self.server.url), **self.options)
        receiver = Receiver("ops", model, self.server.url, "s3cret-key")
        alerts = Alerts((receiver,), FileMemory(self.path), lambda text: text, lambda: self.now)
        return alerts.tell(Look("shop", looked_at, found, "sync_1"))


@pytest.fixture
def desk(tmp_path: Path, server: Server) -> Desk:
    return Desk(tmp_path, server)


def test_a_failure_is_told_once_and_its_end_once(desk: Desk) -> None:
    for found in ((BROKEN,), (BROKEN,), (), ()):
        assert desk.tell(*found) == []
    assert desk.server.alerts == [("began", "failure", "orders"), ("over", "failure", "orders")]


def test_a_message_says_what_where_and_since_when(desk: Desk) -> None:
    desk.tell(BROKEN)
    desk.now += timedelta(minutes=90)
    desk.tell()
    began, over = (message.json for message in desk.server.arrived)
    assert began == {
        "format": 1,
        "sent_at": "2025-08-01T12:00:00+00:00",
        "pipeline": "shop",
        "execution_id": "sync_1",
        "text": "Tidegate: failure in shop/orders: the table is gone",
        "alerts": [
            {
                "turn": "began",
                "kind": "failure",
                "stream": "orders",
                "message": "the table is gone",
                "since": "2025-08-01T12:00:00+00:00",
                "facts": {},
            }
        ],
        "left_out": 0,
    }
    assert over["text"] == "Tidegate: shop/orders has recovered from failure after 1 h 30 min"


def test_what_was_not_looked_at_is_not_over(desk: Desk) -> None:
    desk.tell(BROKEN)
    desk.tell(looked_at={(Kind.FAILURE, "payments"), (Kind.PENDING, "orders")})
    assert desk.server.alerts == [("began", "failure", "orders")]


def test_fifty_tables_that_fail_at_once_are_one_message(desk: Desk) -> None:
    found = [Condition(Kind.FAILURE, f"t{number}", "no") for number in range(70)]
    desk.tell(*found)
    [message] = desk.server.arrived
    assert (len(message.json["alerts"]), message.json["left_out"]) == (50, 20)
    assert message.json["text"].endswith("… and 20 more")


def test_what_lasts_is_told_only_when_it_lasts_too_long(desk: Desk) -> None:
    desk.options = {**PATIENT, "held_back_for": timedelta(minutes=15), "pending_for": timedelta(hours=1)}
    held = Condition(Kind.HELD_BACK, "orders", "held back by app@10.0.0.5", NOON)
    waiting = Condition(Kind.PENDING, "orders", "2 files wait", NOON)
    both = {held.key, waiting.key}
    for minutes in (0, 14, 16, 59, 61):
        desk.now = NOON + timedelta(minutes=minutes)
        desk.tell(held, waiting, looked_at=both)
    assert desk.server.alerts == [("began", "held_back", "orders"), ("began", "pending", "orders")]
    desk.tell(looked_at=both)
    assert {kind for turn, kind, _ in desk.server.alerts if turn == "over"} == {"held_back", "pending"}


def test_a_reminder_comes_only_if_it_is_wanted(desk: Desk) -> None:
    desk.options = {**PATIENT, "remind_every": timedelta(hours=6)}
    for hours in (0, 1, 6, 7, 12):
        desk.now = NOON + timedelta(hours=hours)
        desk.tell(BROKEN)
    assert [turn for turn, _, _ in desk.server.alerts] == ["began", "still", "still"]


def test_a_receiver_hears_only_what_it_wants(desk: Desk) -> None:
    desk.options = {**PATIENT, "on": frozenset({Kind.FAILURE})}
    desk.tell(BROKEN, Condition(Kind.DIFFERENCE, "orders", "5 rows differ"))
    desk.tell()
    desk.tell(BROKEN)  # its end was not to be told, but it has ended: this is a new one
    assert desk.server.alerts == [("began", "failure", "orders")] * 2


def test_what_did_not_arrive_is_told_the_next_time(desk: Desk) -> None:
    desk.server.answers = [404]
    [warning] = desk.tell(BROKEN)
    assert warning == "the alert could not be delivered to `ops`: 127.0.0.1 answered 404"
    assert desk.tell(BROKEN) == []
    assert len(desk.server.arrived) == 2  # a 404 is not tried again at once
    desk.server.answers = [404]
    desk.tell()
    desk.tell()
    assert desk.server.alerts[2:] == [("over", "failure", "orders")] * 2


def test_trouble_that_nobody_heard_of_needs_no_recovery(desk: Desk) -> None:
    desk.server.answers = [404]
    desk.tell(BROKEN)
    desk.tell()
    assert len(desk.server.arrived) == 1


def test_a_server_that_stumbles_is_tried_again(desk: Desk) -> None:
    desk.server.answers = [503, 429]
    assert desk.tell(BROKEN) == []
    assert len(desk.server.arrived) == 3
    assert len({message.body for message in desk.server.arrived}) == 1


def test_a_redirect_does_not_count_as_delivered(desk: Desk) -> None:
    desk.server.answers = [302]
    assert "answered 302" in desk.tell(BROKEN)[0]


def test_a_server_that_never_answers_is_waited_for_no_longer_than_was_said(desk: Desk) -> None:
    desk.server.silent = threading.Event()
    desk.options = {"timeout": timedelta(minutes=1), "max_time": timedelta(seconds=0.3)}
    began = time.monotonic()
    [warning] = desk.tell(BROKEN)
    assert time.monotonic() - began < 50
    assert warning.startswith("the alert could not be delivered to `ops`: no answer ")


def test_a_server_that_answers_drop_by_drop_is_waited_for_no_longer_than_was_said(desk: Desk) -> None:
    """Every byte begins the time of a socket anew."""
    with dripping() as desk.server.url:
        desk.options = {"timeout": timedelta(minutes=1), "max_time": timedelta(seconds=0.5)}
        began = time.monotonic()
        [warning] = desk.tell(BROKEN)
        assert time.monotonic() - began < 30
    assert warning == "the alert could not be delivered to `ops`: no answer within 0.5 s"


@contextmanager
def dripping() -> Iterator[str]:
    """The address of a server whose answer never ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b"H")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("answer", [301, 302, 307, 404, 500])
def test_an_address_that_is_a_secret_shows_in_no_warning(
    desk: Desk, answer: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    desk.options = {"attempts": 1}
    desk.server.url = desk.server.url.replace("//", "//bot:t0ken@") + "/T000/XYZZY"
    desk.server.answers = [answer]
    [warning] = desk.tell(BROKEN)
    assert "127.0.0.1 answered" in warning
    said = "".join((warning, caplog.text, *capfd.readouterr()))
    assert not [part for part in ("XYZZY", "t0ken", "hook") if part in said]


def test_a_user_and_a_password_in_the_address_are_sent_as_a_login(desk: Desk) -> None:
    desk.server.url = desk.server.url.replace("//", "//bot:t%40ken@")
    assert desk.tell(BROKEN) == []
    [message] = desk.server.arrived
    assert message.headers["Authorization"] == "Basic " + b64encode(b"bot:t@ken").decode()
    assert "@" not in message.headers["Host"]


@pytest.mark.parametrize(
    "url",
    [
        "hooks.example/XYZZY",
        "file:///etc/XYZZY",
        "http://[::1/XYZZY",
        "http://h:99999/XYZZY",
        "http://h/X YZZY",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValidationError, match="expected an address") as caught:
        WebhookReceiver(url=SecretStr(url))
    assert "YZZY" not in str(caught.value)


def test_two_runs_that_find_the_same_at_once_tell_it_once(desk: Desk) -> None:
    """The one that comes second waits until the first is done with it, and then it is no news."""
    desk.options = {"timeout": timedelta(minutes=1), "max_time": timedelta(minutes=1)}
    for number, found in enumerate(((BROKEN,), ()), start=1):
        desk.server.silent = threading.Event()
        runs = [threading.Thread(target=desk.tell, args=found) for _ in range(3)]
        for run in runs:
            run.start()
        until(partial(_arrived, desk, number))
        desk.server.silent.set()
        for run in runs:
            run.join(60)
    assert desk.server.alerts == [("began", "failure", "orders"), ("over", "failure", "orders")]


def _arrived(desk: Desk, number: int) -> bool:
    return len(desk.server.arrived) >= number


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def test_one_who_waits_too_long_for_another_tells_all_the_same(desk: Desk) -> None:
    desk.options = {"max_time": timedelta(seconds=0.5)}
    with FileMemory(desk.path).turn(timedelta(0)):
        desk.tell(BROKEN)
    assert desk.server.alerts == [("began", "failure", "orders")]


def test_what_is_no_text_is_told_and_remembered_all_the_same(desk: Desk) -> None:
    odd = Condition(Kind.FAILURE, "orders", "no file \udcff.parquet", facts={"file": "\udcff"})
    assert (desk.tell(odd), desk.tell(odd), desk.tell()) == ([], [], [])
    assert desk.server.alerts == [("began", "failure", "orders"), ("over", "failure", "orders")]
    assert desk.server.arrived[0].json["alerts"][0]["message"] == "no file ?.parquet"


def test_a_clock_that_is_set_back_neither_stops_alerts_nor_bends_them(desk: Desk) -> None:
    desk.options = {"remind_every": timedelta(hours=6)}
    for days in (0, -365):
        desk.now = NOON + timedelta(days=days)
        desk.tell(BROKEN)
    desk.tell(BROKEN)
    desk.tell()
    assert [turn for turn, _, _ in desk.server.alerts] == ["began", "still", "over"]
    assert desk.server.arrived[-1].json["text"].endswith("after 0.0 s")


def test_a_server_that_is_not_there_is_a_warning(desk: Desk) -> None:
    desk.options = {**PATIENT, "attempts": 1}
    desk.server.url = "http://127.0.0.1:1/secret-path"
    [warning] = desk.tell(BROKEN)
    assert (
        warning
        == "the alert could not be delivered to `ops`: 127.0.0.1 cannot be reached: Connection refused"
    )


def test_a_damaged_memory_tells_again(desk: Desk) -> None:
    desk.tell(BROKEN)
    zoneless = (
        '{"kind": "failure", "stream": "orders", "message": "", "since": "2025-08-01", "at": "2025-08-01"}'
    )
    for damage in ('{"kind": "nonsense"}', zoneless, "7"):
        desk.path.write_text(f'{{"ops": [{damage}]}}')
        assert desk.tell(BROKEN) == []
    assert desk.server.alerts == [("began", "failure", "orders")] * 4


def test_a_memory_that_cannot_be_written_is_a_warning(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    desk.path = tmp_path / "file" / "alerts.json"
    [warning] = desk.tell(BROKEN)
    assert "cannot be remembered" in warning


def test_slack_gets_text_with_its_own_signs_escaped(desk: Desk, tmp_path: Path) -> None:
    model = SlackReceiver(url=SecretStr(desk.server.url))
    receiver = Receiver("chat", model, desk.server.url)
    alerts = Alerts((receiver,), FileMemory(tmp_path / "a.json"), lambda text: text, lambda: NOON)
    alerts.tell(Look("shop", set(), (Condition(Kind.FAILURE, "orders", "a < b & <!channel>"),)))
    [message] = desk.server.arrived
    assert message.json == {"text": "Tidegate: failure in shop/orders: a &lt; b &amp; &lt;!channel&gt;"}


def verifying() -> Any:
    """The function that the guide gives to those who receive alerts."""
    [snippet] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(snippet, str(GUIDE), "exec"), names)
    return names["is_from_tidegate"]


def test_the_signature_is_what_the_guide_checks(desk: Desk) -> None:
    desk.now = datetime.now(UTC)
    desk.tell(BROKEN)
    [message] = desk.server.arrived
    check, secret = verifying(), "s3cret-key"
    assert check(secret, message.headers, message.body)
    assert not check("another", message.headers, message.body)
    assert not check(secret, message.headers, message.body + b" ")
    assert not check(secret, old(message).headers, message.body)
    assert not check(secret, {}, message.body)


def old(message: Arrived) -> Arrived:
    """The same message with an earlier time in its header."""
    return Arrived(message.path, {**message.headers, "Tidegate-Timestamp": "1700000000"}, message.body)


def test_an_old_message_sent_again_is_refused_by_the_guides_check(desk: Desk) -> None:
    desk.now = datetime.now(UTC) - timedelta(hours=1)
    desk.tell(BROKEN)
    [message] = desk.server.arrived
    assert not verifying()("s3cret-key", message.headers, message.body)
