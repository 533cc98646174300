"""Inputs and responses, row by row."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from partita.errors import DataError
from partita.inputs import real_array
from partita.numerics.arrays import jax_array

__all__ = ["GroupedTable", "OffsetTable", "Table", "Times", "Trials", "with_intercept"]


class Trials(NamedTuple):
    """The response of a binomial model: how many events there were among how many trials."""

    events: Float[Array, " n"]
    trials: Float[Array, " n"]


class Times(NamedTuple):
    """The response of a survival model: a time, and whether the event was then (1) or had not been by then (0)."""

    time: Float[Array, " n"]
    event: Float[Array, " n"]


class Table(NamedTuple):
    """The rows of a supervised problem: inputs and responses; for models of several predictors `Trials` or `Times`."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]

    def shifted(self, linear: Float[Array, "..."]) -> Float[Array, "..."]:
        """The predictor of a generalised linear model whose linear part is this, row by row."""
        return linear


class OffsetTable(NamedTuple):
    """A table with a known part of a generalised linear model's predictor, such as log exposure."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    offset: Float[Array, " n"]

    def shifted(self, linear: Float[Array, "..."]) -> Float[Array, "..."]:
        """The same with the offset added; `linear` may have more axes behind."""
        return linear + self.offset.reshape(self.offset.shape + (1,) * (linear.ndim - self.offset.ndim))


class GroupedTable(NamedTuple):
    """A table of rows in groups, with what effects of groups are multiplied by.

    A `group` is any number; of groups within groups each row has several, the outermost one's first.
    """

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    z: Float[Array, "n e"]
    group: Float[Array, "n *l"]
    offset: Float[Array, " n"]

    def shifted(self, linear: Float[Array, "..."]) -> Float[Array, "..."]:
        """The same with the offset added; `linear` may have more axes behind."""
        return linear + self.offset.reshape(self.offset.shape + (1,) * (linear.ndim - self.offset.ndim))


def with_intercept(x: Real[ArrayLike, "n d"]) -> Real[Array, "n d+1"]:
    """Prepends a column of ones to x."""
    x = real_array("inputs", x, DataError)
    if x.ndim != 2:
        raise DataError(f"The inputs have the shape {x.shape}: give a matrix with a row for each response.")
    return jax_array(np.concatenate([np.ones((len(x), 1), x.dtype), x], axis=1))
