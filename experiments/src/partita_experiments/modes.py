"""Why committees fail with networks (`sec:experiments`): do clients' own posteriors sit at different modes?

Every client of digits infers its posterior by itself, and their product is the committee machine's (BCM, same). A
network's hidden units may change places without changing what it predicts, so that clients may disagree on nothing but
their order. Compared are clients that begin at one start, at starts of their own, the latter with units put into the
order of the first client's, and a model whose log-likelihood is concave, which has one mode: softmax regression.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Int
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from partita.data import partitioners, split
from partita.data.datasets import Dataset, digits
from partita.data.shard import Partition
from partita.data.table import Table
from partita.expectations import LocalReparameterisation
from partita.families import MeanFieldGaussian
from partita.io.atomic import write_text
from partita.local.solvers import Gradient
from partita.methods import bcm_same
from partita.models import NetworkClassifier
from partita.results.metrics import error, negative_log_likelihood
from partita.results.posterior import Posterior
from partita.server.monitor import Monitor
from partita.server.run import run as run_method
from partita_experiments.judge import exceeds, spread

CLIENTS = 10
SEEDS = 5
DRAWS = 20
OWN, SHARED, ORDERED, CONVEX = "starts of their own", "one start", "own starts, units ordered", "softmax regression"


class Found(NamedTuple):
    """What came out of a way, a value for each seed."""

    apart: np.ndarray
    """√ of the mean over parameters and pairs of (m_k − m_l)² / (v_k + v_l): 1 where means differ by noise."""
    alone: np.ndarray
    """The mean test NLL of the clients' own posteriors."""
    committee: np.ndarray
    """The test NLL of their product."""
    alone_error: np.ndarray
    committee_error: np.ndarray


def run(folder: Path, quick: bool, as_json: bool) -> None:
    """Runs everything and prints the tables and the statements, or JSON."""
    jax.config.update("jax_enable_x64", True)
    found = study(*((2, 20, 5) if quick else (SEEDS, 1000, 50)))
    rows = {way: {name: values.tolist() for name, values in some._asdict().items()} for way, some in found.items()}
    write_text(folder / "results.json", json.dumps(rows, indent=2))
    text = markdown(found)
    write_text(folder / "report.md", text)
    files = [str(folder / "results.json"), str(folder / "report.md")]
    if as_json:
        print(json.dumps({"results": rows, "files": files}, indent=2))
        return
    Console(width=160).print(text, highlight=False)
    Console().print("\n".join(files), highlight=False, soft_wrap=True)


def study(seeds: int, steps: int, units: int) -> dict[str, Found]:
    """All ways with so many seeds, steps a client and hidden units."""
    data = digits()
    x, y = (jnp.asarray(leaf, jnp.float32) for leaf in data.train)
    parts = split(Table(x, y), partitioners.equal_random(len(x), CLIENTS, seed=0))
    solver = Gradient(learning_rate=0.01, batch_size=128, max_steps=steps, window=25, tolerance=0.5)
    found: dict[str, list[list[float]]] = {way: [] for way in (OWN, SHARED, ORDERED, CONVEX)}
    for seed in range(seeds):
        network = NetworkClassifier((x.shape[1], units, 10), expectation=LocalReparameterisation(10))
        softmax = NetworkClassifier((x.shape[1], 10), expectation=LocalReparameterisation(10))
        own = alone(network, parts, solver, [1000 * (seed + 1) + k for k in range(CLIENTS)])
        members = {
            OWN: own,
            SHARED: alone(network, parts, solver, [seed] * CLIENTS),
            ORDERED: [own[0], *(ordered(q, own[0]) for q in own[1:])],
            CONVEX: alone(softmax, parts, solver, [1000 * (seed + 1) + k for k in range(CLIENTS)]),
        }
        for way, some in members.items():
            found[way].append(measured(softmax if way == CONVEX else network, some, data))
    return {way: Found(*np.array(values).T) for way, values in found.items()}


def standard(model: NetworkClassifier) -> MeanFieldGaussian:
    """The standard normal prior in single precision."""
    return MeanFieldGaussian.standard_normal(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model.template()))


def alone(
    model: NetworkClassifier, parts: Partition, solver: Gradient, starts: Sequence[int]
) -> list[MeanFieldGaussian]:
    """Each client's own posterior, p · t_k, from a tight start by its seed."""
    prior, found = standard(model), []
    for name, start in zip(parts.names, starts, strict=True):
        method = bcm_same(solver, start=MeanFieldGaussian.tight(prior.mean, start))
        result = run_method(method, model, prior, parts.only(name), seed=start, monitor=Monitor(every=0))
        found.append(cast(MeanFieldGaussian, result.posterior.q))
    return found


