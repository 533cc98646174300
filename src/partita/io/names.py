"""Names in `federation.toml`, listed apart from what they name, so that help loads nothing that computes."""

from typing import Literal

__all__ = ["Turns"]

Turns = Literal["sequential", "synchronous", "asynchronous"]
"""Schedules."""
