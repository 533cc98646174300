"""Quadrature over several Gaussian predictors of each row."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.expectations.base import Density, Expectation, Rows
from partita.expectations.blocks import BLOCK
from partita.expectations.capabilities import VectorPredictor, offered
from partita.families import Family
from partita.inputs import check_whole

__all__ = ["PredictorQuadrature", "normal_nodes", "square_root"]

_MOST_POINTS = 20
"""The most points in one dimension."""
_LEAST_POINTS = 3
"""Fewer points in one dimension are not exact for fourth powers; nodes are then quasi-random."""
_ROUNDING = 1e-12
"""A pivot below so much of its variance is rounding."""


class PredictorQuadrature(Expectation):
    """A positive rule over the predictors f of each row, which are jointly Gaussian under q.

    A tensor product of Gauss–Hermite rules while that has no more than `nodes` nodes with three points in each
    dimension, and beyond that quasi-random nodes whose mean and covariance are exact. Derivatives are those of the sum,
    so that value and gradient agree to rounding. Rows are taken in blocks, and computed again for the gradient, so that
    memory does not grow with rows times nodes.
    """

    nodes: int = eqx.field(static=True, default=256)

    def __check_init__(self) -> None:
        check_whole("number of nodes", self.nodes, 2 * _LEAST_POINTS, most=1_000_000)

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        vector = offered(model, VectorPredictor, "vector of predictors", "use the expectation MonteCarlo")
        standard = vector.standard(q)

        def row(datum: PyTree) -> Float[Array, ""]:
            f, masses = self._grid(*vector.predictors(standard, datum))
            return vector.log_density_at(f, datum) @ masses

        count = len(jax.tree.leaves(data)[0])
        return jax.vmap(row)(data) if count <= BLOCK else jax.lax.map(jax.checkpoint(row), data, batch_size=BLOCK)

    def responses(self, model: VectorPredictor, q: Family, data: PyTree) -> Float[Array, "n ..."]:
        """The expectation of each row's response, or of the probabilities of its classes."""
        standard = model.standard(q)

        def row(datum: PyTree) -> Float[Array, "..."]:
            f, masses = self._grid(*model.predictors(standard, datum))
            return model.response_at(f, datum) @ masses

        return jax.lax.map(row, data, batch_size=min(BLOCK, len(jax.tree.leaves(data)[0])))

    def _grid(
        self, mean: Float[Array, " k"], covariance: Float[Array, "k k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " s"]]:
        """Values of a row's predictors, and their masses."""
        nodes, masses = (jnp.asarray(each, mean.dtype) for each in normal_nodes(len(mean), self.nodes))
        return mean[:, None] + square_root(covariance) @ nodes, masses


@functools.lru_cache
def normal_nodes(dimensions: int, most: int) -> tuple[Float[np.ndarray, "k s"], Float[np.ndarray, " s"]]:
    """Nodes of a rule for independent standard normals, at most so many, and their masses, which are positive."""
    points = min(_MOST_POINTS, int(most ** (1 / dimensions) + 1e-9))
    if points >= _LEAST_POINTS:
        nodes, masses = np.polynomial.hermite_e.hermegauss(points)
        grid = np.array(list(itertools.product(nodes, repeat=dimensions))).T
        weight = np.prod(list(itertools.product(masses / masses.sum(), repeat=dimensions)), axis=1)
        return grid, weight
    from scipy import stats  # takes longer to import than all the rest

    half = stats.norm.ppf(stats.qmc.Sobol(dimensions, seed=0).random(max(most // 2, dimensions)))
    drawn = np.concatenate([half, -half]).T
    whitened = np.linalg.solve(np.linalg.cholesky(drawn @ drawn.T / drawn.shape[1]), drawn)
    return whitened, np.full(drawn.shape[1], 1 / drawn.shape[1])


def square_root(covariance: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The lower triangular L with L Lᵀ = covariance, with finite derivatives where that is singular.

    A row of zeros has predictors without variance; the derivatives in it are later multiplied by zeros.
    """
    left, columns = covariance, []
    for place in range(len(covariance)):
        pivot = left[place, place]
        positive = pivot > _ROUNDING * covariance[place, place]
        column = jnp.where(positive, left[:, place] / jnp.sqrt(jnp.where(positive, pivot, 1)), 0)
        left = left - jnp.outer(column, column)
        columns.append(jnp.where(jnp.arange(len(covariance)) >= place, column, 0))
    return jnp.stack(columns, axis=1)
