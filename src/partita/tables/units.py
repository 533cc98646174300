"""From the parameters of a fit to the table's own units."""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float

from partita.tables.constants import Constant
from partita.tables.design import INTERCEPT, Design
from partita.tables.likelihoods import Likelihood
from partita.tables.response import Response

__all__ = ["Units"]


@dataclasses.dataclass(frozen=True)
class Units:
    """What is told of θ, a linear function of it: coefficients in the columns' units, then constants."""

    names: tuple[str, ...]
    """Of the coefficients."""
    constants: tuple[Constant, ...]
    """On the scale on which they are Gaussian."""
    parameters: tuple[str, ...]
    """The names of the elements of θ."""
    turn: Float[np.ndarray, "k d"]
    shift: Float[np.ndarray, " k"]

    @classmethod
    def of(cls, design: Design, response: Response, likelihood: Likelihood) -> Self:
        """Coefficients are multiplied by the response's slope, and its shift is added to intercepts."""
        classes, inferred = likelihood.classes(response), tuple(likelihood.constants(response))
        names = tuple(label + name for label in classes for name in design.names)
        size, extra = len(names), len(inferred)
        turn, shift = np.eye(size + extra), np.zeros(size + extra)
        turn[:size, :size] = np.kron(np.eye(len(classes)), response.slope * design.in_own_units())
        shift[:size] = [response.shift * (name == INTERCEPT) for name in names]
        shift[size:] = [np.log(response.slope) * constant.in_units for constant in inferred]
        parameters = (*names, *(constant.name for constant in inferred))
        if likelihood.threshold is None:
            return cls(names, inferred, parameters, turn, shift)
        place, first = names.index(INTERCEPT), likelihood.threshold(response)
        order = [*(k for k in range(size) if k != place), place, *range(size, size + extra)]
        turn, shift = turn[order], shift[order]
        turn[size - 1], shift[size - 1] = -turn[size - 1], -shift[size - 1]
        kept = tuple(name for name in names if name != INTERCEPT)
        renamed = tuple(first.name if name == INTERCEPT else name for name in parameters)
        return cls(kept, (first, *inferred), renamed, turn, shift)
