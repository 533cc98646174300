"""One model of all clients, one of each, and models that share information; and what they say of held-out rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from partita.data import federate
from partita.data.shard import Partition, Shard
from partita.data.table import GroupedTable, Table
from partita.expectations import LocalEffects
from partita.families import Dirichlet, Family, FullGaussian, Gamma, MeanFieldGaussian, Product
from partita.local.solvers import FixedPoint, Newton, Solver
from partita.methods import sequential
from partita.models import (
    GaussianMixture,
    GeneralisedLinear,
    GroupEffects,
    LinearRegression,
    LogisticRegression,
    Model,
    PoissonRegression,
)
from partita.numerics.arrays import jax_array
from partita.numerics.compiled import Compiled
from partita.server.monitor import Monitor
from partita.server.run import Result, run
from partita_experiments.shifts import HELD_OUT, Client

SHARED, ALONE, PARTLY = "one shared", "each alone", "partially pooled"
WAYS = (SHARED, ALONE, PARTLY)
NODES, MASSES = np.polynomial.hermite_e.hermegauss(40)
DRAWS = 200
"""How many draws of a mixture's parameters a predictive density averages."""

COLUMNS, ROWS = 12, HELD_OUT
"""To how many columns and held-out rows tables are filled up."""

Densities = Mapping[str, Float[np.ndarray, " k"]]
"""By the way of modelling, the mean log density of the held-out rows of every client."""


def densities(model: str, clients: Sequence[Client], settings: Mapping[str, Any]) -> Densities:
    """Fits in every way that the model has, and gives the mean log density of everybody's held-out rows."""
    if model == "mixture":
        return _of_mixtures(clients, settings["components"])
    learned, held_out = zip(*_standardised(clients), strict=True)
    found = {
        SHARED: _regressions(model, learned, held_out, together=True),
        ALONE: _regressions(model, learned, held_out, together=False),
    }
    return found if model == "gaussian" else {**found, PARTLY: _in_groups(model, learned, held_out)}


def _standardised(clients: Sequence[Client]) -> list[tuple[Table, Table]]:
    """Everybody's rows, those to learn from and those held out: an intercept, and columns by moments of the former.

    Columns of zeros follow, which change nothing, so that all parts have programs in common.
    """
    rows = np.concatenate([client.x[: client.train] for client in clients])
    mean, sd = rows.mean(axis=0), rows.std(axis=0)
    found = []
    for client in clients:
        x = np.column_stack([np.ones(len(client.y)), (client.x - mean) / sd])
        x = np.pad(x, ((0, 0), (0, COLUMNS - x.shape[1])))
        learned, held_out = slice(client.train), slice(client.train, None)
        found.append((_table(x[learned], client.y[learned]), _table(x[held_out], client.y[held_out])))
    return found


def _table(x: np.ndarray, y: np.ndarray) -> Table:
    return Table(jax_array(x), jax_array(y))


def _likelihood(model: str, tables: Sequence[Table]) -> GeneralisedLinear:
    """The likelihood; a Gaussian's noise is the sd of these rows."""
    if model != "gaussian":
        return {"logistic": LogisticRegression(), "poisson": PoissonRegression()}[model]
    return LinearRegression(jnp.asarray(np.concatenate([table.y for table in tables]).std()))


def _prior(effects: bool) -> FullGaussian:
    """N(0, 10²) for the intercept, N(0, 2.5²) for columns, N(−0.5, 1) for the inverse softplus of the clients' sd."""
    mean = np.append(np.zeros(COLUMNS), [-0.5] * effects)
    sd = np.array([10.0, *[2.5] * (COLUMNS - 1), *[1.0] * effects])
    return FullGaussian.from_mean_covariance(jnp.asarray(mean), jnp.diag(jnp.asarray(sd**2)))


def _fitted(solver: Solver, model: Model, prior: Family, parts: Partition, start: Family | None = None) -> Result:
    return run(sequential(solver, start=start), model, prior, parts, monitor=Monitor(progress=False))


def _regressions(model: str, learned: Sequence[Table], held_out: Sequence[Table], together: bool) -> np.ndarray:
    """Of one model of all clients, or of one of each."""
    whole, prior = federate(learned, buckets=1), _prior(effects=False)
    if together:
        results = [_fitted(Newton(), _likelihood(model, learned), prior, whole)]
    else:
        alone = zip(learned, whole.names, strict=True)
        results = [_fitted(Newton(), _likelihood(model, [table]), prior, whole.only(name)) for table, name in alone]
    each = results * len(learned) if together else results
    found = []
    for result, table in zip(each, held_out, strict=True):
        q, likelihood, rows = result.posterior.q, result.posterior.model, _filled(table)
        assert isinstance(q, FullGaussian)
        assert isinstance(likelihood, GeneralisedLinear)
        x, mean, covariance = np.asarray(rows.x), np.asarray(q.mean), np.asarray(q.covariance)
        spread = np.sum((x @ covariance) * x, axis=1)
        density = _log_density(likelihood, (x @ mean)[:, None], spread[:, None], np.ones(1), np.asarray(rows.y))
        found.append(density[: len(table.y)].mean())
    return np.array(found)


