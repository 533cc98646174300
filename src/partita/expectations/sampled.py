"""Monte Carlo expectations; draws and their gradients are accumulated one at a time."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from partita.errors import SettingsError
from partita.expectations.base import Expectation
from partita.expectations.integrand import Integrand
from partita.families import Family
from partita.families.base import Sampler, Theta
from partita.numerics.noise import standard_normal

BLOCK = 1024
"""The largest number of rows per block, small enough for the CPU cache."""


class Sampled(Expectation):
    """An average over draws, evaluated one at a time, so that memory does not grow with their number.

    Totals support reverse-mode differentiation in q, in the row weights and in the model's parameters.
    """

    samples: eqx.AbstractVar[int]

    def __check_init__(self) -> None:
        if self.samples < 1:
            raise SettingsError(f"The number of samples must be at least 1, not {self.samples}.")

    @property
    def deterministic(self) -> bool:
        return False

    @property
    @abc.abstractmethod
    def block(self) -> int | None:
        """The largest number of rows per block; None if draws are shared by all rows."""

    @abc.abstractmethod
    def shared(self, model: Integrand, q: Family, data: PyTree) -> PyTree:
        """Precomputes what all draws have in common."""

    @abc.abstractmethod
    def densities(self, model: Integrand, shared: PyTree, noise: Array, data: PyTree) -> Float[Array, " n"]:
        """Every row's log density at one draw."""

    @abc.abstractmethod
    def sum(
        self, term: Callable[[Array, PyTree], PyTree], model: Integrand, shared: PyTree, key: Key[Array, ""]
    ) -> PyTree:
        """The sum of a function of noise and precomputed values over all draws."""

    def rows(self, model: Integrand, q: Family, data: PyTree, key: Key[Array, ""]) -> Float[Array, " n"]:
        def term(noise: Array, shared: PyTree) -> Float[Array, " n"]:
            return self.densities(model, shared, noise, data)

        return self.sum(term, model, self.shared(model, q, data), key) / self.samples

    def total(
        self, model: Integrand, q: Family, data: PyTree, weights: Float[Array, " n"], key: Key[Array, ""]
    ) -> Float[Array, ""]:
        return _total((model, q, weights), self, data, key) / self.samples


class MonteCarlo(Sampled):
    """Reparameterised draws of θ, shared by all rows; works with any model and any family."""

    samples: int = eqx.field(static=True, default=10)

    @property
    def block(self) -> int | None:
        return None

    def shared(self, model: Integrand, q: Family, data: PyTree) -> Sampler:
        return q.sampler()

    def densities(self, model: Integrand, shared: Sampler, noise: Key[Array, ""], data: PyTree) -> Float[Array, " n"]:
        return jax.vmap(model.log_density, in_axes=(None, 0))(shared.sample(noise), data)

    def sum(
        self, term: Callable[[Array, PyTree], PyTree], model: Integrand, shared: Sampler, key: Key[Array, ""]
    ) -> PyTree:
        return _sum(lambda index: term(jax.random.fold_in(key, index), shared), self.samples)

    def nodes(self, q: Family, key: Key[Array, ""]) -> tuple[Theta, Float[Array, " s"]]:
        """Draws of θ, and the logarithms of their equal masses."""
        dtype = jax.tree.leaves(q)[0].dtype
        return q.sample(key, (self.samples,)), jnp.full(self.samples, -np.log(self.samples), dtype)


class LocalReparameterisation(Sampled):
    """Draws of each row's predictor instead of θ: independent across rows, so with lower variance.

    Draws are antithetic pairs; what all draws share is precomputed.
    """

    samples: int = eqx.field(static=True, default=10)

    @property
    def block(self) -> int | None:
        return BLOCK

    def shared(self, model: Integrand, q: Family, data: PyTree) -> PyTree:
        return model.shared(q, data)

    def densities(self, model: Integrand, shared: PyTree, noise: Array, data: PyTree) -> Float[Array, " n"]:
        return model.log_density_at(model.predictor_at(shared, noise), data)

    def sum(
        self, term: Callable[[Array, PyTree], PyTree], model: Integrand, shared: PyTree, key: Key[Array, ""]
    ) -> PyTree:
        shape, dtype = model.noise_shape(shared), jax.tree.leaves(shared)[0].dtype

        def noise(index: int | Int[Array, ""]) -> Array:
            return standard_normal(jax.random.fold_in(key, index), shape, dtype)

        def pair(index: int | Int[Array, ""]) -> PyTree:
            drawn = noise(index)
            return jax.tree.map(jnp.add, term(drawn, shared), term(-drawn, shared))

        pairs, single = divmod(self.samples, 2)
        if not pairs:
            return term(noise(0), shared)
        total = _sum(pair, pairs)
        return jax.tree.map(jnp.add, total, term(noise(pairs), shared)) if single else total


