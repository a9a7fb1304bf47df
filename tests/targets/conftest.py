"""Failures in the shipped suite shall say as much as failures here."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tidegate.testing.targets")
