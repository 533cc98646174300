"""The user-facing posterior: moments, samples, intervals, predictions and a summary."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Key, PyTree, Real

from partita.data.shard import real_numbers
from partita.data.table import Table
from partita.errors import DataError, InputError, SettingsError
from partita.expectations import LocalReparameterisation
from partita.expectations.capabilities import (
    ClosedResponse,
    LinearInTable,
    LocalDraws,
    LocalResponse,
    NamedValues,
    PredictsElsewhere,
    Response,
    offered,
)
from partita.families import Family
from partita.families.base import Theta
from partita.hyper.values import PRIOR_SCALES, Hyper, model_given
from partita.inputs import check_choice, check_kind, check_number, check_seed, check_texts, check_whole, real_array
from partita.io.archive import understood
from partita.models import Model
from partita.models.base import check_finite
from partita.numerics.compiled import Compiled
from partita.results.draws import CHAINS, draws_by_name, draws_to_arviz
from partita.results.mean_field import MeanFieldCheck, grouped, independence
from partita.results.posterior_file import load_posterior, save_posterior
from partita.results.summary import Summary

if TYPE_CHECKING:
    from xarray import DataTree

__all__ = ["Posterior", "Predictive", "mean_response"]

Predictive = Literal["closed", "monte_carlo"]


@dataclasses.dataclass(frozen=True)
class Posterior:
    """q(θ) together with the model it is the posterior of."""

    model: Model
    q: Family
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """The learned hyperparameters; those of the likelihood are already set in the model."""
    mean_field: MeanFieldCheck = dataclasses.field(default_factory=MeanFieldCheck, repr=False, compare=False)
    """The check of its standard deviations where coefficients are independent under q; of a run in this process."""
    names: tuple[str, ...] = ()
    """A name for each parameter, where they are known, as from a file."""

    def __post_init__(self) -> None:
        check_kind("model", self.model, Model, "use one of partita.models")
        check_kind("posterior's q", self.q, Family, "give one, such as a result's", name="a member of a family")
        check_kind("hyperparameters", self.hyper, Mapping, "give them by name", name="a dict")
        check_texts("names", self.names)

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
        check_number("mass of an interval", mass, lambda mass: 0 < mass < 1, "between 0 and 1")
        return self.q.interval(mass)

    def sample(self, draws: int, seed: int = 0) -> Theta:
        """Independent draws of θ."""
        check_whole("number of draws", draws)
        check_seed(seed)
        return self.q.sample(jax.random.key(seed), (draws,))

    def draws(self, draws: int = 1000, seed: int = 0) -> dict[str, np.ndarray]:
        """Independent draws by name: of a NumPyro model its sites, as `Predictive` takes them; else the leaves of θ."""
        return draws_by_name(self.model, self.sample(draws, seed))

    def to_arviz(self, draws: int = 1000, seed: int = 0) -> "DataTree":
        """The same draws in ArviZ's form, as four chains."""
        check_whole("number of draws", draws, least=CHAINS**2)
        return draws_to_arviz(self.draws(draws - draws % CHAINS, seed))

    def log_prob(self, theta: Theta) -> Float[Array, ""]:
        """log q(θ)."""
        return self.q.log_prob(theta)

    def predict(
        self, x: Real[ArrayLike, "n d"], how: Predictive = "closed", draws: int = 100, seed: int = 0
    ) -> Float[np.ndarray, "n ..."]:
        """The posterior mean of E[y | θ, x], row by row: in closed form where the model has one, or by Monte Carlo.

        A model with local reparameterisation samples each row's predictor instead of θ: the distribution is the same,
        and for a network the cost is much lower.
        """
        check_choice("predictive", how, ("closed", "monte_carlo"))
        check_whole("number of draws", draws)
        check_seed(seed)
        if isinstance(self.model, PredictsElsewhere):
            raise SettingsError(self.model.how_to_predict)
        x = jnp.asarray(self._inputs(x), jax.tree.leaves(self.q)[0].dtype)
        with _fitting("The columns of x"):
            if how == "closed":
                found = _closed_response(self.model, self.q, x)
            elif self.model.expectation.draws_predictors:
                found = _local_response(self.model, self.q, x, LocalReparameterisation(draws), jax.random.key(seed))
            else:
                found = mean_response(self.model, self.sample(draws, seed), x)
        return np.asarray(found)

    def _inputs(self, x: Any) -> Real[np.ndarray, "n d"]:
        """The rows to predict; raises a `DataError` where they are not as the fit's rows were."""
        rows = real_array("inputs", x, DataError)
        if rows.ndim != 2:
            raise DataError(f"The inputs have the shape {rows.shape}: give a matrix with a row for each prediction.")
        if isinstance(self.model, LinearInTable) and rows.shape[1] != (fitted := len(ravel_pytree(self.mean)[0])):
            columns = "1 column" if rows.shape[1] == 1 else f"{rows.shape[1]} columns"
            raise DataError(f"The inputs have {columns}, where the fit had {fitted}: give the same in the same order.")
        try:
            check_finite(rows)
        except DataError as error:
            raise DataError(f"The inputs cannot be used: {error}.") from None
        return rows

    def predict_proba(
        self, x: Real[ArrayLike, "n d"], how: Predictive = "closed", draws: int = 100, seed: int = 0
    ) -> Float[np.ndarray, "n c"]:
        """The probability of every class, a row per input; "closed" is the probit approximation for logistic."""
        if not self.model.predicts_classes:
            raise SettingsError(f"{type(self.model).__name__} does not predict classes: use predict.")
        response = self.predict(x, how, draws, seed)
        return np.stack([1 - response, response], axis=1) if response.ndim == 1 else response

    def log_predictive_density(self, data: PyTree, draws: int = 100, seed: int = 0) -> Float[np.ndarray, " n"]:
        """log ∫ p(y_n | θ) q(θ) dθ of every row, by Monte Carlo."""
        try:
            arrays = real_numbers(data)
            self.model.check(arrays)
        except DataError as error:
            raise DataError(f"The rows cannot be used: {str(error).rstrip('.')}.") from None
        with _fitting("The data"):
            return np.asarray(_log_mean_density(self.model, self.sample(draws, seed), arrays))

    def save(self, path: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
        """Writes the natural parameters, the names of the coefficients if known, and hyperparameters learned."""
        learned = {name: np.asarray(value).tolist() for name, value in self.hyper.items()}
        save_posterior(path, self.q, {"names": list(self.names if names is None else names), "hyper": learned})

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model) -> "Posterior":
        """The posterior that `save` wrote, with its names, of the model given; learned hyperparameters are set in it.

        Raises a `DamagedFileError` where there is no such file, or it is corrupt, or in another precision than JAX is.
        """
        q, about = load_posterior(path)
        with understood(path):
            hyper = {name: jnp.asarray(value) for name, value in about.get("hyper", {}).items()}
            return cls(model_given(model, hyper), q, hyper, names=tuple(map(str, about.get("names", ()))))

    def summary(self, names: Sequence[str] | None = None, mass: float = 0.95) -> Summary:
        """A row per parameter: name, mean, sd, and the ends of its interval; printed, a table with the `caveat`.

        Without `names` those that are known are used, or places in θ.
        Then a row per learned hyperparameter: a point estimate as the mean, and NaN for the rest. Prior scales are
        multiples of the given standard deviations and labelled as such.
        """
        labels = ("mean", "sd", "low", "high")
        columns = [np.asarray(ravel_pytree(tree)[0]) for tree in (self.mean, self.sd, *self.interval(mass))]
        if names is not None:
            check_texts("names", names)
        named = self._named(names)
        if len(named) != len(columns[0]):
            raise SettingsError(f"There are {len(columns[0])} parameters and {len(named)} names: give one name each.")
        rows = list(zip(named, *columns, strict=True))
        for learned, leaf in self.hyper.items():
            unit = " (× the prior's sd)" if learned in PRIOR_SCALES else ""
            estimates = zip(_elements(learned, leaf), np.ravel(leaf), strict=True)
            rows += [(name + unit, value, *[math.nan] * 3) for name, value in estimates]
        table = ({"name": name} | dict(zip(labels, map(float, row), strict=True)) for name, *row in rows)
        return Summary(table, lambda: self.caveat(names))

    def caveat(self, names: Sequence[str] | None = None, remedy: str = "use a FullGaussian as the prior") -> str:
        """What a reader of the standard deviations has to know, in a sentence; empty if there is nothing.

        It names the coefficients whose standard deviation would differ by more than 20% with full covariance. The
        clients' rows are looked at when this is first asked for.
        """
        coefficients = grouped(self.model, self.q)
        if coefficients is None:
            return ""
        of = independence(coefficients.independent_groups, coefficients.sd.size)
        return self.mean_field.sentence(self._named(names), remedy, of)

    def _named(self, names: Sequence[str] | None) -> Sequence[str]:
        """The names that are given or known, or else a name for every parameter from its place in θ."""
        if names is not None or self.names:
            return self.names if names is None else names
        if isinstance(self.model, NamedValues):
            return self.model.names
        leaves = jax.tree_util.tree_leaves_with_path(self.mean)
        return [name for path, leaf in leaves for name in _elements(jax.tree_util.keystr(path) or "theta", leaf)]


