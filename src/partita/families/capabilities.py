"""What a member may offer beside what every family has; models, expectations and solvers ask by these protocols.

A family offers a capability by having its attributes and methods; there is nothing to register.
"""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, PyTree

from partita.families.base import Sampler, Theta

__all__ = [
    "GroupedGaussian",
    "IndependentGaussian",
    "NoisyPredictor",
    "Pointed",
    "Positive",
    "Probabilities",
    "Projected",
    "Spreading",
]


@runtime_checkable
class Spreading(Sampler, Protocol):
    """The sampler of a Gaussian, given its mean and a square root of its covariance."""

    mean: PyTree

    def spread(self, noise: Float[Array, "s d"]) -> Theta:
        """The values of θ, along a leading axis, with these standardised, raveled coordinates."""


@runtime_checkable
class Pointed(Protocol):
    """A density whose expectations are sums over points."""

    def points(self) -> tuple[Theta, Float[Array, " n"]]:
        """Values of θ along a leading axis, and their masses, both differentiable in its coordinates."""


@runtime_checkable
class Projected(Protocol):
    """A Gaussian, with a precision matrix or the diagonal of one; so are linear predictors xᵀθ."""

    precision_mean: PyTree
    precision: PyTree

    def project(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of the linear predictor xᵀθ of each row."""


@runtime_checkable
class IndependentGaussian(Projected, Protocol):
    """Independent Gaussians, one per parameter."""

    variance: Theta


@runtime_checkable
class GroupedGaussian(Projected, Protocol):
    """A Gaussian over one vector, in groups of parameters that are independent of one another."""

    independent_groups: int
    sd: Float[Array, " d"]

    def matrix(self) -> Float[Array, "d d"]:
        """Its precision matrix."""


@runtime_checkable
class Probabilities(Protocol):
    """Probabilities θ of categories, with E[log θ]."""

    concentration: Float[Array, "... k"]
    expected_log: Float[Array, "... k"]


@runtime_checkable
class Positive(Protocol):
    """Positive numbers θ, such as precisions, with E[θ] and E[log θ]."""

    mean: Float[Array, "..."]
    expected_log: Float[Array, "..."]


@runtime_checkable
class NoisyPredictor(Protocol):
    """Coefficients β and the precision τ of the noise around xᵀβ, jointly."""

    def noisy_predictor(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"], Any]:
        """E[xᵀβ] and E[τ var(xᵀβ | τ)] of each row, and the distribution of τ."""
