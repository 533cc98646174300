"""Factors of many clients as one, whose NumPy arrays have an entry a client.

Natural parameters add, so that what an aggregation does with all factors at once is arithmetic of a few large arrays.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.arrays import jax_array
from partita.numerics.compiled import Compiled

__all__ = ["array", "beside", "expected", "plus", "statistics", "summed", "taken", "times"]


def taken(stacked: Factor, clients: int | Sequence[int]) -> Factor:
    """The factor of a client, or those of some."""
    return jax.tree.map(lambda leaf: leaf[clients], stacked)


def plus(first: Factor, second: Factor, times: float = 1.0) -> Factor:
    """t · s^times, which adds natural parameters."""
    return jax.tree.map(lambda a, b: a + times * b, first, second)


def times(stacked: Factor, numbers: Float[np.ndarray, " n"] | float) -> Factor:
    """t^number, of each client its own number or of all the same."""
    numbers = np.broadcast_to(numbers, stacked.log_scale.shape)
    return jax.tree.map(lambda leaf: leaf * beside(numbers, leaf), stacked)


def summed(stacked: Factor) -> Family:
    """The product over clients."""
    return jax.tree.map(lambda leaf: jax_array(leaf.sum(0)), stacked.natural)


def beside(numbers: Float[np.ndarray, " n"], leaf: np.ndarray) -> np.ndarray:
    """A number a client in a shape that multiplies its entries."""
    return numbers.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))


def array(member: Family) -> Family:
    """A member that is not one of many: its arrays are JAX's."""
    return jax.tree.map(jnp.asarray, member)


def expected(factors: Factor, statistics: Family) -> Float[np.ndarray, "..."]:
    """E_q[log t] of one factor or of an entry a client, where q expects these statistics."""
    pairs = zip(jax.tree.leaves(factors.natural), jax.tree.leaves(statistics), strict=True)
    products = ((leaf * expected).reshape(*factors.log_scale.shape, -1).sum(-1) for leaf, expected in pairs)
    return np.asarray(factors.log_scale + sum(products))


def statistics(q: Family) -> Family:
    """E_q[T(θ)], in NumPy."""
    return jax.device_get(_mean_parameters(q))


@Compiled
def _mean_parameters(q: Family) -> Family:
    """E_q[log t] is linear in the natural parameters of t, with the mean parameters of q as its gradient."""
    return jax.grad(q.cross)(q.one())