@contextlib.contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Raises a `DataError` where a model cannot be traced with what a user gives."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a user's model may raise anything
        why = (str(error) or repr(error)).splitlines()[0]
        raise DataError(
            f"{what} do not fit the posterior: give what the fit had, in its order ({why:.200})."
        ) from error


def _elements(label: str, leaf: Array) -> list[str]:
    """A name for each element of an array."""
    return [label + (str(list(index)) if index else "") for index in np.ndindex(leaf.shape)]


@Compiled
def _closed_response(model: Model, q: Family, x: Float[Array, "n d"]) -> Float[Array, "n ..."]:
    closed = offered(model, ClosedResponse, "closed-form prediction", 'pass how="monte_carlo"')
    return closed.expected_response(q, x)


@Compiled
def mean_response(model: Model, draws: Theta, x: Float[Array, "n d"]) -> Float[Array, "n ..."]:
    """The mean of the response over draws of θ."""
    predicting = offered(model, Response, "response to predict", "use log_predictive_density")
    return jnp.mean(jax.lax.map(lambda theta: predicting.response(theta, x), draws), axis=0)


@Compiled
def _local_response(
    model: Model, q: Family, x: Float[Array, "n d"], draws: LocalReparameterisation, key: Key[Array, ""]
) -> Float[Array, "n ..."]:
    local = offered(model, LocalDraws, "predictors that can be sampled locally", "use the expectation MonteCarlo")
    predicting = offered(model, LocalResponse, "response to predict", "use log_predictive_density")
    shared = local.shared(q, Table(x, jnp.zeros(len(x), x.dtype)))

    def response(noise: Array, shared: PyTree) -> Array:
        return predicting.response_at(local.predictor_at(shared, noise))

    total = draws.sum(response, model, shared, key)
    return total / draws.samples


@Compiled
def _log_mean_density(model: Model, draws: Theta, data: PyTree) -> Float[Array, " n"]:
    rows = jax.vmap(model.log_density, in_axes=(None, 0))
    values = jax.lax.map(lambda theta: rows(theta, data), draws)
    return jax.nn.logsumexp(values, axis=0) - jnp.log(len(values))
