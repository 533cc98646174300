"""Mini-batches of a client's rows."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from partita.local.objective import Problem

__all__ = ["with_random_rows"]


def with_random_rows(problem: Problem, size: int | None, key: Key[Array, ""]) -> Problem:
    """The problem with so many of its rows, drawn independently, whose weights stand for all rows; None is all rows.

    Drawing with replacement is what `sec:stochastic-approx` has, and costs no pass over the rows.
    """
    if size is None:
        return problem
    problem.check_independent("A mini-batch")
    shard = problem.shard
    chosen = jax.random.randint(jax.random.fold_in(key, 1), (size,), 0, shard.rows)
    weights = shard.weights[chosen] * (shard.rows / size).astype(shard.weights.dtype)
    data = jax.tree.map(lambda leaf: leaf[chosen], shard.data)
    return dataclasses.replace(problem, shard=type(shard)(data, weights, jnp.asarray(size)))
