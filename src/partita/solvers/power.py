"""The power α of power EP and of α-divergences."""

from jaxtyping import Array

from partita.errors import InputError


def check_power(alpha: float | Array) -> None:
    """Raises an `InputError` unless α is in (0, 1]; one that is traced was looked at before."""
    if isinstance(alpha, int | float) and not 0 < alpha <= 1:
        raise InputError(f"The power α is above 0 and at most 1, not {alpha}.")
