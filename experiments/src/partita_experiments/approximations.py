"""The two stochastic approximations of a fixed point, as they learn, forget, and overtake each other."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita import FullGaussian, LogisticRegression, Table
from partita.data import federate
from partita.families import Family
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import FixedPoint
from partita.numerics.compiled import Compiled
from partita.numerics.rates import Damping, RobbinsMonro, rate_at
from partita_experiments.past_work import save

Trace = Float[np.ndarray, " steps"]
COLUMNS, BATCHES, BATCH = 5, 20, 50


def _rows(rows: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, COLUMNS))
    x[: rows // 2, 0] += shift
    x[rows // 2 :, 1] -= shift
    y = generator.uniform(size=rows) < 1 / (1 + np.exp(-x @ np.linspace(1.5, -1.0, COLUMNS)))
    return x, y.astype(float)


def _problem(x: np.ndarray, y: np.ndarray) -> Problem:
    (shard,) = federate([Table(jnp.asarray(x), jnp.asarray(y))]).shards
    prior = FullGaussian.standard_normal(COLUMNS)
    return Problem(LogisticRegression(), shard, Factor.of(prior), jnp.ones(()), prior, jnp.ones(()))


@Compiled
def _factor(problem: Problem, q: Family) -> Family:
    return problem.likelihood_factor(q, jax.random.key(0))


@Compiled
def _optimum(problem: Problem) -> Family:
    return FixedPoint(tolerance=1e-20).solve(problem, jax.random.key(0)).q


@Compiled
def _left(q: Family, best: Family) -> Float[jax.Array, ""]:
    return q.kl(best)


class Updates:
    """Batches of the same rows, and the posterior of all of them."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batches: int) -> None:
        self.prior: Family = FullGaussian.standard_normal(COLUMNS)
        self.best = _optimum(_problem(x, y))
        self.batches = [_problem(*part) for part in zip(np.split(x, batches), np.split(y, batches), strict=True)]

    def all_together(self, order: list[int], damping: Damping) -> Trace:
        """`eq:stoch-global`: KL to the optimum after every batch."""
        q, path = self.prior, []
        for step, k in enumerate(order):
            rate = float(rate_at(damping, step))
            target = self.prior * _factor(self.batches[k], q) ** len(self.batches)
            q = q ** (1 - rate) * target**rate
            path.append(float(_left(q, self.best)))
        return np.array(path)

    def one_by_one(self, order: list[int], damping: Damping) -> Trace:
        """`eq:stoch-local`."""
        q, path, factors = self.prior, [], [self.prior.one() for _ in self.batches]
        for step, k in enumerate(order):
            rate = float(rate_at(damping, step))
            change = (_factor(self.batches[k], q) / factors[k]) ** rate
            q, factors[k] = q * change, factors[k] * change
            path.append(float(_left(q, self.best)))
        return np.array(path)


def draw(path: Path, quick: bool) -> dict[str, list[float]]:
    """Draws the three comparisons of the appendix, and returns their paths."""
    passes = 1 if quick else 3
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    found: dict[str, list[float]] = {}

    def line(axis: Axes, name: str, x: np.ndarray, y: Trace, colour: str, style: str) -> None:
        """With a marker at every eighth of the line: its colour, its dashes and its marker each tell which it is."""
        axis.semilogy(
            x, np.maximum(y, 1e-9), style, color=colour, label=name, markevery=max(1, len(x) // 8), markersize=5
        )
        found[f"{axis.get_title()}: {name}"] = y.tolist()

    iid = Updates(*_rows(BATCHES * BATCH), BATCHES)
    order = [k for turn in range(passes) for k in np.random.default_rng(turn).permutation(BATCHES).tolist()]
    seen = np.arange(1, len(order) + 1) / BATCHES
    whole = Updates(*_rows(BATCHES * BATCH), 1)
    axes[0].set_title("mini-batches or all rows")
    line(axes[0], "all rows", np.arange(1, passes + 1), whole.all_together([0] * passes, 1.0), "black", ":o")
    line(axes[0], "global, ρ falls", seen, iid.all_together(order, RobbinsMonro(1.0)), "#1b6ca8", "-s")
    line(axes[0], "local, ρ = 1", seen, iid.one_by_one(order, 1.0), "#c8553d", "--^")
    axes[0].set_xlabel("passes over all rows")

    apart, turns = Updates(*_rows(200, 2.0), 2), 10 if quick else 40
    stream = [0] * turns + [1] * turns
    axes[1].set_title("a stream that is not iid")
    line(axes[1], "global, ρ' = 0.6", np.arange(2 * turns), apart.all_together(stream, 0.3), "#1b6ca8", "-s")
    line(axes[1], "local, ρ = 0.6", np.arange(2 * turns), apart.one_by_one(stream, 0.6), "#c8553d", "--^")
    axes[1].axvline(turns, color="grey", linestyle=":", label="the second batch comes")
    axes[1].set_xlabel("steps")

    axes[2].set_title("rates above one, iid")
    once = np.arange(1, BATCHES + 1)
    for rate, colour, style in ((1.0, "#9bbfdd", ":v"), (3.0, "#5b97c9", "-.D")):
        name = f"global, ρ' = {rate:g}"
        line(axes[2], name, once, iid.all_together(order[:BATCHES], rate / BATCHES), colour, style)
    line(
        axes[2], "global, ρ' falls from 20", once, iid.all_together(order[:BATCHES], RobbinsMonro(1.0)), "#1b6ca8", "-s"
    )
    line(axes[2], "local, ρ = 1", once, iid.one_by_one(order[:BATCHES], 1.0), "#c8553d", "--^")
    axes[2].set_xlabel("batches seen for the first time")
    for axis in axes:
        axis.set_ylabel("KL to global VI's posterior, nats")
        axis.grid(alpha=0.25)
        axis.legend(fontsize="small")
    save(figure, path)
    return found
