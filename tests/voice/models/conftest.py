"""Every test here has an empty cache folder of its own."""

from __future__ import annotations

from model_sources import cache, hub, index

__all__ = ["cache", "hub", "index"]
