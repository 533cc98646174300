"""What a model may offer beside the density of a row; expectations, solvers and predictions ask by these protocols.

A model offers a capability by having its methods; there is nothing to register, and no stub that raises.
"""

from collections.abc import Mapping
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.base import Theta

__all__ = [
    "ClosedForm",
    "ClosedPredictor",
    "ClosedResponse",
    "CurvedInTable",
    "Density",
    "DiscreteLatent",
    "LinearInTable",
    "LinearPredictor",
    "LocalDraws",
    "LocalResponse",
    "NamedValues",
    "Predictor",
    "PredictsElsewhere",
    "Response",
    "ResponseOfRows",
    "Rows",
    "ShiftedResponse",
    "Simulated",
    "Template",
    "VectorPredictor",
    "offered",
]

Rows: TypeAlias = Float[Array, " n"]
"""A number for each row."""


@runtime_checkable
class Density(Protocol):
    """A density of one row, which every model has."""

    def log_density(self, theta: Theta, datum: PyTree) -> Float[Array, ""]:
        """The log density log p(y_n | θ) of one row."""


class Predictor(Protocol):
    """Rows that depend on θ through a scalar predictor f_n, which is Gaussian under q."""

    def predictor(self, q: Family, data: PyTree) -> tuple[Rows, Rows]:
        """Mean and variance under q of each row's predictor."""


@runtime_checkable
class LinearPredictor(Predictor, Protocol):
    """The density of a row given such a predictor."""

    def log_density_at(self, predictor: Array, data: PyTree) -> Rows:
        """Every row's log p(y_n | f_n), given the predictors f; scalar predictors may have more axes behind."""


@runtime_checkable
class LinearInTable(LinearPredictor, Protocol):
    """Rows of a `Table` whose predictor is f_n = x_nᵀθ: generalised linear models."""

    def log_link_density(self, f: Array, y: Array) -> Array:
        """The log density log p(y | f), elementwise."""


@runtime_checkable
class VectorPredictor(Protocol):
    """Rows that depend on θ through several predictors f_n, which are jointly Gaussian under q; f comes first."""

    def standard(self, q: Family) -> PyTree:
        """Mean and covariance of θ, which all rows share."""

    def predictors(self, standard: PyTree, datum: PyTree) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
        """Mean and covariance of one row's predictors."""

    def log_density_at(self, predictors: Float[Array, "k s"], datum: PyTree) -> Float[Array, " s"]:
        """The row's log p(y_n | f_n) at several values of its predictors."""

    def response_at(self, predictors: Float[Array, "k s"], datum: PyTree) -> Float[Array, "... s"]:
        """The row's E[y_n | f_n], or the probabilities of its classes, at several values of its predictors."""


@runtime_checkable
class CurvedInTable(Protocol):
    """Rows of a `Table` that depend on coefficients β through f_n = x_nᵀβ; β is θ, or comes first in it."""

    def coefficients(self, q: Family) -> Family | None:
        """The distribution of β under q; None if it is not independent of the rest of θ."""

    def curvatures(self, q: Family, data: PyTree) -> Rows:
        """−E_q[∂² log p(y_n | f_n) / ∂f_n²] of each row."""


@runtime_checkable
class ClosedPredictor(Predictor, Protocol):
    """A closed form of the expectation for a Gaussian predictor."""

    def expected_log_density(self, mean: Rows, variance: Rows, data: PyTree) -> Rows:
        """E[log p(y_n | f_n)] in closed form for f_n ~ N(mean_n, variance_n)."""


@runtime_checkable
class ClosedForm(Protocol):
    """A closed form of the expectation under q."""

    def expected_log_densities(self, q: Family, data: PyTree) -> Rows:
        """E_q[log p(y_n | θ)] of each row in closed form."""


@runtime_checkable
class DiscreteLatent(Protocol):
    """A discrete latent variable in each row."""

    def expected_joint_log_densities(self, q: Family, data: PyTree) -> Float[Array, "n k"]:
        """E_q[log p(y_n, z_n = k | θ)] of each row and each value of its latent variable."""


@runtime_checkable
class LocalDraws(Protocol):
    """Predictors that can be drawn row by row, instead of θ."""

    def shared(self, q: Family, data: PyTree) -> PyTree[Float[Array, "..."]]:
        """What all draws of the predictors share, such as means and variances."""

    def noise_shape(self, shared: PyTree) -> tuple[int, ...]:
        """The shape of the standard normal noise that one draw of all predictors takes."""

    def predictor_at(self, shared: PyTree, noise: Array) -> Array:
        """A draw of every row's predictor under q, independent across rows."""

    def log_density_at(self, predictor: Array, data: PyTree) -> Rows:
        """Every row's log p(y_n | f_n), given the predictors f."""


@runtime_checkable
class Response(Protocol):
    """A response to predict."""

    def response(self, theta: Theta, x: Float[Array, "n d"]) -> Rows | Float[Array, "n c"]:
        """E[y | θ, x] of each row; class probabilities where y is a class."""


@runtime_checkable
class ResponseOfRows(Protocol):
    """A response to predict of rows that may have more than inputs, such as an offset."""

    def response_of(self, theta: Theta, data: PyTree) -> Rows | Float[Array, "n c"]:
        """E[y | θ] of each row, whatever its y is; class probabilities where y is a class."""


@runtime_checkable
class Simulated(Protocol):
    """Responses that can be drawn."""

    def simulated(self, theta: Theta, data: PyTree, key: Key[Array, ""]) -> Rows:
        """A draw of each row's response given θ, whatever its y is."""


@runtime_checkable
class LocalResponse(Protocol):
    """A response to predict, given predictors that can be drawn row by row."""

    def response_at(self, predictor: Array) -> Rows | Float[Array, "n c"]:
        """E[y | f] of each row, given the predictors f."""


@runtime_checkable
class ClosedResponse(Protocol):
    """A closed form of the prediction."""

    def expected_response(self, q: Family, x: Float[Array, "n d"]) -> Rows:
        """E_q E[y | θ, x], exactly or by a documented closed-form approximation."""


@runtime_checkable
class ShiftedResponse(Protocol):
    """The same with a known part of the predictor."""

    def expected_response(self, q: Family, x: Float[Array, "n d"], offset: Rows | float = 0.0) -> Array:
        """E_q E[y | θ, x], or the probabilities of classes, where the offset is added to the first predictor."""


@runtime_checkable
class Template(Protocol):
    """Parameters that are not one vector, such as a network's weights."""

    def template(self) -> Theta:
        """A θ of zeros, to build a prior on."""


@runtime_checkable
class PredictsElsewhere(Protocol):
    """Predictions that another library makes of draws."""

    @property
    def how_to_predict(self) -> str:
        """What to do instead of `predict`, in one sentence."""


@runtime_checkable
class NamedValues(Protocol):
    """Values that users know by name, such as variables with constraints, of which θ is a vector without."""

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each element of θ."""

    def values(self, theta: Theta) -> Mapping[str, np.ndarray]:
        """The values at draws of θ, which come along a leading axis."""


Capability = TypeVar("Capability")


def offered(model: object, capability: type[Capability], what: str, instead: str) -> Capability:
    """The model, which must offer a capability; a `SettingsError` that says what it lacks, and what to do instead."""
    if not isinstance(model, capability):
        raise SettingsError(f"{type(model).__name__} has no {what}: {instead}.")
    return model
