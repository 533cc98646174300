"""From a problem's description to clients, a model and test rows: loads, divides, preprocesses without pooling."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from partita.datasets.frame import Frame, Frames
from partita.datasets.heart import heart_frames
from partita.datasets.mimic import mimic_frames
from partita.datasets.physionet import physionet_frames
from partita.datasets.uci import frames as uci_frames
from partita.errors import InputError, unknown
from partita.experiments.config import Experiment, Problem
from partita.families import Family, MeanFieldGaussian
from partita.metrics import error, negative_log_likelihood
from partita.models import LogisticRegression, Model, NetworkClassifier, Table
from partita.partition import federate, splits
from partita.partition.shard import Partition
from partita.predict import Posterior, Predictive
from partita.preprocess import federated
from partita.solvers import LBFGS, Gradient, Newton, Solver

T = TypeVar("T")

SOLVERS: Mapping[str, Callable[..., Solver]] = {
    "newton": Newton,
    "lbfgs": LBFGS,
    "adam": functools.partial(Gradient, optax.adam),
}


class Setting(NamedTuple):
    """All that a method needs to run on a problem and to be measured."""

    model: Model
    prior: MeanFieldGaussian
    clients: Partition
    test: Table
    speeds: tuple[float, ...]
    draws: int

    def start(self, seed: int) -> Family:
        """A tight place to begin, which the seed chooses."""
        return MeanFieldGaussian.tight(self.prior.mean, seed)

    def metrics(self, posterior: Posterior) -> dict[str, float]:
        """Error and negative log-likelihood on the test rows."""
        how: Predictive = "closed" if isinstance(self.model, LogisticRegression) else "monte_carlo"
        probabilities, y = posterior.predict_proba(self.test.x, how, self.draws), np.asarray(self.test.y)
        return {"nll": negative_log_likelihood(probabilities, y), "error": error(probabilities, y)}


def prepare(experiment: Experiment, problem: Problem) -> Setting:
    """Loads the data and divides them; clients then preprocess by sums alone."""
    train, test, names = divide(problem, load(problem.data), experiment.quick.rows if experiment.smoke else None)
    encoding = federated(train)
    tables = [_clipped(encoding.encode(frame), problem.clip) for frame in train]
    held_out = _clipped(encoding.encode(test), problem.clip)
    model, prior, dtype = _model(problem, held_out.x.shape[1])
    tables, held_out = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), (tables, held_out))
    clients = federate([_inputs(problem, table) for table in tables], names=names)
    sizes = np.array(clients.sizes)
    slowness = np.resize(experiment.slowness, len(sizes))
    speeds = sizes.mean() / (sizes * slowness)
    return Setting(model, prior, clients, _inputs(problem, held_out), tuple(map(float, speeds)), experiment.draws)


def load(data: str) -> dict[str, Frames]:
    """The rows of each owner: all in one, but for the hospitals."""
    sources: dict[str, Callable[[], dict[str, Frames]]] = {
        **{name: functools.partial(_whole, uci_frames, name) for name in ("adult", "bank", "credit")},
        "physionet": functools.partial(_whole, physionet_frames),
        "mimic": functools.partial(_whole, mimic_frames),
        "heart": heart_frames,
        "made up": made_up,
    }
    if data not in sources:
        raise unknown("data set", data, sources)
    return sources[data]()


def divide(
    problem: Problem, owners: Mapping[str, Frames], rows: int | None
) -> tuple[list[Frame], Frame, Sequence[str] | None]:
    """Each client's training rows, everybody's test rows, and the clients' names if they have any."""
    kind, settings = problem.split["kind"], {key: value for key, value in problem.split.items() if key != "kind"}
    test = _together([frames.test for frames in owners.values()])
    if kind == "given":
        train = [frames.train.rows(np.arange(frames.train.size)[:rows]) for frames in owners.values()]
        return train, test, list(owners)
    whole = _together([frames.train for frames in owners.values()])
    whole = whole.rows(np.arange(whole.size)[:rows])
    kinds: Mapping[str, Callable[..., list[np.ndarray]]] = {
        "beta_kappa": lambda **settings: splits.beta_kappa(whole.y, **settings),
        "k_means": lambda **settings: splits.k_means(_standardised(whole, problem.clip), **settings),
    }
    if kind not in kinds:
        raise unknown("kind of split", kind, ("given", *kinds))
    indices = _made(kinds[kind], settings, f"split of {problem.name}")
    return [whole.rows(some) for some in indices], test, None