def _in_groups(model: str, learned: Sequence[Table], held_out: Sequence[Table]) -> np.ndarray:
    """Of a model with an intercept of each client, whose sd among clients is inferred."""
    likelihood = _likelihood(model, learned)
    tables = [_grouped(table, place) for place, table in enumerate(learned)]
    parts = federate(tables, buckets=1)
    in_groups = GroupEffects(likelihood)
    q = _fitted(FixedPoint(), in_groups, _prior(effects=True), parts).posterior.q
    found = []
    for place, (shard, table) in enumerate(zip(parts.shards, held_out, strict=True)):
        rows = _filled(table)
        mean, variance, masses = map(np.asarray, _predictors(in_groups, q, shard, _grouped(rows, place)))
        density = _log_density(likelihood, mean, variance, masses, np.asarray(rows.y))
        found.append(density[: len(table.y)].mean())
    return np.array(found)


def _filled(table: Table) -> Table:
    """The table with more rows, to be ignored."""
    more = ROWS - len(table.y)
    return _table(np.pad(table.x, ((0, more), (0, 0))), np.pad(table.y, (0, more)))


def _grouped(table: Table, place: int) -> GroupedTable:
    count = len(table.y)
    ones, group, offset = map(jax_array, (np.ones((count, 1)), np.full(count, float(place)), np.zeros(count)))
    return GroupedTable(table.x, table.y, ones, group, offset)


@Compiled
def _predictors(model: GroupEffects, q: Family, shard: Shard, rows: GroupedTable) -> tuple[Array, Array, Array]:
    """Mean and variance of the predictors of rows of a client's one group, at each node of the sd among groups."""
    expectation = model.expectation
    assert isinstance(expectation, LocalEffects)
    [effects] = expectation.conditionals(model, q, shard.data, shard.weights)
    posed, place = model.posed(q, rows, jnp.ones(len(rows.y))), jnp.zeros(len(rows.y), int)  # the client's one group
    return *posed.predictors(effects, place, jnp.ones((len(place), 1), bool)), posed.scales.masses


def _log_density(
    likelihood: GeneralisedLinear, mean: np.ndarray, variance: np.ndarray, masses: np.ndarray, y: np.ndarray
) -> Float[np.ndarray, " n"]:
    """The log density of responses whose predictors are mixtures of Gaussians."""
    predictor = mean[..., None] + np.sqrt(variance)[..., None] * NODES
    density = np.exp(np.asarray(_link_density(likelihood, jax_array(predictor), jax_array(y[:, None, None]))))
    return np.log((density @ (MASSES / MASSES.sum())) @ masses)


@Compiled
def _link_density(likelihood: GeneralisedLinear, predictor: Array, y: Array) -> Array:
    return likelihood.log_link_density(predictor, y)


def _of_mixtures(clients: Sequence[Client], components: int) -> Densities:
    """Of mixtures of Gaussians of all clients' rows, and of each client's."""
    learned = [client.y[: client.train, None] for client in clients]
    held_out = [client.y[client.train :, None] for client in clients]
    parts = federate(learned, buckets=1)
    ones = np.ones((components, 1))
    prior = _mixture(ones[:, 0], 0 * ones, 10 * ones)

    def fitted(some: Partition, rows: np.ndarray) -> Result:
        places = np.quantile(rows, (np.arange(components) + 0.5) / components)[:, None]
        return _fitted(
            FixedPoint(max_steps=100), GaussianMixture(), prior, some, _mixture(5 * ones[:, 0], places, ones)
        )

    together = fitted(parts, np.concatenate(learned))
    alone = [fitted(parts.only(name), rows) for name, rows in zip(parts.names, learned, strict=True)]

    def told(result: Result, rows: np.ndarray) -> float:
        return float(result.posterior.log_predictive_density(rows, DRAWS).mean())

    return {
        SHARED: np.array([told(together, rows) for rows in held_out]),
        ALONE: np.array([told(result, rows) for result, rows in zip(alone, held_out, strict=True)]),
    }


def _mixture(weights: np.ndarray, means: np.ndarray, sd: np.ndarray) -> Product:
    ones = np.ones_like(means)
    return Product(
        weights=Dirichlet.from_concentration(weights),
        means=MeanFieldGaussian.from_mean_sd(means, sd),
        precisions=Gamma.from_shape_rate(2 * ones, ones),
    )
