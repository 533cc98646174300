"""How accurate are power EP and PVI for different α? Compared with long runs of NUTS and importance sampling."""

import functools
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from partita import __version__, datasets
from partita.data import federate
from partita.data.table import Table
from partita.errors import InputError
from partita.families import FullGaussian, MeanFieldGaussian
from partita.families.factor import Factor
from partita.io.atomic import write, write_text
from partita.local.objective import Problem
from partita.local.solvers import Newton, Outcome, PowerEP, Solution, Solver
from partita.models import GeneralisedLinear, LogisticRegression, ProbitRegression
from partita.numerics.compiled import Compiled

MODELS: dict[str, GeneralisedLinear] = {"logistic": LogisticRegression(), "probit": ProbitRegression()}
FAMILIES: dict[str, type[MeanFieldGaussian] | type[FullGaussian]] = {
    "mean-field": MeanFieldGaussian,
    "full": FullGaussian,
}
SOLVERS: dict[str, Solver] = {
    "PVI": Newton(max_steps=200, tolerance=1e-12),
    **{f"α = {alpha:g}": PowerEP(alpha=alpha, max_steps=10_000, tolerance=1e-9) for alpha in (0.1, 0.5, 1.0)},
}
"""PVI converges to global VI, and power EP to its solution on pooled rows, so one client with all rows suffices."""
STYLES = {"mean-field": ("#c8553d", "--", "s"), "full": ("#1b6ca8", "-", "o")}
BATCH = 4096
FORMAT = 2
"""Increment when the same solver gives other results, to invalidate stored ones."""


class Scale(NamedTuple):
    """The size of the computations on a data set."""

    data: str
    rows: int
    models: tuple[str, ...]
    chains: int
    warmup: int
    draws: int
    proposals: int


WHOLE = (
    Scale("breast cancer", 569, tuple(MODELS), 4, 1000, 5000, 2**18),
    Scale("adult", 2000, tuple(MODELS), 4, 1000, 2000, 2**18),
)
QUICK = (Scale("breast cancer", 100, ("logistic",), 2, 200, 300, 2**13),)


def run(folder: Path, quick: bool, as_json: bool) -> None:
    """Runs what is missing, draws the figure, and prints the table, or JSON."""
    jax.config.update("jax_enable_x64", True)
    found = []
    for scale in QUICK if quick else WHOLE:
        data, table = scale.data, sample_rows(scale.data, scale.rows)
        for name in scale.models:
            cell = functools.partial(cached_result, folder / "cells", scale)
            nuts = cell(f"{data} {name} NUTS", functools.partial(reference, MODELS[name], table, scale))
            for family in FAMILIES:
                for solver in SOLVERS:
                    fit = functools.partial(approximation, MODELS[name], table, family, solver)
                    one = cell(f"{data} {name} {family} {solver}", fit, SOLVERS[solver])
                    found.append({"data": data, "model": name, "family": family, "method": solver, **errors(one, nuts)})
            sample = functools.partial(evidence, MODELS[name], table, scale)
            sampled = cell(f"{data} {name} evidence", sample, SOLVERS["α = 1"])
            found.append({"data": data, "model": name, "family": "", "method": "NUTS", **summary(nuts), **sampled})
    write_text(folder / "results.json", json.dumps(found, indent=2))
    draw(folder / "ep.png", found)
    if as_json:
        print(json.dumps({"results": found, "files": [str(folder / "results.json"), str(folder / "ep.png")]}, indent=2))
        return
    Console(width=160).print(markdown(found), highlight=False)
    Console().print(f"{folder / 'ep.png'}", highlight=False, soft_wrap=True)


def cached_result(
    folder: Path, scale: Scale, name: str, compute: Callable[[], dict[str, Any]], solver: Solver | None = None
) -> dict[str, Any]:
    """The stored result for the same scale and solver, or a new one."""
    path = folder / f"{name.replace(' ', '_')}.json"
    by = {} if solver is None else {"solver": str(solver), "version": __version__, "format": FORMAT}
    asked = json.loads(json.dumps({**scale._asdict(), **by}))
    if path.exists():
        before = json.loads(path.read_text())
        if before["asked"] == asked:
            return before["found"]
    start = time.perf_counter()
    found = compute()
    found["seconds"] = time.perf_counter() - start
    write_text(path, json.dumps({"asked": asked, "found": found}))
    return found


