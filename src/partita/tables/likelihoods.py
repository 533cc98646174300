"""Likelihoods by the names that statisticians know, with what a table of results says of them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from partita.errors import DataError, unknown
from partita.models import Model
from partita.models.glm import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression

__all__ = ["LIKELIHOODS", "Likelihood", "likelihood"]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """A likelihood, and how its results are told."""

    model: Model
    ratio: str | None = None
    """What exp(coefficient) is called, if it has a meaning."""
    binary: bool = False
    """Whether the response is one of two labels."""
    scaled: bool = False
    """Whether the response is standardised: its unit has no meaning to the prior."""
    learned: tuple[str, ...] = ()
    """The parameters besides coefficients, which are learned."""

    def check(self, name: str, response: np.ndarray) -> None:
        """Raises a `DataError` where a response cannot be of this kind."""
        if response.dtype.kind != "f":
            raise DataError(f"The response {name!r} holds texts where numbers are needed: recode it, or use bernoulli.")


LIKELIHOODS: Mapping[str, Likelihood] = {
    "gaussian": Likelihood(LinearRegression(), scaled=True, learned=("noise",)),
    "bernoulli": Likelihood(LogisticRegression(), "odds ratio", binary=True),
    "probit": Likelihood(ProbitRegression(), binary=True),
    "poisson": Likelihood(PoissonRegression(), "rate ratio"),
}


def likelihood(name: str) -> Likelihood:
    """The likelihood with this name."""
    if name not in LIKELIHOODS:
        raise unknown("family", name, LIKELIHOODS)
    return LIKELIHOODS[name]
