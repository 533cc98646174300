"""The response of a formula as numbers: labels that are agreed among sites, and the scale of a Gaussian response."""

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np
from jaxtyping import Float

from partita.data.columns import Column, Counts, Moments
from partita.errors import DataError
from partita.tables.design import numbers
from partita.tables.formula import Factor, evaluated
from partita.tables.likelihoods import Likelihood

__all__ = ["Response"]


@dataclasses.dataclass(frozen=True)
class Response:
    """How every site turns its response into numbers."""

    factor: Factor
    positive: str | None = None
    """The label that counts as 1; None if the response is numbers."""
    negative: str | None = None
    mean: float = 0.0
    sd: float = 1.0
    """By which it is standardised."""

    @classmethod
    def agreed(cls, factor: Factor, likelihood: Likelihood, about: Column, positive: str | None) -> Self:
        """The response of all sites: from the counts of their labels, or from the moments of their numbers."""
        if isinstance(about, Counts):
            if not likelihood.binary:
                raise DataError(
                    f"The response {factor.text!r} holds texts, where this family needs numbers: recode it."
                )
            return cls._labelled(factor, list(about.levels), positive)
        if positive is not None:
            raise DataError(f"The response {factor.text!r} is numbers, so no label counts as 1: leave `positive` out.")
        if not likelihood.scaled:
            return cls(factor)
        assert isinstance(about, Moments)
        if not about.sd > 0:
            raise DataError(f"The response {factor.text!r} is the same in every row: there is nothing to explain.")
        return cls(factor, mean=about.mean, sd=about.sd)

    @classmethod
    def _labelled(cls, factor: Factor, labels: list[str], positive: str | None) -> Self:
        if len(labels) != 2:
            few = ", ".join(map(repr, labels[:5]))
            raise DataError(f"The response {factor.text!r} has the labels {few}, where two are needed: recode it.")
        one = labels[1] if positive is None else positive
        if one not in labels:
            raise DataError(
                f"The response {factor.text!r} has no label {positive!r}: choose {labels[0]!r} or {labels[1]!r}."
            )
        return cls(factor, one, labels[labels[0] == one])

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        if self.positive is None:
            return []
        return [f"{self.factor.text} is {self.positive!r} where it counts as 1, and {self.negative!r} where as 0."]

    def numbers(self, columns: Mapping[str, np.ndarray]) -> Float[np.ndarray, " n"]:
        """A site's response as numbers."""
        if self.positive is not None:
            texts = _raw(self.factor, columns)
            new = sorted(set(map(str, texts)) - {self.positive, self.negative})
            if new:
                raise DataError(
                    f"The response {self.factor.text!r} has the label {new[0]!r}, where {self.positive!r} and "
                    f"{self.negative!r} were agreed on: recode it.",
                    f"The response {self.factor.text!r} has a label that was not agreed on.",
                )
            return np.array([text == self.positive for text in texts], dtype=float)
        return (numbers(self.factor, columns) - self.mean) / self.sd

    def restored(self, numbers: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The inverse for numbers."""
        return self.mean + self.sd * numbers


def _raw(factor: Factor, columns: Mapping[str, np.ndarray]) -> list[str]:
    return evaluated(factor.argument, columns).tolist()
