"""Generalised linear models: the likelihood depends on θ through a linear predictor f = xᵀθ."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key, Real

from partita.data.table import OffsetTable, Table
from partita.expectations import Analytic, Expectation, GaussHermite, root
from partita.expectations.capabilities import Rows
from partita.families import Family
from partita.families.gaussian import gaussian
from partita.inputs import check_finite_number
from partita.models.base import Model, check_table, check_values
from partita.numerics.compiled import Scalar

__all__ = [
    "BinaryRegression",
    "GeneralisedLinear",
    "LinearRegression",
    "LogisticRegression",
    "PoissonRegression",
    "ProbitRegression",
    "softplus",
]


class GeneralisedLinear(Model):
    """A likelihood p(y | f) with f = xᵀθ, plus the table's offset if it has one.

    A subclass gives log p(y | f), the mean response and the allowed y.
    """

    @abc.abstractmethod
    def log_link_density(self, f: Float[Array, "*#k"], y: Real[Array, "*#k"]) -> Float[Array, "*#k"]:
        """The log density log p(y | f), elementwise."""

    @abc.abstractmethod
    def mean_response(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        """E[y | f], elementwise."""

    def check(self, data: Table) -> None:
        check_table(data, (Table, OffsetTable))

    def log_density(self, theta: Float[Array, " d"], datum: Table) -> Float[Array, ""]:
        return self.log_link_density(datum.shifted(datum.x @ theta), datum.y)

    def log_density_at(self, predictor: Float[Array, "n ..."], data: Table) -> Float[Array, "n ..."]:
        return self.log_link_density(data.shifted(predictor), data.y.reshape(-1, *(1,) * (predictor.ndim - 1)))

    def predictor(self, q: Family, data: Table) -> tuple[Rows, Rows]:
        return gaussian(q).project(data.x)

    def shared(self, q: Family, data: Table) -> tuple[Rows, Rows]:
        mean, variance = self.predictor(q, data)
        return mean, root(variance)

    def noise_shape(self, shared: tuple[Rows, Rows]) -> tuple[int, ...]:
        return shared[0].shape

    def predictor_at(self, shared: tuple[Rows, Rows], noise: Rows) -> Rows:
        return shared[0] + shared[1] * noise

    def coefficients(self, q: Family) -> Family:
        return q

    def curvatures(self, q: Family, data: Table) -> Rows:
        """By quadrature, whatever the expectation of the model is."""
        return -GaussHermite().derivatives(self, *self.predictor(q, data), data).mean_mean

    def response_at(self, predictor: Rows) -> Rows:
        return self.mean_response(predictor)

    def response(self, theta: Float[Array, " d"], x: Float[Array, "n d"]) -> Rows:
        return self.mean_response(x @ theta)

    def response_of(self, theta: Float[Array, " d"], data: Table) -> Rows:
        return self.mean_response(data.shifted(data.x @ theta))

    def expected_response(self, q: Family, x: Float[Array, "n d"], offset: Rows | Scalar = 0.0) -> Rows:
        """E_q[y], row by row."""
        mean, variance = gaussian(q).project(x)
        return self.averaged_response(mean + offset, variance)

    def averaged_response(self, mean: Rows, variance: Rows) -> Rows:
        """E[y] where the predictor is Gaussian: by quadrature, unless a subclass knows better."""
        return GaussHermite().average(self.mean_response, mean, variance)


def _slope(slope: Any) -> Any:
    """A slope as it is given; a whole number as a floating-point one."""
    check_finite_number("slope", slope, above=0)
    return float(slope) if isinstance(slope, int) else slope


class BinaryRegression(GeneralisedLinear):
    """Binary y with P(y = 1) = link(slope · f); a subclass defines the link."""

    expectation: Expectation = GaussHermite()
    slope: float | Float[Array, ""] = eqx.field(converter=_slope, default=1.0)
    """The slope of the link. It is not identifiable if the prior's scale is learned as well."""
    positive: ClassVar[tuple[str, ...]] = ("slope",)

    predicts_classes = True

    def check(self, data: Table) -> None:
        super().check(data)
        y = np.asarray(data.y)
        check_values(y, (y == 0) | (y == 1), "labels are 0 or 1")

    def simulated(self, theta: Float[Array, " d"], data: Table, key: Key[Array, ""]) -> Rows:
        chance = self.response_of(theta, data)
        return jax.random.bernoulli(key, chance).astype(chance.dtype)

    def steep(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        """slope · f."""
        return jnp.asarray(self.slope, f.dtype) * f


class LogisticRegression(BinaryRegression):
    """p(y = 1 | f) = 1 / (1 + exp(−slope · f)), y in {0, 1}."""

    def log_link_density(self, f: Float[Array, "*#k"], y: Real[Array, "*#k"]) -> Float[Array, "*#k"]:
        return -softplus((1 - 2 * y) * self.steep(f))

    def mean_response(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        return jax.nn.sigmoid(self.steep(f))

    def averaged_response(self, mean: Rows, variance: Rows) -> Rows:
        """The probit approximation σ(m / √(1 + πv/8)) (Spiegelhalter and Lauritzen); the paper prints π for π/8."""
        return jax.nn.sigmoid(self.steep(mean) / jnp.sqrt(1 + jnp.pi * self.steep(self.steep(variance)) / 8))


class ProbitRegression(BinaryRegression):
    """p(y = 1 | f) = Φ(slope · f), y in {0, 1}."""

    def log_link_density(self, f: Float[Array, "*#k"], y: Real[Array, "*#k"]) -> Float[Array, "*#k"]:
        return jsp.special.log_ndtr((2 * y - 1) * self.steep(f))

    def mean_response(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        return jsp.special.ndtr(self.steep(f))

    def averaged_response(self, mean: Rows, variance: Rows) -> Rows:
        return jsp.special.ndtr(self.steep(mean) / jnp.sqrt(1 + self.steep(self.steep(variance))))


class PoissonRegression(GeneralisedLinear):
    """y ~ Poisson(exp(f)); the expectation under a Gaussian predictor is exact."""

    expectation: Expectation = Analytic()

    def check(self, data: Table) -> None:
        super().check(data)
        y = np.asarray(data.y)
        check_values(y, (y >= 0) & (y == np.round(y)), "counts are whole numbers from 0 up")
        kind = y.dtype if y.dtype.kind == "f" else np.dtype(float)
        exact = float(jnp.finfo(kind).eps) * y * np.log1p(y) < 1
        large = f"this count is too large for {kind}, which rounds its log density by a nat: model its logarithm"
        check_values(y, exact, large)

    def log_link_density(self, f: Float[Array, "*#k"], y: Real[Array, "*#k"]) -> Float[Array, "*#k"]:
        return y * f - jnp.exp(f) - jsp.special.gammaln(y + 1)

    def expected_log_density(self, mean: Rows, variance: Rows, data: Table) -> Rows:
        mean = data.shifted(mean)
        return data.y * mean - jnp.exp(mean + variance / 2) - jsp.special.gammaln(data.y + 1)

    def mean_response(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.exp(f)

    def simulated(self, theta: Float[Array, " d"], data: Table, key: Key[Array, ""]) -> Rows:
        rate = self.response_of(theta, data)
        return jax.random.poisson(key, rate).astype(rate.dtype)

    def averaged_response(self, mean: Rows, variance: Rows) -> Rows:
        return jnp.exp(mean + variance / 2)


class LinearRegression(GeneralisedLinear):
    """y ~ N(f, noise²): conjugate to a Gaussian, so ell is linear in the mean parameters of the full family."""

    noise: Float[Array, ""]
    expectation: Expectation = eqx.field(kw_only=True)
    positive: ClassVar[tuple[str, ...]] = ("noise",)

    def __init__(self, noise: Scalar = 1.0, expectation: Expectation | None = None) -> None:
        check_finite_number("noise", noise, above=0)
        self.noise = jnp.asarray(noise, jnp.result_type(float))
        self.expectation = Analytic() if expectation is None else expectation

    def log_link_density(self, f: Float[Array, "*#k"], y: Real[Array, "*#k"]) -> Float[Array, "*#k"]:
        return jsp.stats.norm.logpdf(y, f, self.noise.astype(f.dtype))

    def expected_log_density(self, mean: Rows, variance: Rows, data: Table) -> Rows:
        lost = variance / (2 * self.noise.astype(variance.dtype) ** 2)
        return self.log_link_density(data.shifted(mean), data.y) - lost

    def mean_response(self, f: Float[Array, "*k"]) -> Float[Array, "*k"]:
        return f

    def simulated(self, theta: Float[Array, " d"], data: Table, key: Key[Array, ""]) -> Rows:
        middle = self.response_of(theta, data)
        return middle + self.noise.astype(middle.dtype) * jax.random.normal(key, middle.shape, middle.dtype)

    def averaged_response(self, mean: Rows, variance: Rows) -> Rows:
        return mean


@jax.custom_jvp
def softplus(f: Float[ArrayLike, "*k"]) -> Float[Array, "*k"]:
    """log(1 + exp(f)), several times faster than `jax.nn.softplus` together with its derivatives."""
    return jnp.maximum(f, 0) + jnp.log1p(jnp.exp(-jnp.abs(f)))


@softplus.defjvp
def _(
    primals: tuple[Float[ArrayLike, "*k"]], tangents: tuple[Float[ArrayLike, "*k"]]
) -> tuple[Float[Array, "*k"], Float[Array, "*k"]]:
    return softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]
