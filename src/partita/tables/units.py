"""From the parameters of a fit to the table's own units."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float

from partita.tables.constants import Constant
from partita.tables.design import Design
from partita.tables.formula import INTERCEPT
from partita.tables.likelihoods import Likelihood
from partita.tables.response import Response

__all__ = ["Units"]


@dataclasses.dataclass(frozen=True)
class Units:
    """What is reported of θ, a linear function of it: coefficients in the columns' units, then constants."""

    names: tuple[str, ...]
    """Of the coefficients."""
    constants: tuple[Constant, ...]
    """On the scale on which they are Gaussian."""
    parameters: tuple[str, ...]
    """The names of the elements of θ."""
    turn: Float[np.ndarray, "k d"]
    shift: Float[np.ndarray, " k"]

    @classmethod
    def of(cls, design: Design, response: Response, likelihood: Likelihood, scales: Sequence[str] = ()) -> Self:
        """Coefficients are multiplied by the response's slope, and its shift is added to intercepts.

        The prior's scales, after the coefficients of each linear predictor, are not reported.
        """
        classes, inferred = likelihood.classes(response), tuple(likelihood.constants(response))
        names = tuple(label + name for label in classes for name in design.names)
        size, extra = len(names), len(inferred)
        turn, shift = np.eye(size + extra), np.zeros(size + extra)
        turn[:size, :size] = np.kron(np.eye(len(classes)), response.slope * design.in_own_units())
        shift[:size] = [response.shift * (name == INTERCEPT) for name in names]
        shift[size:] = [np.log(response.slope) * constant.in_units for constant in inferred]
        parameters = (*names, *(constant.name for constant in inferred))
        if likelihood.threshold is None:
            return cls(names, inferred, parameters, turn, shift)._beside(scales, classes, len(design.names))
        place, first = names.index(INTERCEPT), likelihood.threshold(response)
        order = [*(k for k in range(size) if k != place), place, *range(size, size + extra)]
        turn, shift = turn[order], shift[order]
        turn[size - 1], shift[size - 1] = -turn[size - 1], -shift[size - 1]
        kept = tuple(name for name in names if name != INTERCEPT)
        renamed = tuple(first.name if name == INTERCEPT else name for name in parameters)
        return cls(kept, (first, *inferred), renamed, turn, shift)._beside(scales, classes, len(design.names))

    def _beside(self, scales: Sequence[str], classes: Sequence[str], columns: int) -> Self:
        """The same where the coefficients of each linear predictor are followed by the prior's scales."""
        if not scales:
            return self
        parameters = list(self.parameters)
        for place, label in reversed(list(enumerate(classes, 1))):
            parameters[place * columns : place * columns] = [label + scale for scale in scales]
        after = np.repeat(columns * np.arange(1, len(classes) + 1), len(scales))
        return dataclasses.replace(self, parameters=tuple(parameters), turn=np.insert(self.turn, after, 0.0, axis=1))
