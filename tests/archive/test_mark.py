"""The one UPDATE whose answer may get lost."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from pydantic import SecretStr

from tests.archive.conftest import START
from tests.servers import Server
from tidegate.archive.config import login_of
from tidegate.archive.mark import Mark, MarkTable
from tidegate.core.errors import Conflict, ConnectError

LATER = START + timedelta(days=7)


@pytest.fixture
def table(postgres_database: Server) -> MarkTable:
    found = MarkTable(login_of(SecretStr(postgres_database.url)))
    found.begin(Mark(START, 7))
    return found


@pytest.mark.parametrize("moment", ["before it is asked for", "while it is sent again", "never"])
def test_whenever_the_first_attempt_lands_the_mark_is_moved_once(
    table: MarkTable, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    update, attempts = table._update, list[int]()  # noqa: SLF001 - the line between us and the server

    def losing(before: datetime, after: datetime) -> bool:
        attempts.append(1)
        if len(attempts) == 1:
            if moment == "before it is asked for":
                update(before, after)
            raise ConnectError("the line is cut")
        if moment == "while it is sent again":
            update(before, after)
        return update(before, after)

    monkeypatch.setattr(MarkTable, "_update", lambda _, before, after: losing(before, after))
    table.move(START, LATER)
    assert table.read() == Mark(LATER, 7)
    monkeypatch.undo()
    with pytest.raises(Conflict, match="is 2024-11-08"):
        table.move(START, LATER)
