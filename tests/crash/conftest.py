from __future__ import annotations

from tests.system.conftest import build

__all__ = ["build"]
