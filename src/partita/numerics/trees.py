"""Pytrees as a whole: choices between them, and whether they are finite."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

__all__ = ["all_finite", "where"]


@functools.partial(jax.jit, inline=True)
def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number in every leaf is finite."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def where(condition: Bool[Array, ""], first: PyTree, second: PyTree) -> PyTree:
    """The first tree where the condition holds, and the second where not, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