def solver(experiment: Experiment, name: str) -> Solver:
    """The solver of this name in the experiment's configuration."""
    if name not in experiment.solvers:
        raise unknown("solver", name, experiment.solvers)
    settings = dict(experiment.solvers[name])
    if experiment.smoke:
        settings["max_steps"] = experiment.quick.max_steps
    kind = settings.pop("kind")
    if kind not in SOLVERS:
        raise unknown("kind of solver", kind, SOLVERS)
    return _made(SOLVERS[kind], settings, f"solver {name}")


def fingerprint(setting: Setting) -> str:
    """A digest of everybody's rows, by which results of other data are told apart."""
    digest = hashlib.sha256()
    for table in (*(shard.data for shard in setting.clients.shards), setting.test):
        for leaf in table:
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def sizes_and_labels(setting: Setting) -> list[dict[str, Any]]:
    """For each client its name, number of rows N_k and proportion of positive labels η_k."""
    return [
        {"client": name, "rows": size, "positive": float(np.mean(np.asarray(shard.data.y)[:size]))}
        for name, size, shard in zip(setting.clients.names, setting.clients.sizes, setting.clients.shards, strict=True)
    ]


def made_up(rows: int = 400, columns: int = 12, owners: int = 4) -> dict[str, Frames]:
    """Rows of owners whose inputs lie in different places, drawn from one logistic regression, for smoke runs."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=columns)

    def frame(centre: np.ndarray) -> Frame:
        x = centre + generator.normal(size=(rows // owners, columns))
        y = generator.random(len(x)) < 1 / (1 + np.exp(-(x @ weights)))
        return Frame.build({f"input {j}": x[:, j] for j in range(columns)}, y.astype(float))

    centres = generator.normal(size=(owners, columns))
    return {f"owner {k}": Frames(frame(centre), frame(centre)) for k, centre in enumerate(centres)}


def _made(function: Callable[..., T], settings: Mapping[str, Any], what: str) -> T:
    """The function's result with these settings; one that it does not know is the user's mistake."""
    try:
        return function(**settings)
    except TypeError as error:
        raise InputError(f"The {what} has a setting that does not fit: {error}.") from None


def _standardised(frame: Frame, clip: float) -> np.ndarray:
    return np.asarray(_clipped(federated([frame]).encode(frame), clip).x[:, 1:])


def _whole(source: Callable[..., Frames], *arguments: str) -> dict[str, Frames]:
    return {"all": source(*arguments)}


def _together(frames: Sequence[Frame]) -> Frame:
    columns = {name: np.concatenate([frame.columns[name] for frame in frames]) for name in frames[0].columns}
    return Frame.build(columns, np.concatenate([frame.y for frame in frames]), frames[0].levels)


def _model(problem: Problem, columns: int) -> tuple[Model, MeanFieldGaussian, np.dtype]:
    """The model with a standard normal prior; networks have biases of their own and work in single precision."""
    if problem.model == "logistic":
        return LogisticRegression(), MeanFieldGaussian.standard_normal(columns), np.dtype(np.float64)
    if problem.model == "network":
        network = NetworkClassifier((columns - 1, *problem.hidden, 2))
        like = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), network.template())
        return network, MeanFieldGaussian.standard_normal(like), np.dtype(np.float32)
    raise InputError(f"{problem.name} asks for the model {problem.model!r}: choose logistic or network.")


def _clipped(table: Table, limit: float) -> Table:
    x: Any = np.clip(table.x, -limit, limit)
    return Table(x, table.y)


def _inputs(problem: Problem, table: Table) -> Table:
    return table if problem.model == "logistic" else Table(table.x[:, 1:], table.y)
