"""Likelihoods by the names that statisticians know, with what a table of results says of them."""

import dataclasses
from collections.abc import Callable, Mapping

from partita.models.glm import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
)

__all__ = ["LIKELIHOODS", "Likelihood"]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """A likelihood, and how its results are told."""

    model: Callable[[], GeneralisedLinear]
    """Makes the model, in the precision that is set then."""
    ratio: str | None = None
    """What exp(coefficient) is called, if it has a meaning."""
    binary: bool = False
    """Whether the response is one of two labels."""
    scaled: bool = False
    """Whether the response is standardised: its unit has no meaning to the prior."""
    learned: tuple[str, ...] = ()
    """The parameters besides coefficients, which are learned."""


LIKELIHOODS: Mapping[str, Likelihood] = {
    "gaussian": Likelihood(LinearRegression, scaled=True, learned=("noise",)),
    "bernoulli": Likelihood(LogisticRegression, "odds ratio", binary=True),
    "probit": Likelihood(ProbitRegression, binary=True),
    "poisson": Likelihood(PoissonRegression, "rate ratio"),
}
"""Likelihoods by name."""
