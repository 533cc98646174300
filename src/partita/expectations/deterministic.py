"""Deterministic expectations: closed forms, bounds, and quadrature over the predictor or over θ."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.base import Density, Derivatives, Expectation, Rows
from partita.expectations.capabilities import ClosedForm, ClosedPredictor, DiscreteLatent, LinearPredictor, offered
from partita.families import Family
from partita.families.base import Theta
from partita.families.capabilities import Spreading
from partita.inputs import check_whole

__all__ = ["Analytic", "Assignments", "GaussHermite", "GridQuadrature", "root"]

_MAX_DIMENSIONS = 3
"""The largest number of parameters for a grid."""


_MAX_POINTS = 1_000
"""The largest number of points in one dimension; some 200 are exact to rounding."""


def _closed(model: Density) -> ClosedPredictor:
    return offered(model, ClosedPredictor, "closed form of its expectation", "use GaussHermite or MonteCarlo")


def _linear(model: Density) -> LinearPredictor:
    return offered(model, LinearPredictor, "Gaussian linear predictor", "use the expectation MonteCarlo")


class Analytic(Expectation):
    """A closed form that the model supplies."""

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        if isinstance(model, ClosedForm):
            return model.expected_log_densities(q, data)
        return self.at_predictor(model, *_closed(model).predictor(q, data), data)

    def at_predictor(self, model: Density, mean: Rows, variance: Rows, data: PyTree) -> Rows:
        return _closed(model).expected_log_density(mean, variance, data)


class Assignments(Expectation):
    """For models with a discrete latent variable per row: a lower bound, maximised over its distribution r_n.

    At its maximum Σ_k r_nk (E_q[log p(y_n, z_n = k | θ)] − log r_nk) is log Σ_k exp E_q[log p(y_n, z_n = k | θ)]. Its
    gradient is that at the best r_n held fixed (the envelope theorem), so that its natural gradient is the conjugate
    factor of the expected statistics: the latent variables never leave the client, and nothing is kept between visits.
    """

    bounds = True

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        latent = offered(model, DiscreteLatent, "discrete latent variable", "use Analytic or MonteCarlo")
        return jax.nn.logsumexp(latent.expected_joint_log_densities(q, data), axis=1)


class GaussHermite(Expectation):
    """Quadrature over the one-dimensional Gaussian linear predictor of each row.

    Derivatives are those of the quadrature sum, so that value and gradient agree to rounding. For a log-concave
    likelihood the derivative in the variance is never positive, for any number of points.
    """

    points: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        check_whole("number of points", self.points, most=_MAX_POINTS)

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        return self.at_predictor(model, *_linear(model).predictor(q, data), data)

    def at_predictor(self, model: Density, mean: Rows, variance: Rows, data: PyTree) -> Rows:
        grid, _, masses = self._grid(mean, variance)
        return jnp.sum(_linear(model).log_density_at(grid, data) * masses, axis=1)

    def average(self, function: Callable[[Array], Array], mean: Rows, variance: Rows) -> Rows:
        """The expectation of an elementwise function of the predictor."""
        grid, _, masses = self._grid(mean, variance)
        return jnp.sum(function(grid) * masses, axis=1)

    def derivatives(self, model: Density, mean: Rows, variance: Rows, data: PyTree) -> Derivatives:
        """From the derivatives of log p(y | f) at the nodes, which is cheaper than differentiating the sum twice."""
        grid, nodes, masses = self._grid(mean, variance)

        def slope(f: Array) -> Array:
            return jax.jvp(lambda g: _linear(model).log_density_at(g, data), (f,), (jnp.ones_like(f),))[1]

        first, second = jax.jvp(slope, (grid,), (jnp.ones_like(grid),))
        by_mean, by_sd = (first @ jnp.stack([masses, masses * nodes], axis=1)).T
        powers = jnp.stack([masses, masses * nodes, masses * nodes**2], axis=1)
        mean_mean, mean_sd, sd_sd = (second @ powers).T
        # a row of zeros has variance 0; its derivatives are later multiplied by zeros
        positive = jnp.where(variance > 0, variance, 1)
        by_variance = by_sd / (2 * root(positive))
        mean_variance = mean_sd / (2 * root(positive))
        return Derivatives(by_mean, by_variance, mean_mean, mean_variance, (sd_sd - 2 * by_variance) / (4 * positive))

    def _grid(self, mean: Rows, variance: Rows) -> tuple[Float[Array, "n s"], Float[Array, " s"], Float[Array, " s"]]:
        """Values of each row's predictor, the nodes that they belong to, and their masses."""
        nodes, masses = (jnp.asarray(each, mean.dtype) for each in _rule(self.points))
        return mean[:, None] + root(variance)[:, None] * nodes, nodes, masses


class GridQuadrature(Expectation):
    """A tensor product of Gauss–Hermite rules over θ itself: any model, a Gaussian of one to three parameters."""

    points: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        check_whole("number of points", self.points, most=_MAX_POINTS)

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        each_row = jax.vmap(model.log_density, in_axes=(None, 0))
        theta, log_masses = self.nodes(q, key)
        return jnp.exp(log_masses) @ jax.vmap(lambda one: each_row(one, data))(theta)

    def nodes(self, q: Family, key: Key[Array, ""]) -> tuple[Theta, Float[Array, " s"]]:
        """Quadrature nodes for q, and their log weights."""
        sampler = q.sampler()
        if not isinstance(sampler, Spreading):
            raise SettingsError(f"A grid needs a Gaussian, not a {type(q).__name__}: use MonteCarlo.")
        if (size := sum(leaf.size for leaf in jax.tree.leaves(sampler.mean))) > _MAX_DIMENSIONS:
            raise SettingsError(f"A grid supports at most {_MAX_DIMENSIONS} parameters, not {size}: use MonteCarlo.")
        nodes, masses = _rule(self.points)
        grid = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), axis=-1).reshape(-1, size)
        sums = functools.reduce(np.add.outer, [np.log(masses)] * size).reshape(-1)
        dtype = jax.tree.leaves(q)[0].dtype
        return sampler.spread(jnp.asarray(grid, dtype)), jnp.asarray(sums, dtype)


def _rule(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of the Gauss–Hermite rule for N(0, 1), and their masses."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(points)
    return nodes, masses / masses.sum()


def root(variance: Rows) -> Rows:
    """√variance with a finite derivative at 0 (for rows of zeros)."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
