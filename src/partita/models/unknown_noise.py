"""Linear regression with the noise precision as a parameter: q(θ, ε) jointly (`sec:hyper_learning`, last part)."""

from typing import NamedTuple

import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Float

from partita.data.table import Table
from partita.errors import DataError
from partita.expectations import Analytic, Expectation
from partita.families import Family
from partita.families.capabilities import NoisyPredictor, Positive, Projected
from partita.families.normal_gamma import Coefficients
from partita.models.base import Model, check_table

__all__ = ["Residual", "UnknownNoiseRegression", "residual"]


class Residual(NamedTuple):
    """Moments under q of a row's predictor xᵀβ and of the noise precision τ."""

    predictor: Float[Array, " n"]
    """E[xᵀβ]."""
    spread: Float[Array, " n"]
    """E[τ var(xᵀβ | τ)]."""
    precision: Positive


class UnknownNoiseRegression(Model):
    """y ~ N(xᵀβ, 1/τ) with θ = {"coefficients": β, "precision": τ}.

    Conjugate to `NormalGamma`. With `Product(coefficients=…, precision=Gamma(…))` its expectation is linear in the mean
    parameters of each of the two, so that solving for them in turn is exact.
    """

    expectation: Expectation = Analytic()

    def check(self, data: Table) -> None:
        check_table(data)

    def log_density(self, theta: Coefficients, datum: Table) -> Float[Array, ""]:
        return jsp.stats.norm.logpdf(datum.y, datum.x @ theta["coefficients"], theta["precision"] ** -0.5)

    def expected_log_densities(self, q: Family, data: Table) -> Float[Array, " n"]:
        predictor, spread, precision = residual(q, data.x)
        square = precision.mean * (data.y - predictor) ** 2 + spread
        return (precision.expected_log - jnp.log(2 * jnp.pi) - square) / 2

    def coefficients(self, q: Family) -> Family | None:
        return q.part("coefficients")

    def curvatures(self, q: Family, data: Table) -> Float[Array, " n"]:
        """E[τ] of every row."""
        return jnp.broadcast_to(residual(q, data.x).precision.mean, data.y.shape)

    def response(self, theta: Coefficients, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return x @ theta["coefficients"]

    def expected_response(self, q: Family, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return residual(q, x).predictor


def residual(q: Family, x: Float[Array, "n d"]) -> Residual:
    """These moments for all rows, for a joint or an independent distribution of coefficients and precision."""
    if isinstance(q, NoisyPredictor):
        return Residual(*q.noisy_predictor(x))
    coefficients, precision = q.part("coefficients"), q.part("precision")
    if not (isinstance(coefficients, Projected) and isinstance(precision, Positive) and precision.mean.ndim == 0):
        raise DataError(
            "Regression with unknown noise needs a NormalGamma, or a Product of a Gaussian named coefficients and a "
            "scalar Gamma named precision: use another expectation, such as MonteCarlo, with other families."
        )
    predictor, variance = coefficients.project(x)
    return Residual(predictor, precision.mean * variance, precision)
