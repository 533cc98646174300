"""Draws of θ that are the same at every visit, by which the expectation of any model is a function of q alone."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.expectations.base import Density, Expectation, Rows
from partita.expectations.blocks import BLOCK, over_blocks, rows_by_blocks
from partita.families import Family
from partita.families.base import Theta
from partita.families.capabilities import Spreading
from partita.inputs import check_whole

__all__ = ["CommonDraws"]

_TOGETHER = 16
"""How many draws of a full block of rows are evaluated at once; the others wait, so that memory does not grow."""
_MAX_SIZE = 2_000
"""The largest number of parameters, of which draws are a square matrix at least."""
_SEED = 20
"""Of the draws."""


class CommonDraws(Expectation):
    """An average over standard normal draws that never change: any model, and any Gaussian q.

    All clients share them at every visit, so that a run is as with a deterministic expectation: free energies can be
    compared, solvers settle, and PVI's fixed points are those of the same average over pooled rows. What is left is the
    error of the average itself, which more draws lessen.

    They come in sets: the axes of a random rotation, to both sides, at one of the distances that a standard normal has
    from 0. So mean and covariance are exact, and the expectation of anything quadratic is. With fewer draws than twice
    the number of parameters there would be directions that no draw tells of: one set is the least.
    """

    draws: int = eqx.field(static=True, default=2048)
    """How many at least."""

    def __check_init__(self) -> None:
        check_whole("number of draws", self.draws)

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        average = self._average(model, q)
        count = len(jax.tree.leaves(data)[0])
        shard = Shard(data, jnp.ones(count), jnp.asarray(count))
        return rows_by_blocks(lambda block: average(block.data), shard)

    def total(self, model: Density, q: Family, data: PyTree, weights: Rows, key: Key[Array, ""]) -> Float[Array, ""]:
        average, count = self._average(model, q), jnp.asarray(len(weights))
        return over_blocks(lambda block: block.weights @ average(block.data), Shard(data, weights, count))

    def _average(self, model: Density, q: Family) -> Callable[[PyTree], Rows]:
        """Of rows, their log densities averaged over the draws."""
        theta, _ = self.nodes(q, jax.random.key(0))
        each_row = jax.vmap(model.log_density, in_axes=(None, 0))

        def average(data: PyTree) -> Rows:
            together = _TOGETHER * max(1, BLOCK // len(jax.tree.leaves(data)[0]))
            found = jax.lax.map(jax.checkpoint(lambda one: each_row(one, data)), theta, batch_size=together)
            return jnp.mean(found, axis=0)

        return average

    def nodes(self, q: Family, key: Key[Array, ""]) -> tuple[Theta, Float[Array, " s"]]:
        """Draws of θ, and the logarithms of their equal masses."""
        sampler = q.sampler()
        if not isinstance(sampler, Spreading):
            raise SettingsError(f"Common draws need a Gaussian, not a {type(q).__name__}: use MonteCarlo.")
        size = sum(leaf.size for leaf in jax.tree.leaves(sampler.mean))
        if size > _MAX_SIZE:
            raise SettingsError(f"Common draws are for at most {_MAX_SIZE:,} parameters, not {size:,}: use MonteCarlo.")
        noise, dtype = _noise(size, -(-self.draws // (2 * size))), jax.tree.leaves(q)[0].dtype
        return sampler.spread(jnp.asarray(noise, dtype)), jnp.full(len(noise), -np.log(len(noise)), dtype)


@functools.lru_cache(maxsize=64)
def _noise(size: int, sets: int) -> Float[np.ndarray, "s d"]:
    """Sets of draws of a standard normal with as many dimensions."""
    from scipy import stats

    generator = np.random.default_rng(_SEED)
    distances = stats.chi(size).ppf((np.arange(sets) + 0.5) / sets)
    distances *= np.sqrt(size / np.mean(distances**2))
    found = []
    for distance in distances:
        turned, upper = np.linalg.qr(generator.normal(size=(size, size)))
        axes = distance * turned * np.sign(np.diagonal(upper))
        found += [axes, -axes]
    return np.concatenate(found)
