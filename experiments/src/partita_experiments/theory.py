"""How far are proximal, trust-region and mirror steps from the damped fixed point, by the length of the step?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from scipy.optimize import root

from partita import MeanFieldGaussian, Table
from partita.data import federate
from partita.families.factor import Factor
from partita.io.atomic import write, write_text
from partita.local.objective import Problem
from partita.local.solvers import Newton, ProximalPoint
from partita.models import LogisticRegression
from partita.numerics.compiled import Compiled
from partita_experiments import approximations, forms, past_work

Vector = Float[np.ndarray, " p"]
STYLES = {
    "KL proximal": ("#1b6ca8", "-", "o"),
    "KL trust region": ("#3f7d20", "--", "s"),
    "symmetrised-KL trust region": ("#e0a030", ":", "^"),
    "proximal, F not linearised": ("#6a4c93", "-.", "v"),
    "mirror descent as printed": ("#c8553d", "-", "D"),
    "mirror descent with KL(q ‖ q_old)": ("black", "-", "x"),
}
ROUNDING = 1e-16


def run(folder: Path, quick: bool, as_json: bool) -> None:
    """Computes the errors, draws the figure, and prints the table, or JSON."""
    jax.config.update("jax_enable_x64", True)
    rates = np.geomspace(1.0, 1e-4, 4 if quick else 13)
    found = errors(rates)
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "equivalences.png", rates, found)
    paths = approximations.draw(folder / "stochastic.png", quick)
    table: dict[str, Any] = {
        "rates": rates.tolist(),
        "errors": {name: list(map(float, values)) for name, values in found.items()},
    }
    table["paths"] = paths
    table["forms"] = forms.draw(folder / "forms.png", quick)
    past_work.draw(folder / "past_work.png")
    past_work.draw_cases(folder / "special_cases.png")
    write_text(folder / "results.json", json.dumps(table))
    if as_json:
        drawn = ("equivalences.png", "stochastic.png", "forms.png", "past_work.png", "special_cases.png")
        files = [str(folder / file) for file in ("results.json", *drawn)]
        print(json.dumps({"experiment": "theory", **table, "files": files}))
    else:
        Console().print(markdown(rates, found), forms.markdown(table["forms"]), sep="\n\n", soft_wrap=True)


class Step:
    """A client's local free energy F at an old q, and the divergences from that q with their gradients in η."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(30, 3))
        y = (generator.uniform(size=30) < 1 / (1 + np.exp(-x @ np.linspace(1.5, -1.0, 3)))).astype(float)
        prior = MeanFieldGaussian.standard_normal(3)
        (shard,) = federate([Table(jnp.asarray(x), jnp.asarray(y))]).shards
        ones = jnp.ones(())
        self.problem = Problem(LogisticRegression(), shard, Factor.of(prior), ones, prior, ones)
        flat, self.member = ravel_pytree(prior)
        self.old, key = np.asarray(flat), jax.random.key(0)

        def free_energy(eta: Float[Array, " p"]) -> Float[Array, ""]:
            return self.problem.free_energy(self.member(eta), key)

        self.slope = np.asarray(jax.grad(free_energy)(flat))
        self.natural = np.linalg.solve(np.asarray(prior.fisher()), self.slope)

        def with_gradient(divergence: Callable[[Any], Float[Array, ""]]) -> Callable[[Vector], tuple[float, Vector]]:
            both = jax.jit(jax.value_and_grad(lambda eta: divergence(self.member(eta))))

            def pair(eta: Vector) -> tuple[float, Vector]:
                value, gradient = both(eta)
                return float(value), np.asarray(gradient)

            return pair

        self.exclusive = with_gradient(lambda q: q.kl(prior))
        self.symmetrised = with_gradient(lambda q: q.distance(prior))
        self.inclusive = with_gradient(lambda q: prior.kl(q))
        self.fisher = jax.jit(lambda eta: self.member(eta).fisher())

    def exact(self, rate: float) -> Vector:
        """The damped fixed point."""
        return self.old + rate * self.natural

    def proximal(self, rate: float) -> Vector:
        """argmax ∇F · η − KL(q ‖ q_old) / ρ."""
        return _root(lambda eta: self.slope - self.exclusive(eta)[1] / rate, self.exact(rate))

    def ball(self, divergence: Callable[[Vector], tuple[float, Vector]], rate: float) -> Vector:
        """argmax ∇F · η within the divergence of the damped fixed point."""
        radius = divergence(self.exact(rate))[0]

        def conditions(point: Vector) -> Vector:
            value, gradient = divergence(point[:-1])
            return np.append(self.slope - np.exp(point[-1]) * gradient, value / radius - 1)

        return _root(conditions, np.append(self.exact(rate), -np.log(rate)))[:-1]

    def mirror(self, divergence: Callable[[Vector], tuple[float, Vector]], rate: float) -> Vector:
        """argmax over μ of ∇_μ F · μ − D / ρ."""
        return _root(
            lambda eta: self.natural - np.linalg.solve(self.fisher(eta), divergence(eta)[1]) / rate, self.exact(rate)
        )

    def whole(self, rate: float) -> Vector:
        """argmax F(q) − KL(q ‖ q_old) / ρ."""
        solver = ProximalPoint(Newton(tolerance=1e-20), rate, max_steps=1)
        return np.asarray(ravel_pytree(_solved(solver, self.problem).q)[0])


