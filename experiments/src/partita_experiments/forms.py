"""Posteriors of any form: a Gaussian, a mixture and a flow beside the exact density, with two clients and with one."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita import Family, FullGaussian, LogDensity, methods, run
from partita.data import federate
from partita.expectations import GridQuadrature, Points
from partita.families import AnyForm, Flow, Mixture
from partita.families.form import Form
from partita.local.solvers import LBFGS
from partita.numerics.compiled import Compiled
from partita.server.method import Method
from partita_experiments.past_work import save

PRIOR_SD, VISITS = 2.0, 8
SIDE = np.linspace(-9, 9, 361)
GRID = np.stack(np.meshgrid(SIDE, SIDE, indexing="ij"), axis=-1).reshape(-1, 2)
CELL = (SIDE[1] - SIDE[0]) ** 2
KINDS = ("Gaussian", "mixture", "flow")


def _product(theta: Float[Array, " 2"], y: Float[Array, ""]) -> Float[Array, ""]:
    """Rows of the product of two parameters, whose signs they do not tell."""
    return -0.5 * jnp.square((y - theta[0] * theta[1]) / 2)


def _banana(theta: Float[Array, " 2"], y: Float[Array, ""]) -> Float[Array, ""]:
    return -0.5 * jnp.square((y - theta[0] - jnp.square(theta[1])) / 0.5)


_drawn = np.random.default_rng(0)
TARGETS = {
    "two modes": (_product, 3 + 2 * _drawn.normal(size=10)),
    "banana": (_banana, 1 + 0.5 * _drawn.normal(size=10)),
}


def exact(target: str) -> Float[np.ndarray, " g"]:
    """The log density of the posterior on the grid."""
    density, y = TARGETS[target]
    theta, rows = jnp.asarray(GRID), jnp.asarray(y)
    each = jax.vmap(jax.vmap(density, in_axes=(None, 0)), in_axes=(0, None))(theta, rows)
    logs = -0.5 * np.sum(GRID**2, 1) / PRIOR_SD**2 + np.asarray(each.sum(1))
    highest = logs.max()
    return logs - highest - np.log(np.exp(logs - highest).sum() * CELL)


def posterior(
    target: str, kind: str, clients: int, quick: bool, shift: int = 0, begun: Family | None = None
) -> tuple[Family, list[float]]:
    """q of sequential PVI, and the free energy after every visit; `begun` is where it begins, instead of far away."""
    density, y = TARGETS[target]
    rounds = 2 if quick else VISITS // clients
    method, prior, expectation = _asked(target, kind, quick, shift, begun)
    model = LogDensity(density, expectation=expectation)
    parts = federate(list(np.array_split(y, clients)))
    result = run(method, model, prior, parts, rounds=rounds, tolerance=None)
    return result.posterior.q, list(map(float, result.history["free_energy"]))


def _asked(target: str, kind: str, quick: bool, shift: int, begun: Family | None) -> tuple[Method, Family, Any]:
    """The method, the prior, and the expectation."""
    solver = LBFGS(max_steps=5 if quick else 400, tolerance=1e-7)
    if kind == "Gaussian":
        covariance = jnp.eye(2)
        prior = FullGaussian.from_mean_covariance(jnp.zeros(2), PRIOR_SD**2 * covariance)
        start = FullGaussian.from_mean_covariance(jnp.array([1.0, 1.0]), 0.3 * covariance)
        return methods.sequential(solver, start=start), prior, GridQuadrature(30)
    first, far, draws = _forms(target, kind)
    whole = AnyForm.of(first, VISITS + 1, 8 if quick else draws, shift)
    return (
        methods.sequential(solver, start=whole.with_unconstrained(begun.unconstrained() if begun else far)),
        whole,
        Points(),
    )


def _forms(target: str, kind: str) -> tuple[Form, Form, int]:
    """The prior, where the first visit begins, and the number of draws."""
    apart = np.array([[1.5, 1.5], [-1.5, -1.5]])
    if kind == "mixture":
        angles = np.arange(6) * np.pi / 3
        circle = 2 * np.stack([np.cos(angles), np.sin(angles)], 1)
        return Mixture.normal(2, 6, PRIOR_SD), Mixture.from_means_sd(circle, 1.0), 128
    if target == "two modes":
        prior, base = Mixture.normal(2, 2, PRIOR_SD), Mixture.from_means_sd(apart, 1.0)
    else:
        prior, base = Mixture.normal(2, 1, PRIOR_SD), Mixture.normal(2, 1, 1.0)
    return Flow.of(prior, layers=4, units=8), Flow.of(base, layers=4, units=8), 4_096 // len(base.logits)


@Compiled
def _logs(q: Family, theta: Float[Array, "g d"]) -> Float[Array, " g"]:
    return jax.vmap(q.log_prob)(theta)


def on_grid(q: Family) -> Float[np.ndarray, " g"]:
    """log q on the grid."""
    return np.asarray(_logs(q, jnp.asarray(GRID)))


def divergence(first: Float[np.ndarray, " g"], second: Float[np.ndarray, " g"]) -> float:
    """KL(first ‖ second) on the grid, in nats."""
    return float(np.sum(np.exp(first) * (first - second)) * CELL)


def draw(path: Path, quick: bool) -> dict[str, dict[str, float]]:
    """Draws all posteriors, and returns how far they are from the exact one and from each other."""
    figure = Figure(figsize=(13, 6.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(TARGETS), 1 + len(KINDS), sharex=True, sharey=True)
    found: dict[str, dict[str, float]] = {}
    for row, target in enumerate(TARGETS):
        truth = exact(target)
        heights = np.exp(truth.max()) * np.array([0.02, 0.1, 0.3, 0.6, 1.0])
        shown = {"exact": truth}
        for kind in KINDS:
            shown[kind], told = compared(target, kind, truth, quick)
            found[f"{target}, {kind}"] = told
        for axis, (name, logs) in zip(axes[row], shown.items(), strict=True):
            density = np.exp(logs).reshape(len(SIDE), -1).T
            axis.contourf(
                SIDE, SIDE, density, levels=[*heights[:-1], max(heights[-1], density.max() * 1.01)], cmap="Greys"
            )
            axis.contour(
                SIDE, SIDE, np.exp(truth).reshape(len(SIDE), -1).T, levels=heights[:1], colors="black", linewidths=0.8
            )
            far = "" if name == "exact" else f", KL {found[f'{target}, {name}']['federated']:.3f}"
            axis.set_title(f"{target}: {name}{far}", fontsize=11)
            axis.set(xlim=(-5, 5), ylim=(-5, 5))
    save(figure, path)
    return found


def compared(
    target: str, kind: str, truth: Float[np.ndarray, " g"], quick: bool
) -> tuple[np.ndarray, dict[str, float]]:
    """The federated posterior, its distance to the exact one, and how far pooled runs go that begin at it.

    A run on pooled rows that begins there goes to another optimum of the same free energy, if it goes far; with other
    points its free energy is another one, and how far it goes then is the noise of points.
    """
    q, path = posterior(target, kind, 2, quick)
    federated = on_grid(q)
    told = {
        "federated": divergence(federated, truth),
        "pooled": divergence(on_grid(posterior(target, kind, 1, quick)[0]), truth),
        "last movement": path[-1] - path[-3],
    }
    if kind != "Gaussian":
        ends = [on_grid(posterior(target, kind, 1, quick, shift, q)[0]) for shift in (0, 1)]
        told |= dict(
            zip(("from there", "with other points"), (divergence(federated, end) for end in ends), strict=True)
        )
    return federated, told


def markdown(found: dict[str, dict[str, float]]) -> str:
    """The distances as a table, in nats."""
    columns = ("federated", "pooled", "from there", "with other points")
    lines = [f"| posterior | {' | '.join(columns)} |", f"| --- | {' | '.join('---:' for _ in columns)} |"]
    for name, told in found.items():
        numbers = (f"{told[column]:.4f}" if column in told else "" for column in columns)
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)
