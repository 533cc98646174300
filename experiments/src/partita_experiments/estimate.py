"""Upper bounds of an experiment's duration, from a few timed steps of a client's actual problem."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from partita.data.shard import Partition
from partita.engines import LocalEngine, Task
from partita.methods import named
from partita.results.posterior import Posterior
from partita.server.bound import partition_free_energy
from partita.server.method import Method
from partita.server.state import init
from partita_experiments.config import Problem
from partita_experiments.problem import PreparedProblem
from partita_experiments.runner import Cell, Plan, method_settings

SHORT, LONG = 5, 20
"""Numbers of steps of the timed visits; their difference gives the time per step without fixed costs."""


class Pace(NamedTuple):
    """Seconds per visit and per step of a client."""

    visit: float
    step: float


class Forecast(NamedTuple):
    """The remaining work of a run on a problem over all seeds, as upper bounds."""

    problem: str
    run: str
    cells: int
    communications: int
    steps: int
    seconds: float
    step: float
    """How long a gradient step takes."""
    evaluation: float
    """How long it takes to evaluate a posterior once."""


def forecasts(plan: Plan, problem: Problem, setting: PreparedProblem) -> list[Forecast]:
    """What is left to do on a problem, run by run."""
    missing: dict[str, list[Cell]] = {}
    for cell in plan.missing():
        if cell.problem == problem:
            missing.setdefault(cell.run.curve, []).append(cell)
    if not missing:
        return []
    paces: dict[tuple[str, bool], Pace] = {}
    evaluation = _evaluation(setting)
    found = []
    for run, cells in missing.items():
        first = cells[0]
        method = named(first.run.named, **method_settings(plan, first, setting))
        pooled, alone = (first.run.method == name for name in ("pooled", "alone"))
        kind = (str(method.solver), pooled)
        if kind not in paces:
            paces[kind] = _pace(method, setting, setting.clients.pooled() if pooled else setting.clients)
        pace, steps = paces[kind], int(method.solver.max_steps)
        members = 1 if pooled or alone else len(setting.clients)
        budget = min(first.run.communications, (method.passes or math.inf) * members)
        answers = method.answers(members)
        turns = math.ceil(budget / answers) * (len(setting.clients) if alone else 1)
        visits, evaluations = turns * answers, math.ceil(turns / first.run.evaluate_every)
        seconds = visits * (pace.visit + steps * pace.step) + evaluations * evaluation
        count = len(cells)
        found.append(
            Forecast(
                problem.name, run, count, count * visits, count * visits * steps, count * seconds, pace.step, evaluation
            )
        )
    return found


def total_seconds(plan: Plan, found: Sequence[Forecast], workers: int) -> float:
    """Upper bound of the total time, including workers that are idle at the end."""
    batches = len(plan.batches())
    workers = max(1, min(workers, batches))
    idle = math.ceil(batches / workers) * workers / batches if batches else 1.0
    return idle * sum(forecast.seconds for forecast in found)


def sentence(found: Sequence[Forecast], seconds: float, cores: int) -> str:
    """All forecasts in a sentence."""
    cells, communications, steps = (
        sum(getattr(forecast, name) for forecast in found) for name in ("cells", "communications", "steps")
    )
    fast, slow = (duration(pick(forecast.step for forecast in found)) for pick in (min, max))
    step = fast if fast == slow else f"{fast} to {slow}"
    evaluation = duration(max(forecast.evaluation for forecast in found))
    return (
        f"{cells} cells to run with {communications:,} communications and at most {steps:,} gradient steps, at most "
        f"about {duration(seconds)} on {cores} cores besides compiling "
        f"(a step takes {step}, an evaluation {evaluation})."
    )


def duration(seconds: float) -> str:
    """A readable duration, to about two digits."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.1g} ms" if seconds < 0.001 else f"{1000 * seconds:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s".replace(".0 s", " s") if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _pace(method: Method, setting: PreparedProblem, parts: Partition) -> Pace:
    """Times visits with few and many steps to the largest client; without a difference all time counts as steps."""
    largest = int(np.argmax(parts.sizes))
    engine, state = LocalEngine(parts), init(setting.prior, len(parts), aggregation=method.aggregation)
    q, factor = state.posterior, state.factors[largest]

    def visit(limit: int) -> tuple[float, int]:
        solver = dataclasses.replace(method.solver, max_steps=limit)
        engine.bind(dataclasses.replace(method, solver=solver).recipe(setting.model), setting.prior)
        task = Task(
            "",
            largest,
            parts.names[largest],
            setting.prior,
            q,
            factor,
            version=0,
            seed=0,
            updates=0,
            sent=0.0,
            hyper={},
        )
        began = time.perf_counter()
        reply = engine.answer(task)
        jax.block_until_ready(reply.delta)
        return time.perf_counter() - began, int(reply.info.steps)

    with engine.running():
        visit(1)
        (short, few), (long, many) = (min(visit(limit) for _ in range(2)) for limit in (SHORT, LONG))
    if many == few or long <= short:
        return Pace(0.0, long / many)
    step = (long - short) / (many - few)
    return Pace(max(short - few * step, 0.0), step)


def _evaluation(setting: PreparedProblem) -> float:
    """Times a compiled evaluation of a posterior: free energy and metrics."""
    q = setting.start(0)
    for _ in range(2):
        began = time.perf_counter()
        partition_free_energy(setting.model, setting.clients, setting.prior, q, 0)
        setting.metrics(Posterior(setting.model, q))
    return time.perf_counter() - began
