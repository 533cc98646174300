"""Runs the cells of an experiment, problem × seed × method, each into a file of its own, in any number of processes.

A cell that has its file, or stands in the folder's table, is not run again, so that an experiment may be interrupted at
any point. A file is put in place by a rename. A result belongs to the settings, rows and program whose digests it
carries; one of others is stale. Compiled programs, and answers of long first visits, which cells share, are kept beside
the cells.
"""

import concurrent.futures.process
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from partita import __version__
from partita.engines.local import cores
from partita.errors import InputError
from partita.io.atomic import write_text
from partita.methods import named, settings_of
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.run import Result
from partita.server.run import run as run_method
from partita.storage.checkpoint import Checkpoint
from partita_experiments import store
from partita_experiments.config import Experiment, Problem, Run, file_name
from partita_experiments.first_visits import FirstVisits
from partita_experiments.problem import PreparedProblem, measure, nll_of, optimiser, prepare, solver, solver_settings

TIMEOUT = 10.0
"""Timeout in seconds for the pool to notice that its workers have ended."""

_FORMAT = 4
"""Increment when the server gives other results for the same settings, to mark the stored ones stale."""


class Cell(NamedTuple):
    """One run on one problem with one seed."""

    problem: Problem
    seed: int
    run: Run
    solver: str

    @property
    def pooled(self) -> bool:
        """Whether one client has all rows."""
        return self.run.method == "pooled"

    def path(self, folder: Path) -> Path:
        """Where its result belongs."""
        return folder / "cells" / file_name(self.problem.name) / str(self.seed) / f"{file_name(self.run.curve)}.json"


