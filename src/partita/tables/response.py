"""The response of a formula as numbers: labels that are agreed among sites, and the scale of a Gaussian response."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from jaxtyping import Float

from partita.data.columns import Moments
from partita.errors import DataError
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
    def agreed(
        cls, factor: Factor, likelihood: Likelihood, sites: Sequence[Mapping[str, np.ndarray]], positive: str | None
    ) -> Self:
        """The response of all sites: from their labels, or from the moments of their numbers."""
        texts = {columns[name].dtype.kind == "U" for columns in sites for name in factor.columns}
        if len(texts) > 1:
            raise DataError(f"The response {factor.text!r} is texts at one site and numbers at another: recode one.")
        if texts == {True}:
            if not likelihood.binary:
                raise DataError(
                    f"The response {factor.text!r} holds texts, where this family needs numbers: recode it."
                )
            return cls._labelled(
                factor, sorted({text for columns in sites for text in _raw(factor, columns)}), positive
            )
        if positive is not None:
            raise DataError(f"The response {factor.text!r} is numbers, so no label counts as 1: leave `positive` out.")
        if not likelihood.scaled:
            return cls(factor)
        moments = Moments.merge("", [Moments.summarise(factor.text, _numbers(factor, columns)) for columns in sites])
        if not moments.sd > 0:
            raise DataError(f"The response {factor.text!r} is the same in every row: there is nothing to explain.")
        return cls(factor, mean=moments.mean, sd=moments.sd)

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
            return np.array([text == self.positive for text in _raw(self.factor, columns)], dtype=float)
        return (_numbers(self.factor, columns) - self.mean) / self.sd

    def restored(self, numbers: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The inverse for numbers."""
        return self.mean + self.sd * numbers


def _raw(factor: Factor, columns: Mapping[str, np.ndarray]) -> list[str]:
    return evaluated(factor.argument, columns).tolist()


def _numbers(factor: Factor, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = np.asarray(evaluated(factor.argument, columns), dtype=float)
    if not np.isfinite(values).all():
        raise DataError(f"The response {factor.text!r} is not finite in some rows: leave them out.")
    return values
