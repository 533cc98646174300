"""Sums over blocks of rows, small enough for their intermediates to stay in the CPU cache."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.data.shard import Shard
from partita.numerics.compiled import Whole

__all__ = ["BLOCK", "Block", "over_blocks", "rows_by_blocks", "sum_of"]

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


def over_blocks(
    function: Callable[[Block], PyTree], rows: Shard, length: int = BLOCK, chosen: Bool[Array, " n"] | None = None
) -> PyTree:
    """The sum of a function over blocks of at most so many rows; the last block overlaps the one before.

    With rows `chosen`, over those alone, in as many blocks as they fill: no row counts where none is.
    """
    count = len(rows.weights)
    if chosen is not None:
        length, order = min(length, count), jnp.nonzero(chosen, size=count, fill_value=count)[0]
        return sum_of(lambda index: function(_block(rows, index, length, order)), -(-jnp.sum(chosen) // length))
    if count <= length:
        return function(Block(rows.data, rows.weights, jnp.ones(count, bool), jnp.asarray(0), jnp.asarray(0)))
    return sum_of(lambda index: function(_block(rows, index, length)), -(-count // length))


def rows_by_blocks(function: Callable[[Block], PyTree], rows: Shard, length: int = BLOCK) -> PyTree:
    """A function that has values for every row of a block, computed block by block: its values for all rows."""
    count = len(rows.weights)
    if count <= length:
        return over_blocks(function, rows, length)

    def part(index: Whole, found: PyTree) -> PyTree:
        block = _block(rows, index, length)
        return jax.tree.map(
            lambda leaf, some: jax.lax.dynamic_update_slice_in_dim(leaf, some, block.start, 0), found, function(block)
        )

    shapes = jax.eval_shape(lambda index: function(_block(rows, index, length)), jnp.asarray(0))
    empty = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-count // length), part, empty)


def _block(rows: Shard, index: Whole, length: int, order: Int[Array, " n"] | None = None) -> Block:
    """One of the blocks of rows, or of rows in this order, where rows that do not exist end it."""
    count = len(rows.weights)
    start = jnp.minimum(index * length, count - length)
    fresh = start + jnp.arange(length) >= index * length

    def take(leaf: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, start, length)

    if order is None:
        data, weights = jax.tree.map(take, (rows.data, rows.weights))
    else:
        places = take(order)
        fresh = fresh & (places < count)
        data, weights = jax.tree.map(lambda leaf: leaf[jnp.minimum(places, count - 1)], (rows.data, rows.weights))
    return Block(data, jnp.where(fresh, weights, 0), fresh, start, jnp.asarray(index))


def sum_of(term: Callable[[Whole], PyTree], count: Whole) -> PyTree:
    """The sum of term(0), …, term(count − 1), one after the other."""
    if isinstance(count, int) and count == 1:
        return term(0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(term, jnp.asarray(0)))
    return jax.lax.fori_loop(0, count, lambda index, total: jax.tree.map(jnp.add, total, term(index)), zero)
