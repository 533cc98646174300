"""The demo: the three schedules of PVI on Adult, compared with global VI and with each client on its own."""

import dataclasses
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from partita import methods
from partita.cli.beginning import begin
from partita.cli.figure import draw
from partita.data import Partition, beta_kappa, datasets, split
from partita.data.table import Table
from partita.engines import LocalEngine
from partita.engines.base import Task
from partita.families import Family, FullGaussian, MeanFieldGaussian
from partita.io import atomic
from partita.io.wire import equal
from partita.local.client import Reply
from partita.local.solvers import Newton
from partita.models import LogisticRegression
from partita.results import metrics
from partita.results.posterior import Posterior
from partita.server.aggregation import check_damping
from partita.server.bound import partition_free_energy
from partita.server.method import Method
from partita.server.monitor import Monitor
from partita.server.run import Result, run

__all__ = ["SOLVER", "Alone", "Clients", "Settings", "run_demo"]

_SPLITS = {"A": (0.0, 0.0), "B": (0.7, -3.0)}
"""β and κ of the paper's two splits (`tab:uci_splits`)."""

SOLVER = Newton(tolerance=0.1)
"""Clients are visited again, so a loose tolerance is enough."""
_TOLERANCE = 1e-2
"""In nats: a run has arrived once every client's answer lies within so much of the posterior."""
_EVERY = 5
"""After how many answers free energy and metrics are computed, in runs that take in one at a time."""

