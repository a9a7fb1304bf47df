"""What the guide tells people to type works, from its first line to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import Server
from tests.test_documents import blocks, run


def test_the_guide_works(postgres_database: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_database.url)
    told = run("\n".join(blocks("docs/how-to/archive.md", "sh")), tmp_path)
    assert "archived 50 files" in told
    assert "invoice number 7" in told
    assert "50 files had been archived before" in told
    assert "forgotten" in told
    assert told.endswith("51\n")
