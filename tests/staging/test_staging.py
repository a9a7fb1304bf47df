"""All staging areas keep the same contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers import S3Server
from tidegate.config.connection_models import S3Staging as S3StagingConfig
from tidegate.s3 import S3Place
from tidegate.staging import local
from tidegate.staging.contract import Staging
from tidegate.staging.local import LocalStaging
from tidegate.staging.s3 import S3Staging
from tidegate.testing.staging import StagingContract


class TestLocalFolder(StagingContract):
    @pytest.fixture
    def staging(self, tmp_path: Path) -> Staging:
        return LocalStaging(tmp_path / "staging")


def test_a_folder_that_is_cleaned_away_before_its_next_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = LocalStaging(tmp_path)
    staging.put("hour=14/old", b"")
    begin: Any = Path.open

    def cleaned_before(path: Path, *how: str) -> Any:
        monkeypatch.undo()
        staging.delete(["hour=14/old"])
        assert not path.parent.exists()
        return begin(path, *how)

    monkeypatch.setattr(Path, "open", cleaned_before)
    staging.put("hour=14/new", b"new")

    assert [item.key for item in staging.list()] == ["hour=14/new"]


def test_new_folders_are_on_disk_before_anything_in_them_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose folder is lost in a power cut is lost with it, and the state may refer to it."""
    synced: list[Path] = []
    monkeypatch.setattr(local, "_sync_folder", synced.append)
    staging = LocalStaging(tmp_path / "staging")
    staging.put("year=2025/month=08/new", b"")
    staging.put("year=2025/month=08/next", b"")

    root = tmp_path / "staging"
    assert synced == [tmp_path, root, root / "year=2025", *2 * [root / "year=2025/month=08"]]


class TestS3(StagingContract):
    @pytest.fixture
    def part(self) -> int:
        return 5 * 2**20  # the least that S3 takes, but for the last

    @pytest.fixture
    def staging(self, fresh_bucket: S3Server, part: int) -> Staging:
        place = S3Place.of(S3StagingConfig.model_validate({**fresh_bucket.config, "prefix": "incremental/"}))
        return S3Staging(place, part)