def sample_rows(data: str, rows: int) -> Table:
    """A fixed random sample of `rows` rows."""
    train, test, _ = datasets.adult() if data == "adult" else datasets.breast_cancer()
    x, y = (np.concatenate([np.asarray(a), np.asarray(b)]) for a, b in zip(train, test, strict=True))
    order = np.random.default_rng(0).permutation(len(y))[:rows]
    return Table(jnp.asarray(x[order]), jnp.asarray(y[order]))


def problem(model: GeneralisedLinear, table: Table, family: str) -> Problem:
    """One client with all rows, whose context is the prior N(0, I)."""
    prior, one = FAMILIES[family].standard_normal(table.x.shape[1]), jnp.ones(())
    return Problem(model, federate([table]).shards[0], Factor.of(prior), one, prior, one)


@Compiled
def solve(solver: Solver, problem: Problem) -> Solution:
    """The solver's answer; none of these draws anything."""
    return solver.solve(problem, jax.random.key(0))


def approximation(model: GeneralisedLinear, table: Table, family: str, solver: str) -> dict[str, Any]:
    """Means, sds and the log evidence, or for PVI its lower bound."""
    found = solve(SOLVERS[solver], problem(model, table, family))
    mean, sd = found.q.moments()
    return {
        "mean": np.asarray(mean).tolist(),
        "sd": np.asarray(sd).tolist(),
        "log_evidence": float(found.free_energy),
        "steps": int(found.steps),
        "outcome": Outcome(int(found.outcome)).sentence,
        "skipped": int(found.skipped),
    }


def log_joint(model: GeneralisedLinear, table: Table, theta: Float[Array, " d"]) -> Float[Array, ""]:
    """log p(y, θ)."""
    prior = -jnp.sum(theta**2) / 2 - theta.size * jnp.log(2 * jnp.pi) / 2
    return jnp.sum(model.log_density_at(jnp.asarray(table.x) @ theta, table)) + prior


def reference(model: GeneralisedLinear, table: Table, scale: Scale) -> dict[str, Any]:
    """Means and sds of long chains of NUTS, with R̂ and effective sample sizes."""
    try:
        infer = importlib.import_module("numpyro.infer")
        diagnostics = importlib.import_module("numpyro.diagnostics")
    except ImportError:
        raise InputError(
            "Chains are run by NumPyro: pip install './experiments[nuts]' in a checkout of partita."
        ) from None
    kernel = infer.NUTS(potential_fn=lambda theta: -log_joint(model, table, theta), dense_mass=True)
    chains = infer.MCMC(
        kernel,
        num_warmup=scale.warmup,
        num_samples=scale.draws,
        num_chains=scale.chains,
        chain_method="sequential",
        progress_bar=False,
    )
    begin = jax.random.normal(jax.random.key(1), (scale.chains, table.x.shape[1])) / 10
    chains.run(jax.random.key(0), init_params=begin, extra_fields=("diverging",))
    draws = np.asarray(chains.get_samples(group_by_chain=True))
    squares = (draws - draws.mean((0, 1))) ** 2
    return {
        "mean": draws.mean((0, 1)).tolist(),
        "sd": draws.std((0, 1)).tolist(),
        "rhat": float(diagnostics.split_gelman_rubin(draws).max()),
        "ess": np.asarray(diagnostics.effective_sample_size(draws)).tolist(),
        "ess_of_squares": np.asarray(diagnostics.effective_sample_size(squares)).tolist(),
        "kurtosis": (np.mean(squares**2, (0, 1)) / np.mean(squares, (0, 1)) ** 2).tolist(),
        "diverging": int(np.sum(chains.get_extra_fields()["diverging"])),
    }


