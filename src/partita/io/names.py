"""Names in `federation.toml`, listed apart from what they name, so that help loads nothing that computes."""

from typing import Literal

__all__ = ["Network", "Regression", "Turns"]

Regression = Literal["linear", "logistic", "probit", "poisson"]
Network = Literal["classifier", "regressor"]
Turns = Literal["sequential", "synchronous", "asynchronous"]
"""Schedules."""
