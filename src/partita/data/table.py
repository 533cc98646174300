"""Inputs and responses, row by row."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

__all__ = ["Table", "with_intercept"]


class Table(NamedTuple):
    """The rows of a supervised problem: inputs and responses."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]


def with_intercept(x: Real[ArrayLike, "n d"]) -> Real[Array, "n d+1"]:
    """Prepends a column of ones to x."""
    x = jnp.asarray(x)
    return jnp.concatenate([jnp.ones((len(x), 1), x.dtype), x], axis=1)
