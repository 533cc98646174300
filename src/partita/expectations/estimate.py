"""An expected log-likelihood as clients tell it: a number that was computed, or what draws say of it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from partita.numerics.compiled import Scalar

__all__ = ["Estimate"]


class Estimate(NamedTuple):
    """An expected log-likelihood by draws that are shared by all clients, or by each client's own, or computed."""

    totals: Float[Array, " s"] | Float[np.ndarray, " s"]
    """The log-likelihood at each of the draws that clients share; else one number."""
    variance: Scalar
    """Of that number where a client's own draws made it; else 0."""

    @classmethod
    def computed(cls, value: Float[Array | np.ndarray, ""]) -> "Estimate":
        """A number that no draws have to do with."""
        return cls(value[None], 0.0)

    @classmethod
    def unknown(cls) -> "Estimate":
        """What is not known."""
        return cls(np.array([np.nan]), np.nan)

    @classmethod
    def sum(cls, parts: Sequence["Estimate"]) -> "Estimate":
        """That of all clients: shared draws are added one by one, so that what they have in common cancels."""
        if len({len(part.totals) for part in parts}) > 1:
            return cls.unknown()
        columns = zip(*(np.asarray(part.totals, float) for part in parts), strict=True)
        totals = np.array([np.sum(column) for column in columns]) if parts else np.zeros(1)
        return cls(totals, math.fsum(float(part.variance) for part in parts))

    def beside(self, other: "Estimate") -> "Estimate":
        """The sum with one that may be computed while this is by draws, or the other way round."""
        totals = np.asarray(self.totals, float) + np.asarray(other.totals, float)
        return Estimate(totals, float(self.variance) + float(other.variance))

    @property
    def value(self) -> Scalar:
        """The mean over draws."""
        mean: Scalar = self.totals.mean()
        return mean

    @property
    def squared_error(self) -> Scalar:
        """The square of its standard error."""
        draws = len(self.totals)
        spread: Scalar = self.totals.var(ddof=1) / draws if draws > 1 else 0.0
        return self.variance + spread

    @property
    def error(self) -> float:
        """The standard error of `value`."""
        return math.sqrt(float(self.squared_error))