Wanted = tuple[Integrand, Family, Float[Array, " n"]]
"""The differentiable arguments: the model's parameters, q, and the row weights."""


@eqx.filter_custom_vjp
def _total(wanted: Wanted, expectation: Sampled, data: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """The sum of log densities over draws and rows; its gradient is accumulated per block and draw as well.

    Memory is bounded by one block and one draw, which fit in the CPU cache.
    """
    model, q, weights = wanted

    def block(part: Block) -> PyTree:
        rows, weights, fresh, _, key = part

        def density(noise: Array, shared: PyTree) -> Float[Array, ""]:
            return (weights * fresh) @ expectation.densities(model, shared, noise, rows)

        return expectation.sum(density, model, expectation.shared(model, q, rows), key)

    return _by_blocks(block, expectation.block, data, weights, key)


@_total.def_fwd
def _total_and_gradient(
    perturbed: PyTree, wanted: Wanted, expectation: Sampled, data: PyTree, key: Key[Array, ""]
) -> tuple[Float[Array, ""], PyTree]:
    model, q, weights = wanted
    numbers, rest = eqx.partition(model, eqx.is_inexact_array)
    nowhere = jnp.zeros_like(weights)

    def block(part: Block) -> PyTree:
        rows, weights, fresh, start, key = part

        def density(everything: PyTree, noise: Array) -> Float[Array, ""]:
            numbers, shared, weights = everything
            model = eqx.combine(numbers, rest)
            return (weights * fresh) @ expectation.densities(model, shared, noise, rows)

        def both(noise: Array, shared: PyTree) -> PyTree:
            return jax.value_and_grad(density)((numbers, shared, weights), noise)

        shared, pull = jax.vjp(lambda numbers, q: expectation.shared(eqx.combine(numbers, rest), q, rows), numbers, q)
        value, (by_numbers, by_shared, by_weights) = expectation.sum(both, model, shared, key)
        through = pull(by_shared)
        placed = jax.lax.dynamic_update_slice(nowhere, by_weights, (start,))
        return value, (jax.tree.map(jnp.add, by_numbers, through[0]), through[1], placed)

    return _by_blocks(block, expectation.block, data, weights, key)


@_total.def_bwd
def _scaled_gradient(
    gradient: PyTree,
    outer: Float[Array, ""],
    perturbed: PyTree,
    wanted: Wanted,
    expectation: Sampled,
    data: PyTree,
    key: Key[Array, ""],
) -> PyTree:
    return jax.tree.map(lambda leaf: leaf * outer, gradient)


class Block(NamedTuple):
    """Some of the rows."""

    rows: PyTree
    weights: Float[Array, " b"]
    fresh: Float[Array, " b"]
    """1 for rows that count in this block, 0 for rows that overlap the previous block."""
    start: Int[Array, ""]
    """Where the block begins among all rows."""
    key: Key[Array, ""]


def _by_blocks(
    function: Callable[[Block], PyTree],
    size: int | None,
    data: PyTree,
    weights: Float[Array, " n"],
    key: Key[Array, ""],
) -> PyTree:
    """The sum of a function over blocks of at most so many rows; the last block overlaps the one before."""
    count = len(weights)
    blocks = 1 if size is None else -(-count // size)
    if blocks == 1:
        return function(Block(data, weights, jnp.ones_like(weights), jnp.asarray(0), key))
    each = -(-count // blocks)

    def part(index: int | Int[Array, ""]) -> PyTree:
        start = jnp.minimum(index * each, count - each)
        rows, some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, each), (data, weights))
        fresh = (start + jnp.arange(each) >= index * each).astype(weights.dtype)
        return function(Block(rows, some, fresh, start, jax.random.fold_in(key, index)))

    return _sum(part, blocks)


def _sum(term: Callable[[int | Int[Array, ""]], PyTree], count: int) -> PyTree:
    """The sum of term(0), …, term(count − 1), one after the other."""
    if count == 1:
        return term(0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(term, jnp.asarray(0)))
    return jax.lax.fori_loop(0, count, lambda index, total: jax.tree.map(jnp.add, total, term(index)), zero)