class Plan(NamedTuple):
    """What to run and where to put it."""

    experiment: Experiment
    folder: Path
    solver: str | None = None
    """A solver for all problems instead of each one's own; runs that name one keep it."""
    fingerprints: Mapping[str, str] = {}
    """A digest of each problem's data."""
    programs: Mapping[tuple[str, str, bool], str] = {}
    """A digest of the clients' program for each problem and solver, with pooled rows and without."""
    stored: Mapping[tuple[str, str, int], store.Cell] = {}
    """What the folder's table holds."""

    def cells(self) -> Iterator[Cell]:
        """All cells; the seeds of one problem follow one another, so that programs once compiled serve again."""
        for problem in self.experiment.problems:
            for seed in range(self.experiment.seeds):
                for run in [run for run in self.experiment.runs if run.serves(problem)]:
                    yield Cell(problem, seed, run, run.solver or self.solver or problem.solver)

    def digest(self, cell: Cell) -> str:
        """A digest of the settings that the cell's result depends on; of neither file names nor the version."""
        return _digest(
            self._clients(cell)
            | {
                "run": {**_given(cell.run), "name": ""},
                "seed": cell.seed,
                "slowness": self.experiment.slowness,
                "draws": self.experiment.draws,
            }
            | ({"measured": self.experiment.measured} if self.experiment.measured else {})
        )

    def digests(self, cell: Cell) -> dict[str, str]:
        """Of what the cell is a result: its settings, everybody's rows, and the clients' program."""
        return {
            "digest": self.digest(cell),
            "data": self.fingerprints.get(cell.problem.name, ""),
            "program": self.programs.get((cell.problem.name, cell.solver, cell.pooled), ""),
        }

    def clients_digest(self, cell: Cell) -> str:
        """A digest of the clients' data and program, independent of the method."""
        digests = self.digests(cell)
        return _digest(
            self._clients(cell) | {"pooled": cell.pooled, "data": digests["data"], "program": digests["program"]}
        )

    def _clients(self, cell: Cell) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "problem": {**dataclasses.asdict(cell.problem), "name": ""},
            "solver": solver_settings(self.experiment, cell.solver),
            "rows": self.experiment.quick.rows if self.experiment.smoke else None,
        }

    def done(self, cell: Cell) -> store.Cell | None:
        """The cell's result, if it exists, is complete, and is of these settings, rows and program."""
        found = self.found(cell)
        return found if found is not None and self.digests(cell).items() <= found.items() else None

    def found(self, cell: Cell) -> store.Cell | None:
        """The cell's newest result, stale or not, or None: its file, or what the table holds."""
        try:
            found: store.Cell = json.loads(cell.path(self.folder).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return self.stored.get((cell.problem.name, cell.run.curve, cell.seed))
        return found

    def missing(self) -> list[Cell]:
        """The cells that have no result yet."""
        return [cell for cell in self.cells() if self.done(cell) is None]

    def batches(self) -> list[list[Cell]]:
        """The cells that have no result yet, as workers take them.

        The methods on a problem with a seed are one batch, for they share compiled programs; a network's take long
        enough to be one each, but for smoke runs.
        """
        found: dict[tuple[str, int, str], list[Cell]] = {}
        for cell in self.missing():
            alone = cell.run.curve if cell.problem.model == "network" and not self.experiment.smoke else ""
            found.setdefault((cell.problem.name, cell.seed, alone), []).append(cell)
        return list(found.values())


def _given(run: Run) -> dict[str, Any]:
    """The settings of a run without what is left out, so that new settings leave older digests as they are.

    Neither are the problems that it is run on.
    """
    settings = {name: value for name, value in dataclasses.asdict(run).items() if value is not None}
    return {name: value for name, value in settings.items() if name != "problems"}


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


Report = Callable[[int, int, str], None]
"""Called with the number of finished cells, their total, and the last one's name."""


def execute(plan: Plan, workers: int | None, report: Report) -> list[store.Cell]:
    """The results of all cells, in order; runs those that are missing."""
    for name in {cell.solver for cell in plan.cells()}:
        solver(plan.experiment, name)
    cells, batches = list(plan.cells()), plan.batches()
    total = sum(map(len, batches))
    report(0, total, f"{len(cells) - total} cells were there already" if total < len(cells) else "")
    workers = min(workers or cores(), len(batches))
    done = 0
    for batch in _batches(plan, _interleaved(plan.experiment, batches, workers), workers):
        done += len(batch)
        last = batch[-1]
        what = last.run.curve if len(batch) == 1 else "all methods"
        report(done, total, f"{last.problem.name}, seed {last.seed}, {what}")
    return [result for cell in cells if (result := plan.found(cell)) is not None]


def _interleaved(experiment: Experiment, batches: list[list[Cell]], workers: int) -> list[list[Cell]]:
    """The batches in an order in which workers are at different problems: each then compiles what the others reuse."""
    names = [problem.name for problem in experiment.problems]
    place = {name: index for index, name in enumerate(names)}

    def turn(batch: list[Cell]) -> tuple[int, int, int]:
        own = place[batch[0].problem.name]
        return own // max(workers, 1), batch[0].seed, own

    return sorted(batches, key=turn)


def _batches(plan: Plan, batches: list[list[Cell]], workers: int) -> Iterator[list[Cell]]:
    """Runs batches of cells, each the methods on a problem with a seed, and gives each back when it is through."""
    if workers <= 1:
        jax.config.update("jax_enable_x64", True)
        for batch in batches:
            yield run_batch(plan, batch)
        return
    context = multiprocessing.get_context("spawn")
    places = context.Queue()
    for place in range(workers):
        places.put((place, workers))
    with concurrent.futures.ProcessPoolExecutor(workers, context, _init_worker, (places, plan.folder)) as pool:
        waiting = [pool.submit(run_batch, plan, batch) for batch in batches]
        processes = list(pool._processes.values())
        try:
            for future in concurrent.futures.as_completed(waiting):
                yield future.result()
        except BaseException as error:
            manager: Any = pool._executor_manager_thread
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
                process.join()
            if manager is not None:  # it also waits for the processes, and only one waiter gets their exit status
                manager.join(TIMEOUT)
            if isinstance(error, concurrent.futures.process.BrokenProcessPool):
                raise InputError(
                    "A worker was killed, perhaps for lack of memory: run again, with fewer --workers."
                ) from None
            raise


def _init_worker(places: Any, folder: Path) -> None:
    """Gives each worker cores of its own, where that can be done: two that share all cores wait for each other.

    A worker ends with the process that began it, however that ends, and leaves interrupts to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    place, workers = places.get()
    if hasattr(os, "sched_setaffinity"):
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, available[place::workers] or available)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@functools.lru_cache(maxsize=1)
def _prepared(experiment_and_problem: "_HashableByRepr") -> PreparedProblem:
    return prepare(*experiment_and_problem.contents)


class _HashableByRepr:
    """Makes unhashable objects hashable by their repr."""

    def __init__(self, *contents: Any) -> None:
        self.contents = contents
        self._text = repr(contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashableByRepr) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def run_batch(plan: Plan, cells: list[Cell]) -> list[Cell]:
    """Runs some cells of one problem and writes their files."""
    for cell in cells:
        setting = _prepared(_HashableByRepr(plan.experiment, cell.problem))
        rows, statuses, seconds = run_cell(plan, cell, setting)
        result = {
            **plan.digests(cell),
            "version": __version__,
            "jax": jax.__version__,
            "problem": cell.problem.name,
            "seed": cell.seed,
            "run": cell.run.curve,
            "method": cell.run.method,
            "settings": cell.run.settings,
            "statuses": statuses,
            "seconds": seconds,
            "rows": rows,
        }
        write_text(cell.path(plan.folder), json.dumps(result))
    return cells


def run_cell(plan: Plan, cell: Cell, setting: PreparedProblem) -> tuple[list[dict[str, Any]], list[str], float]:
    """The evaluated rows of a cell's history, its status, and its duration in seconds, over all resumed parts.

    For "alone" there are a row and an ending per client.
    """
    run, settings = cell.run, method_settings(plan, cell, setting)
    budget: dict[str, Any] = {
        "communications": run.communications,
        "seed": cell.seed,
        "monitor": Monitor(setting.metrics, run.evaluate_every, progress=False),
    }
    if run.method == "alone":
        method, data = named(run.named, **settings), (setting.model, setting.prior)
        results = [run_method(method, *data, setting.clients.only(name), **budget) for name in setting.clients.names]
        rows = [
            _last_evaluation(result) | {"client": name, "communications": 0}
            for name, result in zip(setting.clients.names, results, strict=True)
        ]
        return rows, [result.status.value for result in results], sum(map(_seconds, results))
    method = named(run.named, **settings)
    clients = setting.clients.pooled() if cell.pooled else setting.clients
    speeds = None if cell.pooled else setting.speeds
    checkpoint = cell.path(plan.folder).with_suffix(f".{plan.digest(cell)}.npz")
    result = run_method(
        method,
        setting.model,
        setting.prior,
        engine=FirstVisits(clients, speeds, plan.folder / "first-visits", plan.clients_digest(cell)),
        rules=Rules(early=run.early),
        store=Checkpoint(checkpoint, max(1, run.communications // (20 * method.answers(len(clients))))),
        **budget,
    )
    checkpoint.unlink(missing_ok=True)
    return _evaluated(result), [result.status.value], _seconds(result)


def method_settings(plan: Plan, cell: Cell, setting: PreparedProblem) -> dict[str, Any]:
    """The settings of the cell's method: the run's own, and what the problem has for all methods."""
    settings: dict[str, Any] = dict(cell.run.settings)
    accepted = settings_of(cell.run.named)
    if "solver" in accepted:
        settings["solver"] = solver(plan.experiment, cell.solver)
    if "learning_rate" in accepted:
        settings.setdefault("learning_rate", cell.problem.learning_rate)
    if "mixing" in accepted:  # of Bayesian ADMM, as Möllenhoff et al. (2025) have it
        settings = {"mixing": None, "step": 1.0} | settings
    if "optimiser" in settings:
        settings["optimiser"] = optimiser(settings["optimiser"])
    if "measure" in settings:
        settings["measure"] = measure(settings["measure"], setting)
    return settings | {"start": setting.start(cell.seed)}


def _seconds(result: Result) -> float:
    return float(result.history.rows[-1]["seconds"])


def _last_evaluation(result: Result) -> dict[str, Any]:
    return _stored_columns(next(row for row in reversed(result.history.rows) if "nll" in row))


def _evaluated(result: Result) -> list[dict[str, Any]]:
    """The rows of the history that were evaluated, with the clients' own metrics in the order of their last answers."""
    found, latest = [], list[str]()
    for row in result.history:
        latest = [*reversed(row["clients"]), *(name for name in latest if name not in row["clients"])]
        if "nll" in row:
            own = [row[nll_of(name)] for name in latest if nll_of(name) in row]
            found.append(_stored_columns(row) | _answerer(row) | ({"by_recency": own} if own else {}))
    return found


def _answerer(row: Mapping[str, Any]) -> dict[str, str]:
    """Whose answer a step was made of, if it was one client's."""
    return {"client": row["clients"][0]} if len(row["clients"]) == 1 else {}


def _stored_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The stored columns; infinity is stored as text, since JSON has none."""
    columns = (*store.NUMBERS, *(name for name in store.MEASURED if name in row))
    return {column: float(row[column]) if np.isfinite(row[column]) else str(row[column]) for column in columns}