def product(members: Sequence[MeanFieldGaussian], prior: MeanFieldGaussian) -> MeanFieldGaussian:
    """The committee's posterior, p · Π (q_k / p)."""
    whole = prior
    for q in members:
        whole = whole * (q / prior)
    return whole


def ordered(q: MeanFieldGaussian, like: MeanFieldGaussian) -> MeanFieldGaussian:
    """q with the hidden units of its one hidden layer in the order in which they are nearest to another's."""
    (mean, variance), (other, spread_of_other) = _units(q), _units(like)
    apart = (mean[:, None] - other[None]) ** 2 / (variance[:, None] + spread_of_other[None])
    _, order = linear_sum_assignment(apart.sum(axis=-1).T)
    return rearranged(q, order)


def _units(q: MeanFieldGaussian) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of all weights in and out of each hidden unit, a row each."""

    def rows(theta: Any) -> np.ndarray:
        first, second = theta
        return np.concatenate([first["weight"], first["bias"][:, None], second["weight"].T], axis=1)

    return rows(q.mean), rows(q.variance)


def rearranged(q: MeanFieldGaussian, order: Int[np.ndarray, " h"]) -> MeanFieldGaussian:
    """q with other places for its hidden units; what it predicts is the same."""

    def moved(theta: Any) -> Any:
        first, second = theta
        return (
            {"bias": first["bias"][order], "weight": first["weight"][order]},
            {"bias": second["bias"], "weight": second["weight"][:, order]},
        )

    return MeanFieldGaussian(moved(q.precision_mean), moved(q.precision))


def distance(members: Sequence[MeanFieldGaussian]) -> float:
    """How far the means of pairs of members lie apart, in standard deviations of their difference."""
    means, variances = (np.array([ravel_pytree(part(q))[0] for q in members]) for part in (_mean, _variance))
    pairs = [
        np.mean((means[k] - means[m]) ** 2 / (variances[k] + variances[m]))
        for k, m in itertools.combinations(range(len(members)), 2)
    ]
    return float(np.sqrt(np.mean(pairs)))


def _mean(q: MeanFieldGaussian) -> Any:
    return q.mean


def _variance(q: MeanFieldGaussian) -> Any:
    return q.variance


def measured(model: NetworkClassifier, members: Sequence[MeanFieldGaussian], data: Dataset) -> list[float]:
    """The fields of `Found`."""
    x, y = np.asarray(data.test.x, np.float32), np.asarray(data.test.y)

    def scores(q: MeanFieldGaussian) -> tuple[float, float]:
        probabilities = Posterior(model, q).predict_proba(x, "monte_carlo", DRAWS)
        return negative_log_likelihood(probabilities, y), error(probabilities, y)

    own, together = np.array([scores(q) for q in members]).mean(axis=0), scores(product(members, standard(model)))
    return [distance(members), float(own[0]), together[0], float(own[1]), together[1]]


def markdown(found: dict[str, Found]) -> str:
    """A table and the statements."""
    lines = [
        "| clients begin at | apart, in sds | own test NLL | the committee's | own test error | the committee's |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(f"| {way} | {' | '.join(spread(values) for values in some)} |" for way, some in found.items()),
        "",
    ]
    for text, gap in statements(found).items():
        verdict = {True: "confirmed", False: "**not confirmed**", None: "not judged"}[exceeds(gap, 0.0)]
        lines.append(f"- {verdict}: {text}, by more than 2 sd. Seen: {spread(gap)}.")
    return "\n".join(lines) + "\n"


def statements(found: dict[str, Found]) -> dict[str, np.ndarray]:
    """What is said, and by how much it is so for each seed."""
    own, shared, inorder, convex = (found[way] for way in (OWN, SHARED, ORDERED, CONVEX))
    return {
        "networks' posteriors lie farther apart, in sds, than those of the convex model": own.apart - convex.apart,
        "the network's committee predicts worse than its members by themselves (NLL)": own.committee - own.alone,
        "the convex model's committee predicts better than its members (NLL)": convex.alone - convex.committee,
        "posteriors lie less far apart where all begin at one start": own.apart - shared.apart,
        "the committee predicts better where all begin at one start (NLL)": own.committee - shared.committee,
        "posteriors lie less far apart once units are ordered": own.apart - inorder.apart,
        "the committee predicts better once units are ordered (NLL)": own.committee - inorder.committee,
    }
