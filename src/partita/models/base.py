"""Likelihoods p(y | θ); a model's array leaves are its hyperparameters ε."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.data.table import Table
from partita.errors import DataError
from partita.expectations import Expectation, MonteCarlo
from partita.families import Family
from partita.families.base import Theta
from partita.inputs import check_function, check_kind

__all__ = ["LogDensity", "Model", "check_finite", "check_table", "check_values"]


class Model(eqx.Module):
    """A likelihood p(y | θ) = Π_n p(y_n | θ), with weighted rows and expectations under q.

    A model implements `log_density` of one row. What else it offers, such as a linear predictor or a closed form, it
    says by having the methods of a protocol in `partita.expectations.capabilities`.
    """

    expectation: eqx.AbstractVar[Expectation]
    positive: ClassVar[tuple[str, ...]] = ()
    """The names of positive leaves, such as a standard deviation; they are learned on the log scale."""
    predicts_classes: ClassVar[bool] = False
    """Whether the response is the probability of a class."""

    independent_rows: ClassVar[bool] = True
    """Whether rows are independent given θ, so that they may be taken one by one."""

    @abc.abstractmethod
    def log_density(self, theta: Theta, datum: PyTree) -> Float[Array, ""]:
        """The log density log p(y_n | θ) of one row."""

    def __check_init__(self) -> None:
        check_kind(
            "expectation", self.expectation, Expectation, "use one of partita.expectations", name="an Expectation"
        )

    def check(self, data: PyTree) -> None:
        """Raises an `InputError` that names the first invalid row; `data` are NumPy arrays."""
        check_finite(data)

    def ell(self, q: Family, data: PyTree, weights: Float[Array, " n"], key: Key[Array, ""]) -> Float[Array, ""]:
        """The expected log-likelihood Σ_n w_n E_q[log p(y_n | θ)]."""
        return self.expectation.total(self, q, data, weights, key)


class LogDensity(Model):
    """Any function `log_density(theta, datum)` of one row, as a model."""

    function: Callable[[Theta, PyTree], Float[Array, ""]] = eqx.field(static=True)
    expectation: Expectation = eqx.field(default=MonteCarlo(), kw_only=True)

    def __check_init__(self) -> None:
        check_function("log density", self.function)

    def log_density(self, theta: Theta, datum: PyTree) -> Float[Array, ""]:
        return self.function(theta, datum)


def check_finite(data: PyTree) -> None:
    """Raises an `InputError` that names the first row holding a value which is not a finite number."""
    for leaf in jax.tree.leaves(data):
        rows = np.asarray(leaf)
        bad = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        if bad.any():
            raise DataError(f"row {int(np.argmax(bad))} holds a value that is not finite: drop or impute it")


def check_table(table: PyTree, kinds: type[Any] | tuple[type[Any], ...] = Table, paired: bool = False) -> None:
    """Raises an `InputError` unless `table` is a finite matrix x and a vector y with as many rows, of these kinds.

    With `paired` y may be several vectors, as of `Trials`.
    """
    if not isinstance(table, kinds):
        raise DataError("the data are not a Table(x, y): pass partita.Table(x, y)")
    for response in jax.tree.leaves(table.y) if paired else [table.y]:
        x, y = _shape(table.x), _shape(response)
        if len(x) != 2 or len(y) != 1 or x[0] != y[0]:
            raise DataError(f"x has shape {x} and y {y}: give a matrix and a vector with as many rows")
    check_finite(table)


def _shape(array: PyTree) -> tuple[int, ...]:
    """The shape of an array; () of anything else."""
    return getattr(array, "shape", ())


def check_values(y: np.ndarray, allowed: np.ndarray, what: str) -> None:
    """Raises an `InputError` that names the first response which is not allowed."""
    if not allowed.all():
        row = int(np.argmin(allowed))
        raise DataError(f"row {row} has the response {y[row]:g}: {what}", f"whose {what}")
