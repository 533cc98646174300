"""Inputs and responses, row by row."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from partita.errors import DataError
from partita.inputs import real_array

__all__ = ["Table", "with_intercept"]


class Table(NamedTuple):
    """The rows of a supervised problem: inputs and responses."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    offset: Float[Array, " n"] | None = None
    """A known part of a generalised linear model's predictor, such as log exposure."""

    def shifted(self, linear: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """The predictor with this linear part, which may have more axes behind: the offset is added."""
        return linear if self.offset is None else linear + self.offset.reshape(-1, *(1,) * (linear.ndim - 1))


def with_intercept(x: Real[ArrayLike, "n d"]) -> Real[Array, "n d+1"]:
    """Prepends a column of ones to x."""
    x = jnp.asarray(real_array("inputs", x, DataError))
    if x.ndim != 2:
        raise DataError(f"The inputs have the shape {x.shape}: give a matrix with a row for each response.")
    return jnp.concatenate([jnp.ones((len(x), 1), x.dtype), x], axis=1)
