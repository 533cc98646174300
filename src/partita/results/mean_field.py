"""Are the standard deviations of coefficients that are independent, or so in blocks, too small?"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from partita.expectations.capabilities import CurvedInTable
from partita.families import Family
from partita.families.capabilities import GroupedGaussian
from partita.models import Model

__all__ = ["MAX_COLUMNS", "MeanFieldCheck", "grouped", "independence", "ratios"]

MAX_COLUMNS = 2_500
"""The largest number of columns whose full covariance is looked at; it takes about as long as a step of Newton's."""
_LIMIT = 1.2
"""How many times as large, or as small, a standard deviation may be with full covariance before it is reported."""
_NAMED = 3
"""How many coefficients are named."""

_Ratios = Float[np.ndarray, " d"]


def _unknown() -> None:
    """The rows cannot be seen from here."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeanFieldCheck:
    """What full covariance would change of standard deviations; computed when it is first asked for, and kept."""

    compare: Callable[[], _Ratios | None] = _unknown
    """The standard deviations with full covariance, as multiples of those there are; None if that is not known."""

    @functools.cached_property
    def found(self) -> _Ratios | None:
        """The multiples, and 1 where the correlation of columns is not why they differ."""
        return self.compare()

    def __getstate__(self) -> dict[str, object]:
        """What was found; the rows it was found from stay where they are."""
        return {"compare": _unknown, "found": self.found}

    def sentence(self, names: Sequence[str], remedy: str, of: str) -> str:
        """A sentence where some standard deviation differs by more than 20%, or that it is not known; or nothing.

        Args:
            names: of the coefficients.
            remedy: what to do about it.
            of: what the coefficients are, as `independence` says.

        """
        if self.found is None:
            return (
                f"The standard deviations are of {of}, and too small beside correlated columns, "
                f"which could not be checked here: {remedy}."
            )
        apart = np.abs(np.log(self.found))
        far = int((apart > np.log(_LIMIT)).sum())
        if not far:
            return ""
        worst = np.argsort(-apart, kind="stable")[: min(far, _NAMED)]
        each = ", ".join(f"that of {names[j]} is {self.found[j]:.3g} times as large" for j in worst)
        more = f", and {far - len(worst)} more differ by over 20%" if far > len(worst) else ""
        return f"The standard deviations are of {of}; with full covariance {each}{more}: {remedy}."


def ratios(precision: Float[np.ndarray, "d d"], sd: _Ratios) -> _Ratios | None:
    """The standard deviations that a precision matrix implies, as multiples of those given.

    A multiple counts only where the matrix has a correlation that explains it: other reasons, such as a run that has
    not converged, are reported elsewhere. None if the matrix is not that of a distribution.
    """
    if not (np.diagonal(precision) > 0).all():
        return None
    scale = np.sqrt(np.diagonal(precision))
    try:
        lower = np.linalg.cholesky(precision / np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return None
    wider = np.sqrt(np.sum(np.linalg.inv(lower) ** 2, axis=0))
    found = wider / scale / sd
    return np.where(wider > _LIMIT, found, 1.0) if np.isfinite(found).all() else None


def independence(groups: int, size: int) -> str:
    """What coefficients are of which so many groups are independent of each other."""
    return "independent coefficients" if groups == size else f"coefficients in {groups} independent blocks"


def grouped(model: Model, member: Family) -> GroupedGaussian | None:
    """The coefficients of a linear predictor under a member, if they are Gaussian, in groups that are independent."""
    coefficients = model.coefficients(member) if isinstance(model, CurvedInTable) else None
    if isinstance(coefficients, GroupedGaussian) and coefficients.independent_groups > 1:
        return coefficients
    return None