def evidence(model: GeneralisedLinear, table: Table, scale: Scale) -> dict[str, Any]:
    """log p(y) by importance sampling from EP's Gaussian, with its standard error by the delta method."""
    q = solve(SOLVERS["α = 1"], problem(model, table, "full")).q

    @jax.jit
    def logs(key: Array) -> Array:
        theta = q.sample(key, (BATCH,))
        own = jax.vmap(q.log_prob)(theta)
        return jax.lax.map(lambda each: log_joint(model, table, each), theta, batch_size=256) - own

    keys = jax.random.split(jax.random.key(2), scale.proposals // BATCH)
    weights = np.concatenate([np.asarray(logs(key)) for key in keys])
    top = weights.max()
    ratios = np.exp(weights - top)
    return {
        "log_evidence": float(top + np.log(ratios.mean())),
        "standard_error": float(ratios.std() / ratios.mean() / np.sqrt(len(ratios))),
        "effective": float(ratios.sum() ** 2 / (ratios**2).sum()),
    }


def summary(nuts: dict[str, Any]) -> dict[str, Any]:
    """Diagnostics of NUTS; its Monte Carlo errors are the smallest errors that the comparison can show."""
    sd_error = np.sqrt((np.array(nuts["kurtosis"]) - 1) / np.array(nuts["ess_of_squares"])) / 2
    return {
        "rhat": nuts["rhat"],
        "smallest_ess": min(nuts["ess"]),
        "diverging": nuts["diverging"],
        "sd_error": float(np.mean(sd_error) * np.sqrt(2 / np.pi)),
        "mean_error": float(np.mean(1 / np.sqrt(nuts["ess"])) * np.sqrt(2 / np.pi)),
        "nuts_seconds": nuts["seconds"],
    }


def errors(one: dict[str, Any], nuts: dict[str, Any]) -> dict[str, Any]:
    """Mean absolute errors over parameters: of sds relative to NUTS's, of means in NUTS's sds."""
    mean, sd = np.array(nuts["mean"]), np.array(nuts["sd"])
    ratio = np.array(one["sd"]) / sd - 1
    return {
        "sd_error": float(np.mean(np.abs(ratio))),
        "sd_bias": float(np.mean(ratio)),
        "mean_error": float(np.mean(np.abs(np.array(one["mean"]) - mean) / sd)),
        **{key: one[key] for key in ("log_evidence", "steps", "outcome", "skipped", "seconds")},
    }


def markdown(found: list[dict[str, Any]]) -> str:
    """The results as a table of Markdown."""
    lines = [
        "| data | model | family | method | sds: error | sds: bias | means: error | log evidence | passes or steps |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        if row["method"] == "NUTS":
            seen = f"{row['sd_error']:.2%} | | {row['mean_error']:.4f}"
            last = f"{row['log_evidence']:.3f} ± {row['standard_error']:.3f} |"
        else:
            seen = f"{row['sd_error']:.2%} | {row['sd_bias']:+.2%} | {row['mean_error']:.4f}"
            last = f"{row['log_evidence']:.3f} | {row['steps']}"
        family = row["family"] or "exact"
        lines.append(f"| {row['data']} | {row['model']} | {family} | {row['method']} | {seen} | {last} |")
    return "\n".join(lines)


def draw(path: Path, found: list[dict[str, Any]]) -> None:
    """Errors and evidence against α, a column for each data set and model."""
    columns = list(dict.fromkeys((row["data"], row["model"]) for row in found))
    figure = Figure(figsize=(3.3 * len(columns) + 0.6, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(columns), squeeze=False)
    for column, (data, model) in zip(axes.T, columns, strict=True):
        rows = [row for row in found if (row["data"], row["model"]) == (data, model)]
        (exact,) = (row for row in rows if row["method"] == "NUTS")
        for family, (colour, line, marker) in STYLES.items():
            own = [row for row in rows if row["family"] == family]
            look = {"color": colour, "linestyle": line, "marker": marker, "label": family}
            for axis, value in zip(column, ("sd_error", "mean_error", "log_evidence"), strict=True):
                axis.plot(range(len(own)), [row[value] for row in own], **look)
        for axis, value in zip(column[:2], ("sd_error", "mean_error"), strict=True):
            axis.axhline(exact[value], color="grey", linestyle=":", label="error of NUTS itself")
            axis.set_yscale("log")
        column[2].axhline(exact["log_evidence"], color="black", linewidth=1, label="importance sampling")
        column[2].margins(y=0.1)
        column[0].set_title(f"{data}, {model}")
        for axis in column:
            axis.set_xticks(range(len(SOLVERS)), ["PVI", *(name.removeprefix("α = ") for name in list(SOLVERS)[1:])])
            axis.grid(alpha=0.25)
        column[2].set_xlabel("α")
    for axis, label in zip(
        axes[:, 0], ("relative error of sds", "error of means, in sds", "log evidence"), strict=True
    ):
        axis.set_ylabel(label)
    axes[0, 0].legend(fontsize="small")
    axes[2, 0].legend(fontsize="small")
    figure.suptitle("Power EP and PVI beside NUTS")
    write(path, lambda file: figure.savefig(file, dpi=130, format="png"))
