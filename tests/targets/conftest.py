"""Failures in the shipped suite shall say as much as failures here."""

from __future__ import annotations

import sys

import pytest

if "tidegate.testing.targets" not in sys.modules:  # once it is imported, it is too late
    pytest.register_assert_rewrite("tidegate.testing.targets")
