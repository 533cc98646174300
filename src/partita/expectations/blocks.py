"""Sums over blocks of rows, small enough for their intermediates to stay in the CPU cache."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.data.shard import Shard
from partita.numerics.compiled import Whole

__all__ = ["BLOCK", "Block", "over_blocks", "sum_of"]

BLOCK = 1024
"""The largest number of rows per block."""


class Block(NamedTuple):
    """Some of the rows."""

    data: PyTree
    weights: Float[Array, " b"]
    """0 for rows that overlap the previous block."""
    fresh: Bool[Array, " b"]
    """Whether a row counts in this block, rather than in the previous one."""
    start: Int[Array, ""]
    """Where the block begins among all rows."""
    place: Int[Array, ""]
    """Which block it is."""


def over_blocks(function: Callable[[Block], PyTree], rows: Shard, length: int = BLOCK) -> PyTree:
    """The sum of a function over blocks of at most so many rows; the last block overlaps the one before."""
    data, weights, count = rows.data, rows.weights, len(rows.weights)
    if count <= length:
        return function(Block(data, weights, jnp.ones(count, bool), jnp.asarray(0), jnp.asarray(0)))

    def part(index: Whole) -> PyTree:
        start = jnp.minimum(index * length, count - length)
        some, those = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, length), (data, weights))
        fresh = start + jnp.arange(length) >= index * length
        return function(Block(some, jnp.where(fresh, those, 0), fresh, start, jnp.asarray(index)))

    return sum_of(part, -(-count // length))


def sum_of(term: Callable[[Whole], PyTree], count: int) -> PyTree:
    """The sum of term(0), …, term(count − 1), one after the other."""
    if count == 1:
        return term(0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(term, jnp.asarray(0)))
    return jax.lax.fori_loop(0, count, lambda index, total: jax.tree.map(jnp.add, total, term(index)), zero)