@Compiled
def _solved(solver: ProximalPoint, problem: Problem) -> Any:
    return solver.solve(problem, jax.random.key(0))


def _root(conditions: Callable[[Vector], Vector], start: Vector) -> Vector:
    found = root(conditions, start, tol=1e-14)
    return found.x if np.abs(found.fun).max() < 1e-9 else np.full_like(start, np.nan)


def errors(rates: Vector) -> dict[str, Vector]:
    """By how much of the step each problem's solution misses the damped fixed point; NaN where it has none."""
    step = Step()
    solutions: dict[str, Callable[[float], Vector]] = {
        "KL proximal": step.proximal,
        "KL trust region": lambda rate: step.ball(step.exclusive, rate),
        "symmetrised-KL trust region": lambda rate: step.ball(step.symmetrised, rate),
        "proximal, F not linearised": step.whole,
        "mirror descent as printed": lambda rate: step.mirror(step.inclusive, rate),
        "mirror descent with KL(q ‖ q_old)": lambda rate: step.mirror(step.exclusive, rate),
    }

    def missed(solution: Callable[[float], Vector], rate: float) -> float:
        exact = step.exact(rate)
        return float(np.linalg.norm(solution(rate) - exact) / np.linalg.norm(exact - step.old))

    return {name: np.array([missed(found, rate) for rate in rates]) for name, found in solutions.items()}


def markdown(rates: Vector, found: dict[str, Vector]) -> str:
    """The largest, a middle and the smallest rate as a table of Markdown."""
    places = [0, len(rates) // 2, len(rates) - 1]
    lines = [f"| problem | {' | '.join(f'ρ = {rates[k]:.2g}' for k in places)} |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {' | '.join(f'{values[k]:.1e}' for k in places)} |" for name, values in found.items()]
    return "\n".join(lines)


def draw(path: Path, rates: Vector, found: dict[str, Vector]) -> None:
    """Draws the errors over the rate."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Axes = figure.subplots()
    for name, values in found.items():
        colour, line, marker = STYLES[name]
        axis.loglog(rates, np.maximum(values, ROUNDING), line, color=colour, marker=marker, markersize=4, label=name)
    axis.set_xlabel("rate ρ")
    axis.set_ylabel("distance from the damped fixed point,\nrelative to the step")
    axis.grid(alpha=0.25)
    axis.legend(fontsize="small")
    axis.set_title("One step by other names: logistic regression, mean field, from the prior")
    write(path, lambda file: figure.savefig(file, dpi=130, format="png"))
