"""Likelihoods with several predictors: linear ones xᵀβ_p, and constants such as a log shape, inferred together."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.data.table import OffsetTable, Table
from partita.expectations import Expectation, PredictorQuadrature
from partita.expectations.capabilities import Rows
from partita.families import Family
from partita.families.capabilities import IndependentGaussian
from partita.families.gaussian import Standard, check_vector, gaussian
from partita.models.base import Model, check_finite, check_table

__all__ = ["VectorRegression"]


class VectorRegression(Model):
    """A likelihood p(y | f) with predictors f = (xᵀβ_1, …, xᵀβ_P, c_1, …, c_C) and θ = (β_1, …, β_P, c) as one vector.

    Coefficients and constants are jointly Gaussian under q, so that predictors are. The table's offset, if it has one,
    is added to the first predictor. A subclass gives log p(y | f), the mean response, draws and the allowed y. The
    first axis of f are the predictors, and y is that of one row: a number, or a named tuple of numbers.
    """

    expectation: Expectation = PredictorQuadrature()

    @property
    def linear(self) -> int:
        """P, the number of linear predictors."""
        return 1

    @property
    @abc.abstractmethod
    def constants(self) -> int:
        """C, the number of constants."""

    @abc.abstractmethod
    def log_link_density(self, f: Float[Array, "k *s"], y: PyTree) -> Float[Array, "*s"]:
        """The log density log p(y | f) of one row."""

    @abc.abstractmethod
    def mean_response(self, f: Float[Array, "k *s"]) -> Float[Array, "..."]:
        """E[y | f]; the probabilities of all classes, along the first axis, where y is a class."""

    @abc.abstractmethod
    def draw_response(self, f: Float[Array, "k *s"], y: PyTree, key: Key[Array, ""]) -> Float[Array, "*s"]:
        """Draws from p(y | f): numbers, classes, times or events, of as many trials as y has."""

    @abc.abstractmethod
    def check_response(self, y: Any) -> None:
        """Raises an `InputError` that names the first response which is not allowed; y are NumPy arrays."""

    def check(self, data: Table | OffsetTable) -> None:
        check_table(data, (Table, OffsetTable), paired=True)
        check_finite(data)
        self.check_response(jax.tree.map(np.asarray, data.y))

    def log_density(self, theta: Float[Array, " d"], datum: Table | OffsetTable) -> Float[Array, ""]:
        return self.log_density_at(self._at(theta, datum.x), datum)

    def log_density_at(self, predictors: Float[Array, "k *s"], datum: Table | OffsetTable) -> Float[Array, "*s"]:
        return self.log_link_density(_shifted(predictors, datum), datum.y)

    def response_at(self, predictors: Float[Array, "k *s"], datum: Table | OffsetTable) -> Float[Array, "..."]:
        return self.mean_response(_shifted(predictors, datum))

    def response(self, theta: Float[Array, " d"], x: Float[Array, "n d"]) -> Float[Array, "n ..."]:
        return jax.vmap(lambda row: self.mean_response(self._at(theta, row)))(x)

    def response_of(self, theta: Float[Array, " d"], data: Table | OffsetTable) -> Float[Array, "n ..."]:
        return jax.vmap(lambda datum: self.response_at(self._at(theta, datum.x), datum))(data)

    def simulated(self, theta: Float[Array, " d"], data: Table | OffsetTable, key: Key[Array, ""]) -> Rows:
        f = _shifted(jax.vmap(lambda row: self._at(theta, row), out_axes=1)(data.x), data)
        return self.draw_response(f, data.y, key).astype(f.dtype)

    def expected_response(self, q: Family, x: Float[Array, "n d"], offset: Rows | float = 0.0) -> Float[Array, "n ..."]:
        """E_q[y], row by row."""
        known = jnp.broadcast_to(jnp.asarray(offset, x.dtype), (len(x),))
        return PredictorQuadrature().responses(self, q, OffsetTable(x, jnp.zeros(len(x), x.dtype), known))

    def standard(self, q: Family) -> Standard:
        member = gaussian(q)
        check_vector(member.mean)
        if isinstance(member, IndependentGaussian):
            return Standard(member.mean, member.variance)
        return Standard(member.mean, member.covariance)

    def predictors(
        self, standard: Standard, datum: Table | OffsetTable
    ) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
        """From blocks of the covariance: no matrix of predictors by parameters is formed."""
        x, (mean, variance) = datum.x, standard
        count, split = self.linear, self.linear * len(datum.x)
        if variance.ndim == 1:
            spread = jnp.concatenate([variance[:split].reshape(count, -1) @ jnp.square(x), variance[split:]])
            return self._at(mean, x), jnp.diag(spread)
        across = jnp.einsum("i,pic->pc", x, variance[:split, split:].reshape(count, len(x), self.constants))
        within = jnp.einsum("i,piqj,j->pq", x, variance[:split, :split].reshape(count, len(x), count, len(x)), x)
        return self._at(mean, x), jnp.block([[within, across], [across.T, variance[split:, split:]]])

    def _at(self, theta: Float[Array, " d"], x: Float[Array, " c"]) -> Float[Array, " k"]:
        """The predictors of a row without its offset."""
        split = self.linear * len(x)
        return jnp.concatenate([theta[:split].reshape(self.linear, len(x)) @ x, theta[split:]])


def _shifted(predictors: Float[Array, "k *s"], datum: Table | OffsetTable) -> Float[Array, "k *s"]:
    """With the row's offset in the first predictor."""
    return jnp.concatenate([datum.shifted(predictors[0])[None], predictors[1:]])
