"""From a problem's description to clients, a model and test rows: loads, divides, preprocesses without pooling."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from partita.data import federate, partitioners
from partita.data.shard import Partition
from partita.data.table import Table
from partita.errors import InputError, unknown
from partita.expectations import LocalReparameterisation
from partita.families import Family, MeanFieldGaussian
from partita.io.settings import call
from partita.local.solvers import Solver
from partita.local.solvers import named as solver_named
from partita.models import LogisticRegression, Model, NetworkClassifier
from partita.results.metrics import error, negative_log_likelihood, pruned
from partita.results.posterior import Posterior, Predictive
from partita.server.aggregation import agile_adam
from partita.server.measures import Divergence, Measure, NaturalNorm, PredictiveChange
from partita_experiments.config import Experiment, Measured, Problem
from partita_experiments.source import Division, Indices, Source, load

OPTIMISERS: Mapping[str, Callable[..., optax.GradientTransformation]] = {"adam": optax.adam, "agile_adam": agile_adam}
"""What a server's optimiser may be."""


UNLABELLED = 500
"""How many of the test rows' inputs, without responses, the server knows that measures answers by predictions."""


class PreparedProblem(NamedTuple):
    """A problem's model, prior, clients and test rows, ready to run and evaluate methods."""

    model: Model
    prior: MeanFieldGaussian
    clients: Partition
    test: Table
    speeds: tuple[float, ...]
    draws: int
    measured: tuple[Measured, ...] = ()

    def start(self, seed: int) -> Family:
        """A random start with small variances, determined by the seed."""
        return MeanFieldGaussian.tight(self.prior.mean, seed)

    @property
    def how(self) -> Predictive:
        """How predictions are computed."""
        return "closed" if isinstance(self.model, LogisticRegression) else "monte_carlo"

    def metrics(self, posterior: Posterior) -> dict[str, float]:
        """Error and NLL on the test rows, how many parameters are as in the prior, and what is `measured` beside."""
        probabilities, y = self._predicted(posterior, self.test)
        found: dict[str, float] = {
            "nll": negative_log_likelihood(probabilities, y),
            "error": error(probabilities, y),
            "pruned": pruned(posterior.q, self.prior),
        }
        if not self.measured:
            return found
        own = [
            [np.asarray(leaf)[:size] for leaf in shard.data]
            for shard, size in zip(self.clients.shards, self.clients.sizes, strict=True)
        ]
        everybody = Table(*(jnp.asarray(np.concatenate(leaves)) for leaves in zip(*own, strict=True)))
        probabilities, y = self._predicted(posterior, everybody)
        if "train" in self.measured:
            found["train_nll"] = negative_log_likelihood(probabilities, y)
            found["train_error"] = error(probabilities, y)
        if "clients" in self.measured:
            ends = np.cumsum(self.clients.sizes)[:-1]
            for name, p, labels in zip(
                self.clients.names, np.split(probabilities, ends), np.split(y, ends), strict=True
            ):
                found[nll_of(name)] = negative_log_likelihood(p, labels)
        return found

    def _predicted(self, posterior: Posterior, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the classes of rows, and their labels."""
        return np.asarray(posterior.predict_proba(table.x, self.how, self.draws)), np.asarray(table.y)


def nll_of(client: str) -> str:
    """The name of the metric on the rows of a client."""
    return f"nll of {client}"


def prepare(experiment: Experiment, problem: Problem) -> PreparedProblem:
    """Loads and partitions the data; clients then preprocess them by sharing sums only."""
    source = load(problem.data)
    division = divide(problem, source, experiment.quick.rows if experiment.smoke else None)
    tables, test = source.tables(division, problem.clip, intercept=problem.model == "logistic")
    model, prior, dtype = _model(problem, test.x.shape[1], int(source.y.max()) + 1)
    tables, test = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), (tables, test))
    clients = federate(tables, names=division.names)
    sizes = np.array(clients.sizes)
    slowness = np.resize(experiment.slowness, len(sizes))
    speeds = sizes.mean() / (sizes * slowness)
    return PreparedProblem(
        model, prior, clients, test, tuple(map(float, speeds)), experiment.draws, experiment.measured
    )


def divide(problem: Problem, source: Source, limit: int | None) -> Division:
    """Which rows each client trains on, at most `limit` of all, or of each owner where owners are the clients."""
    kind, settings = problem.split["kind"], {key: value for key, value in problem.split.items() if key != "kind"}
    used, held_out = _select_rows(problem, len(source.y))
    if kind == "given":
        given = [rows[np.isin(rows, used)][:limit] for rows in source.owners.values()]
        return Division(given, list(source.owners), held_out)
    used = used[:limit]
    kinds: Mapping[str, Callable[..., list[Indices]]] = {
        "beta_kappa": functools.partial(partitioners.beta_kappa, source.y[used]),
        "k_means": lambda **settings: partitioners.k_means(source.inputs(used, problem.clip), **settings),
        "equal_random": functools.partial(partitioners.equal_random, len(used)),
        "label_shards": functools.partial(partitioners.label_shards, source.y[used]),
    }
    if kind not in kinds:
        raise unknown("kind of split", kind, ("given", *kinds))
    indices = call(kinds[kind], settings, f"split of {problem.name}")
    return Division([used[some] for some in indices], None, held_out)


def _select_rows(problem: Problem, rows: int) -> tuple[Indices, Indices | None]:
    """The training rows that are used, and those that are held out to choose settings by."""
    if not problem.rows and not problem.validation:
        return np.arange(rows), None
    count = problem.rows or rows - problem.validation
    if min(problem.rows, problem.validation) < 0 or count < 1 or count + problem.validation > rows:
        raise InputError(
            f"{problem.name} asks for {problem.rows} rows and {problem.validation} more for validation: ask for at "
            f"most {rows} together."
        )
    order = np.random.default_rng(0).permutation(rows)
    return order[:count], order[count : count + problem.validation] if problem.validation else None


def solver(experiment: Experiment, name: str) -> Solver:
    """The solver of this name in the experiment's configuration."""
    settings = solver_settings(experiment, name)
    return solver_named(settings.pop("kind"), settings, f"solver {name}")


def solver_settings(experiment: Experiment, name: str) -> dict[str, Any]:
    """The kind and the settings of a solver; a smoke run takes few steps."""
    if name not in experiment.solvers:
        raise unknown("solver", name, experiment.solvers)
    settings = dict(experiment.solvers[name])
    if experiment.smoke:
        most = experiment.quick.max_steps
        settings["max_steps"] = min(most, settings.get("max_steps", most))
    return settings


def optimiser(name: str) -> Callable[..., optax.GradientTransformation]:
    """The server's optimiser of this name."""
    if name not in OPTIMISERS:
        raise unknown("optimiser", name, OPTIMISERS)
    return OPTIMISERS[name]


def measure(name: str, setting: PreparedProblem) -> Measure:
    """The measure of this name of how large answers are."""
    inputs = np.asarray(setting.test.x)[:UNLABELLED]
    measures: Mapping[str, Callable[[], Measure]] = {
        "divergence": Divergence,
        "natural_norm": NaturalNorm,
        "predictive_change": lambda: PredictiveChange(setting.model, inputs, setting.how, setting.draws),
    }
    if name not in measures:
        raise unknown("measure", name, measures)
    return measures[name]()


def fingerprint(setting: PreparedProblem) -> str:
    """A digest of all clients' rows and the test rows, so that results of other data are not reused."""
    digest = hashlib.sha256()
    for table in (*(shard.data for shard in setting.clients.shards), setting.test):
        for leaf in table:
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def sizes_and_labels(setting: PreparedProblem) -> list[dict[str, Any]]:
    """For each client its name, number of rows N_k and of labels, and, of two labels, the proportion η_k of 1."""
    clients = setting.clients
    found = [np.asarray(shard.data.y)[:size] for shard, size in zip(clients.shards, clients.sizes, strict=True)]
    binary = max(y.max() for y in found) <= 1
    return [
        {"client": name, "rows": len(y), "labels": len(np.unique(y))}
        | ({"positive": float(y.mean())} if binary else {})
        for name, y in zip(clients.names, found, strict=True)
    ]


def _model(problem: Problem, columns: int, classes: int) -> tuple[Model, MeanFieldGaussian, np.dtype]:
    """The model with a standard normal prior; networks have biases of their own and work in single precision."""
    if problem.model == "logistic":
        return LogisticRegression(), MeanFieldGaussian.standard_normal(columns), np.dtype(np.float64)
    if problem.model == "network":
        widths = (columns, *problem.hidden, classes)
        network = NetworkClassifier(widths, expectation=LocalReparameterisation(problem.samples))
        like = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), network.template())
        return network, MeanFieldGaussian.standard_normal(like), np.dtype(np.float32)
    raise InputError(f"{problem.name} asks for the model {problem.model!r}: choose logistic or network.")
