"""Asserts of the shipped contract suite explain themselves here as they would in a test module."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tidegate.testing.stores")
