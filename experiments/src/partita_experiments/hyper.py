"""The bound against hyperparameters: `fig:free-energy-schem` on real data, and three rules (`sec:hyper_learning`)."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from partita.data import partitioners, split
from partita.data.datasets import breast_cancer
from partita.data.shard import Partition
from partita.data.table import Table
from partita.families import Family, FullGaussian
from partita.families.factor import Factor
from partita.hyper.learning import How, Stochastic
from partita.hyper.values import bound_gradient
from partita.io.atomic import write, write_text
from partita.local.objective import Problem
from partita.local.solvers import Conjugate, Newton, Solution
from partita.methods import fit
from partita.models import LinearRegression, LogisticRegression, Model
from partita.numerics.compiled import Compiled
from partita.server.aggregation.base import divergence
from partita.server.method import Method
from partita.server.monitor import Monitor
from partita.server.run import Result
from partita.server.run import run as run_method
from partita_experiments.datasets import diabetes

CLIENTS = 10
INIT_SCALE = 0.1
"""The initial prior standard deviation of the three learning rules."""
RULE_STYLES: dict[How, tuple[str, str]] = {
    "collapsed": ("#1b6ca8", "-"),
    "coordinate": ("#c8553d", "--"),
    "stochastic": ("#3f7d20", "-."),
}


class Bound(NamedTuple):
    """F(ε, q*(ε')) on a grid: the prior's log scale ε down the rows, that for which q is the best along them."""

    scales: np.ndarray
    free_energy: np.ndarray
    gradients: np.ndarray
    """dF/dε assembled from ten clients at the optimal q; NaN where it was not computed."""


def run(folder: Path, quick: bool, as_json: bool) -> None:
    """Runs everything, draws the figure, and prints the table, or JSON."""
    jax.config.update("jax_enable_x64", True)
    bound, ways = logistic(quick)
    found = [*results_table(bound, ways), *linear(quick)]
    write_text(folder / "results.json", json.dumps(found, indent=2))
    draw(folder / "hyper.png", bound, ways)
    files = [str(folder / "results.json"), str(folder / "hyper.png")]
    if as_json:
        print(json.dumps({"results": found, "files": files}, indent=2))
        return
    Console(width=160).print(markdown(found), highlight=False)
    Console().print("\n".join(files), highlight=False, soft_wrap=True)


def clients(table: Table) -> Partition:
    """The rows, dealt out at random."""
    return split(table, partitioners.equal_random(len(table.y), CLIENTS))


@Compiled
def solve(model: Model, prior: Family, parts: Partition) -> Solution:
    """Global VI on all rows."""
    one = jnp.ones(())
    problem = Problem(model, parts.shards[0], Factor.of(prior), one, prior, one)
    return Newton(max_steps=200, tolerance=1e-13).solve(problem, jax.random.key(0))


def logistic(quick: bool) -> tuple[Bound, dict[How, Result]]:
    """The prior's scale of logistic regression on breast cancer: its bound on a grid, and learned from `INIT_SCALE`."""
    table = breast_cancer().train
    parts, model, size = clients(table), LogisticRegression(), table.x.shape[1]
    pooled = parts.pooled()
    scales = np.geomspace(0.1, 10.0, 5 if quick else 41)
    rounds = 3 if quick else 200
    priors = [FullGaussian.standard_normal(size, scale) for scale in scales]
    best = [solve(model, prior, pooled) for prior in priors]
    ells = [float(found.free_energy + divergence(found.q, prior)) for found, prior in zip(best, priors, strict=True)]
    free_energy = np.array(
        [[ell - float(divergence(found.q, prior)) for ell, found in zip(ells, best, strict=True)] for prior in priors]
    )
    gradients = np.full(len(scales), np.nan)
    for place in range(0, len(scales), 5):
        gradients[place] = assembled(model, priors[place], parts)
    begin = FullGaussian.standard_normal(size, INIT_SCALE)
    ways = {
        how: fit(
            "sequential",
            model,
            begin,
            parts,
            learn=["prior_scale"],
            how=how,
            tolerance=1e-6 if quick else 1e-9,
            rounds=rounds,
        )
        for how in RULE_STYLES
    }
    return Bound(scales, free_energy, gradients), ways


def assembled(model: Model, prior: Family, parts: Partition) -> float:
    """dF/d log scale at PVI's fixed point, from what the clients have sent."""
    still = Stochastic(("prior_scale",), optax.set_to_zero())
    state = run_method(Method(Newton(), learning=still), model, prior, parts, rounds=6, monitor=Monitor(every=0)).state
    return float(bound_gradient(prior, state.posterior, state.hyper, {}, ("prior_scale",), 1.0)["prior_scale"])


def results_table(bound: Bound, ways: dict[How, Result]) -> list[dict[str, Any]]:
    """The learned scales, and the grid's maximum refined by a parabola through its three highest points."""
    collapsed, log_scales = np.diagonal(bound.free_energy), np.log(bound.scales)
    top = int(np.clip(np.argmax(collapsed), 1, len(collapsed) - 2))
    near = slice(top - 1, top + 2)
    curve = np.polyfit(log_scales[near], collapsed[near], 2)
    highest = -curve[1] / curve[0] / 2
    rows = [_row("breast cancer", "grid and parabola", np.exp(highest), float(np.polyval(curve, highest)), 0, np.nan)]
    for how, result in ways.items():
        scale = INIT_SCALE * float(result.posterior.hyper["prior_scale"])
        seconds = result.history.rows[-1]["seconds"]
        rows.append(_row("breast cancer", how, scale, result.free_energy, result.state.communications, seconds))
    return rows


def linear(quick: bool) -> list[dict[str, Any]]:
    """Noise and prior scale of linear regression on diabetes, beside scikit-learn's BayesianRidge."""
    from sklearn.linear_model import BayesianRidge  # takes long to import

    table = diabetes().train
    flat = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    began = time.perf_counter()
    exact = BayesianRidge(fit_intercept=False, tol=1e-14, max_iter=100_000, compute_score=True, **flat)
    exact.fit(np.asarray(table.x), np.asarray(table.y))
    seconds = time.perf_counter() - began
    rows = [_row("diabetes", "BayesianRidge", exact.lambda_**-0.5, exact.scores_[-1], 0, seconds, exact.alpha_**-0.5)]
    prior, parts = FullGaussian.standard_normal(table.x.shape[1]), clients(table)
    for how in RULE_STYLES:
        result = fit(
            "sequential",
            LinearRegression(float(np.std(table.y))),
            prior,
            parts,
            {"solver": Conjugate()},
            learn=["noise", "prior_scale"],
            how=how,
            tolerance=1e-6 if quick else 1e-12,
            rounds=3 if quick else 500,
            monitor=Monitor(every=10),
        )
        hyper = {name: float(value) for name, value in result.posterior.hyper.items()}
        about = (result.free_energy, result.state.communications, result.history.rows[-1]["seconds"], hyper["noise"])
        rows.append(_row("diabetes", how, hyper["prior_scale"], *about))
    return rows


def _row(
    data: str, way: str, scale: float, bound: float, communications: int, seconds: float, noise: float = np.nan
) -> dict[str, Any]:
    numbers = {"prior_scale": scale, "noise": noise, "bound": bound, "seconds": seconds}
    known = {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
    return {"data": data, "way": way, "communications": int(communications), **known}


def markdown(found: list[dict[str, Any]]) -> str:
    """The results as a table of Markdown."""
    lines = [
        "| data | way | prior scale | noise | bound | communications |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        noise = f"{row['noise']:.6f}" if "noise" in row else ""
        numbers = f"{row['prior_scale']:.6f} | {noise} | {row['bound']:.6f} | {row['communications'] or ''}"
        lines.append(f"| {row['data']} | {row['way']} | {numbers} |")
    return "\n".join(lines)


def draw(path: Path, bound: Bound, ways: dict[How, Result]) -> None:
    """Draws the bound over ε and q, the collapsed bound with the clients' gradients, and the three learning rules."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    plane, ridge, path_axis = figure.subplots(1, 3)
    _plane(plane, bound)
    _ridge(ridge, bound, ways)
    top = max(result.free_energy for result in ways.values())
    for how, result in ways.items():
        colour, line = RULE_STYLES[how]
        missing = np.maximum(top - result.history["free_energy"], 1e-10)
        path_axis.plot(result.history["communications"], missing, color=colour, linestyle=line, label=how)
    path_axis.set_yscale("log")
    path_axis.set_xlabel("communications (one client, there and back)")
    path_axis.set_ylabel("nats below the best bound")
    path_axis.legend(fontsize="small")
    path_axis.set_title("three ways of learning")
    for axis in (ridge, path_axis):
        axis.grid(alpha=0.25)
    figure.suptitle("Logistic regression on breast cancer, ten clients: the prior's standard deviation as ε")
    write(path, lambda file: figure.savefig(file, dpi=130, format="png"))


def _plane(axis: Axes, bound: Bound) -> None:
    missing = bound.free_energy.max() - bound.free_energy
    levels = [0.3, 1, 3, 10, 30, 100, 300, 1000, 3000]
    lines = axis.contour(bound.scales, bound.scales, missing.T, levels=levels, colors="#3f7d20", linewidths=0.8)
    axis.clabel(lines, fmt="%g", fontsize="x-small")
    axis.plot(bound.scales, bound.scales, color="#1b6ca8", label="q best for ε: the collapsed bound")
    axis.set(xscale="log", yscale="log", xlabel="prior scale ε", ylabel="prior scale for which q is the best")
    axis.set_title("nats below the maximum of F(ε, q)")
    axis.legend(fontsize="small", loc="upper left")


def _ridge(axis: Axes, bound: Bound, ways: dict[How, Result]) -> None:
    collapsed, reach = np.diagonal(bound.free_energy), np.log(bound.scales[-1] / bound.scales[0]) / 30
    axis.plot(bound.scales, collapsed, color="#1b6ca8", label="max over q of F(ε, q), all rows at once")
    for scale, height, slope in zip(bound.scales, collapsed, bound.gradients, strict=True):
        if np.isfinite(slope):
            ends = np.array([-reach, reach])
            axis.plot(scale * np.exp(ends), height + slope * ends, color="black", linewidth=2)
            axis.plot(scale, height, "o", color="black", markersize=4)
    axis.plot([], [], color="black", linewidth=2, label="slopes assembled from ten clients")
    learned = INIT_SCALE * float(ways["collapsed"].posterior.hyper["prior_scale"])
    axis.axvline(learned, color="grey", linestyle=":", label="learned")
    axis.set(xscale="log", xlabel="prior scale ε", ylabel="nats")
    axis.set_ylim(bottom=max(collapsed.min(), collapsed.max() - 150), top=collapsed.max() + 15)
    axis.set_title("the collapsed bound")
    axis.legend(fontsize="small")
