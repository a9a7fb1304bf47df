"""Where the clock was: it serves every job, so it lies in `tidegate.state.clock` now."""

from __future__ import annotations

from tidegate.state.clock import new_token, now

__all__ = ["new_token", "now"]
