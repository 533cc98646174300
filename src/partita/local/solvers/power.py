"""The power α of power EP and of α-divergences."""

from typing import Any

from partita.inputs import check_fraction

__all__ = ["check_power"]


def check_power(alpha: Any) -> None:
    """Raises an `InputError` unless α is in (0, 1]."""
    check_fraction("power α", alpha)
