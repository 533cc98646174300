"""The user-facing posterior: moments, samples, intervals, predictions and a summary."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from partita.data.table import Table
from partita.errors import SettingsError, unknown
from partita.expectations import LocalReparameterisation
from partita.families import Family
from partita.families.base import Theta
from partita.hyper.values import PRIOR_SCALES, Hyper
from partita.io.archive import read, write
from partita.io.wire import flatten, unflatten
from partita.models import Model
from partita.numerics.compiled import Compiled

Predictive = Literal["closed", "monte_carlo"]


@dataclasses.dataclass(frozen=True)
class Posterior:
    """q(θ) together with the model it is the posterior of."""

    model: Model
    q: Family
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """The learned hyperparameters; those of the likelihood are already set in the model."""

    @property
    def mean(self) -> Theta:
        """The posterior mean of θ."""
        return self.q.moments()[0]

    @property
    def sd(self) -> Theta:
        """The posterior standard deviation of each parameter."""
        return self.q.moments()[1]

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        """The ends of each parameter's central interval."""
        if not 0 < mass < 1:
            raise SettingsError(f"The mass of an interval must be between 0 and 1, not {mass}.")
        return self.q.interval(mass)

    def sample(self, draws: int, seed: int = 0) -> Theta:
        """Independent draws of θ."""
        return self.q.sample(jax.random.key(seed), (draws,))

    def log_prob(self, theta: Theta) -> Float[Array, ""]:
        """log q(θ)."""
        return self.q.log_prob(theta)

    def predict(
        self, x: Float[Array, "n d"], how: Predictive = "closed", draws: int = 100, seed: int = 0
    ) -> np.ndarray:
        """The posterior mean of E[y | θ, x], row by row: in closed form where the model has one, or by Monte Carlo.

        A model with local reparameterisation samples each row's predictor instead of θ: the distribution is the same,
        and for a network the cost is much lower.
        """
        if how not in ("closed", "monte_carlo"):
            raise unknown("predictive", how, ("closed", "monte_carlo"))
        x = jnp.asarray(x, jax.tree.leaves(self.q)[0].dtype)
        if how == "closed":
            return np.asarray(closed_response(self.model, self.q, x))
        if isinstance(self.model.expectation, LocalReparameterisation):
            return np.asarray(
                local_response(self.model, self.q, x, LocalReparameterisation(draws), jax.random.key(seed))
            )
        return np.asarray(mean_response(self.model, self.sample(draws, seed), x))

    def predict_proba(
        self, x: Float[Array, "n d"], how: Predictive = "closed", draws: int = 100, seed: int = 0
    ) -> np.ndarray:
        """The probability of every class, a row per input; "closed" is the probit approximation for logistic."""
        if not self.model.predicts_classes:
            raise SettingsError(f"{type(self.model).__name__} does not predict classes: use predict.")
        response = self.predict(x, how, draws, seed)
        return np.stack([1 - response, response], axis=1) if response.ndim == 1 else response

    def log_predictive_density(self, data: PyTree, draws: int = 100, seed: int = 0) -> np.ndarray:
        """log ∫ p(y_n | θ) q(θ) dθ of every row, by Monte Carlo."""
        return np.asarray(log_mean_density(self.model, self.sample(draws, seed), data))

    def save(self, path: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
        """Writes the natural parameters, the names of the coefficients if given, and hyperparameters learned.

        `load_posterior` reads it.
        """
        learned = {name: np.asarray(value).tolist() for name, value in self.hyper.items()}
        about = {"family": type(self.q).__name__, "names": list(names or ()), "hyper": learned}
        save_posterior(path, self.q, about)

    def summary(self, names: Sequence[str] | None = None, mass: float = 0.95) -> list[dict[str, float | str]]:
        """A row per parameter: name, mean, sd, and the ends of its interval.

        Then a row per learned hyperparameter: a point estimate as the mean, and NaN for the rest. Prior scales are
        multiples of the given standard deviations and labelled as such.
        """
        paths = [name for path, leaf in _leaves(self.mean) for name in _elements(path or "theta", leaf)]
        columns = [
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
            for tree in (self.mean, self.sd, *self.interval(mass))
        ]
        if names is not None and len(names) != len(paths):
            raise SettingsError(f"There are {len(paths)} parameters and {len(names)} names: give one name each.")
        labels = ["name", "mean", "sd", "low", "high"]
        rows = zip(paths if names is None else names, *columns, strict=True)
        found = [dict(zip(labels, [row[0], *map(float, row[1:])], strict=True)) for row in rows]
        for learned, leaf in self.hyper.items():
            unit = " (× the prior's sd)" if learned in PRIOR_SCALES else ""
            for name, value in zip(_elements(learned, leaf), np.ravel(leaf), strict=True):
                found.append(dict(zip(labels, [name + unit, float(value), *[math.nan] * 3], strict=True)))
        return found


def save_posterior(path: str | os.PathLike[str], q: Family, about: dict[str, Any]) -> None:
    """Writes the natural parameters of a posterior and its metadata."""
    write(path, flatten(q), about)


def load_posterior(path: str | os.PathLike[str], like: Family) -> tuple[Family, dict[str, Any]]:
    """The posterior saved at `path`, whose parameters must have the shapes of `like`, and its metadata."""
    arrays, about = read(path)
    return unflatten(arrays, like, str(path)), about


def _leaves(tree: PyTree) -> list[tuple[str, Array]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _elements(label: str, leaf: Array) -> list[str]:
    """A name for each element of an array."""
    return [label + (str(list(index)) if index else "") for index in np.ndindex(leaf.shape)]


def _closed_response(model: Model, q: Family, x: Float[Array, "n d"]) -> Array:
    return model.expected_response(q, x)


def _mean_response(model: Model, draws: Theta, x: Float[Array, "n d"]) -> Array:
    return jnp.mean(jax.lax.map(lambda theta: model.response(theta, x), draws), axis=0)


def _local_response(
    model: Model, q: Family, x: Float[Array, "n d"], draws: LocalReparameterisation, key: Key[Array, ""]
) -> Array:
    shared = model.shared(q, Table(x, jnp.zeros(len(x), x.dtype)))
    total = draws.sum(lambda noise, shared: model.response_at(model.predictor_at(shared, noise)), model, shared, key)
    return total / draws.samples


def _log_mean_density(model: Model, draws: Theta, data: PyTree) -> Float[Array, " n"]:
    rows = jax.vmap(model.log_density, in_axes=(None, 0))
    values = jax.lax.map(lambda theta: rows(theta, data), draws)
    return jax.nn.logsumexp(values, axis=0) - jnp.log(len(values))


closed_response = Compiled(_closed_response)
mean_response = Compiled(_mean_response)
local_response = Compiled(_local_response)
log_mean_density = Compiled(_log_mean_density)
