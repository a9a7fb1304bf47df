"""All staging areas keep the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.staging.contract import Staging
from tidegate.staging.local import LocalStaging
from tidegate.testing.staging import StagingContract


class TestLocalFolder(StagingContract):
    @pytest.fixture
    def staging(self, tmp_path: Path) -> Staging:
        return LocalStaging(tmp_path / "staging")