_TITLES = {
    "global_vi": "global VI, pooled",
    "sequential": "sequential PVI",
    "synchronous": "synchronous PVI",
    "asynchronous": "asynchronous PVI",
    "alone_best": "alone, the best",
    "alone_mean": "alone, on average",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The user's options."""

    output: Path
    split: Literal["A", "B"] = "B"
    family: Literal["mean-field", "full"] = "full"
    communications: int = 90
    damping: float | None = None
    """A fixed one; otherwise it follows the free energy."""
    rows: int | None = None
    seed: int = 0


class Alone:
    """What clients find by themselves: their answers to the prior, with which most of them begin a run."""

    def __init__(self, names: Sequence[str]) -> None:
        self.locks = {name: threading.Lock() for name in names}
        self.replies: dict[str, Reply] = {}
        self.seconds: dict[str, float] = {}

    def posterior(self, name: str, prior: Family) -> Family:
        """q_k = p · Δ_k."""
        return prior * self.replies[name].delta.natural


class Clients(LocalEngine):
    """The clients of one of several runs; what they find by themselves is computed once for all runs."""

    def __init__(self, partition: Partition, speeds: Sequence[float], alone: Alone) -> None:
        super().__init__(partition, speeds)
        self.alone = alone

    def answer(self, task: Task) -> Reply:
        if not equal(task.posterior, task.prior):
            return super().answer(task)
        known, name = self.alone, task.name
        with known.locks[name]:
            if name not in known.replies:
                began = time.perf_counter()
                known.replies[name] = jax.device_get(super().answer(task))
                known.seconds[name] = time.perf_counter() - began
        return known.replies[name]


class _Demo:
    """The data, the model and the metrics."""

    def __init__(self, settings: Settings) -> None:
        data = datasets.adult()
        train = Table(data.train.x[: settings.rows], data.train.y[: settings.rows])
        self.settings, self.names = settings, data.names
        self.test = Table(jnp.asarray(data.test.x), data.test.y)
        self.clients = split(train, beta_kappa(np.asarray(train.y), 10, *_SPLITS[settings.split]), drop=True)
        self.pooled = self.clients.pooled()
        kind = MeanFieldGaussian if settings.family == "mean-field" else FullGaussian
        self.model, self.prior = LogisticRegression(), kind.standard_normal(len(data.names))
        self.speeds = [1.0, 2.0] * (len(self.clients) // 2)
        """Every other client is twice as fast."""
        self.by_themselves = Alone(self.clients.names)

    def metrics(self, posterior: Posterior) -> dict[str, float]:
        """Test negative log-likelihood and test error."""
        p, y = posterior.predict_proba(self.test.x), np.asarray(self.test.y)
        return {"nll": metrics.negative_log_likelihood(p, y), "error": metrics.error(p, y)}

    def compile(self) -> None:
        """Compiles all programs by runs with zero solver steps, of all rows and of clients at the same time."""
        idle, monitor = methods.synchronous(Newton(max_steps=0)), Monitor(metrics=self.metrics, progress=False)
        with ThreadPoolExecutor() as pool:
            idly = partial(run, idle, self.model, self.prior, rounds=1, monitor=monitor)
            list(pool.map(lambda parts: idly(partition=parts), (self.pooled, self.clients)))

    def pool(self) -> Result:
        """Global VI: the optimum on the pooled rows."""
        return self.fit(methods.sequential(), LocalEngine(self.pooled), 1)

    def fit(self, method: Method, engine: LocalEngine, communications: int, every: int = 1) -> Result:
        """Runs a method and records its metrics; several run at a time, so none shows a bar."""
        return run(
            method,
            self.model,
            self.prior,
            communications=communications,
            seed=self.settings.seed,
            tolerance=_TOLERANCE,
            monitor=Monitor(metrics=self.metrics, every=every, progress=False),
            engine=engine,
        )

    def alone(self, name: str) -> dict[str, Any]:
        """What a client finds by itself, once a run has asked it."""
        q, seconds = self.by_themselves.posterior(name, self.prior), self.by_themselves.seconds[name]
        free_energy = partition_free_energy(self.model, self.clients, self.prior, q, self.settings.seed)
        found = self.metrics(Posterior(self.model, q))
        return {"free_energy": free_energy, **found, "communications": 0, "seconds": seconds}


def run_demo(settings: Settings, as_json: bool) -> None:
    """Runs everything, writes the files, and prints a table or a JSON object."""
    begin()
    check_damping(settings.damping)
    settings.output.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    began = time.perf_counter()
    with console.status("Reading Adult and compiling …"):
        demo = _Demo(settings)
        ready = time.perf_counter()
        demo.compile()
    compiled = time.perf_counter()

    damped, budget = {"damping": settings.damping}, settings.communications
    schedules = {"sequential": {}, "synchronous": damped, "asynchronous": damped}
    chosen = {name: methods.named(name, solver=SOLVER, **about) for name, about in schedules.items()}
    with console.status("Fitting …"), ThreadPoolExecutor() as pool:
        running = {"global_vi": pool.submit(demo.pool)}
        for name, method in chosen.items():
            engine = Clients(demo.clients, demo.speeds, demo.by_themselves)
            running[name] = pool.submit(demo.fit, method, engine, budget, 1 if name == "synchronous" else _EVERY)
        results = {name: fit.result() for name, fit in running.items()}
        alone = list(pool.map(demo.alone, demo.clients.names))
    figures = {name: _figures(result) for name, result in results.items()} | _of_each(alone)
    fitted = time.perf_counter()

    report = {
        "methods": figures,
        "clients": dict(zip(demo.clients.names, demo.clients.sizes, strict=True)),
        "settings": {**dataclasses.asdict(settings), "output": str(settings.output)},
        "seconds": {"data": ready - began, "compilation": compiled - ready, "fitting": fitted - compiled},
        "files": _write(demo, results, figures),
        "caveat": results["sequential"].posterior.caveat(demo.names, "use --family full"),
    }
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _figures(result: Result) -> dict[str, Any]:
    last = next(row for row in reversed(result.history.rows) if "nll" in row)
    return {name: last[name] for name in ("free_energy", "nll", "error")} | {
        "communications": result.state.communications,
        "seconds": result.history.rows[-1]["seconds"],
        "status": result.status.value,
    }


def _of_each(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The best of the clients by themselves, and their average."""
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} | {"communications": 0}
    return {"alone_best": min(rows, key=lambda row: row["nll"]), "alone_mean": mean}


def _write(demo: _Demo, results: dict[str, Result], figures: dict[str, dict[str, Any]]) -> dict[str, str]:
    folder, posterior = demo.settings.output, results["sequential"].posterior
    names = {"figure": "demo.png", "posterior": "posterior.npz", "summary": "summary.csv"}
    files = {name: folder / file for name, file in names.items()}
    posterior.save(files["posterior"], demo.names)
    atomic.write_csv(files["summary"], posterior.summary(demo.names))
    histories = {_TITLES[name]: result.history for name, result in results.items() if name != "global_vi"}
    draw(files["figure"], histories, figures["global_vi"], figures["alone_best"])
    return {name: str(path) for name, path in files.items()}


def _print(report: dict[str, Any]) -> None:
    console, seconds = Console(), report["seconds"]
    split, rows = report["settings"]["split"], sum(report["clients"].values())
    grid = Grid(title=f"Adult, split {split}: ten clients with {rows:,} rows; NLL and error on test rows")
    grid.add_column("method")
    forms = {"free energy": ",.1f", "NLL": ".4f", "error": ".4f", "communications": ",", "seconds": ".1f"}
    for column in forms:
        grid.add_column(column, justify="right")
    for name, row in report["methods"].items():
        cells = (format(row[column.lower().replace(" ", "_")], form) for column, form in forms.items())
        grid.add_row(_TITLES[name], *cells)
    console.print(grid)
    console.print(f"Compilation took {seconds['compilation']:.1f} s, fitting {seconds['fitting']:.1f} s.")
    for name, path in report["files"].items():
        console.print(f"{name.capitalize()}: {path}", highlight=False, soft_wrap=True)
    if report["caveat"]:
        console.print(report["caveat"], highlight=False, markup=False, soft_wrap=True)
