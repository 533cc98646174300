"""Choices between pytrees."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def where(condition: Bool[Array, ""], first: PyTree, second: PyTree) -> PyTree:
    """The first tree where the condition holds, and the second where not, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
