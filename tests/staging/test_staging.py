"""All staging areas keep the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import S3Server
from tidegate.config.connection_models import S3Staging as S3StagingConfig
from tidegate.s3 import S3Place
from tidegate.staging.contract import Staging
from tidegate.staging.local import LocalStaging
from tidegate.staging.s3 import S3Staging
from tidegate.testing.staging import StagingContract


class TestLocalFolder(StagingContract):
    @pytest.fixture
    def staging(self, tmp_path: Path) -> Staging:
        return LocalStaging(tmp_path / "staging")


class TestS3(StagingContract):
    @pytest.fixture
    def part(self) -> int:
        return 5 * 2**20  # the least that S3 takes, but for the last

    @pytest.fixture
    def staging(self, fresh_bucket: S3Server, part: int) -> Staging:
        place = S3Place.of(S3StagingConfig.model_validate({**fresh_bucket.config, "prefix": "incremental/"}))
        return S3Staging(place, part)
