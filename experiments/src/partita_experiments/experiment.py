"""Runs an experiment that compares methods, and writes its table, figures and report."""

import dataclasses
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable

from partita import __version__
from partita.engines.local import cores
from partita.errors import unknown
from partita.io.atomic import write_text
from partita_experiments.config import file_name, load
from partita_experiments.estimate import Forecast, duration, forecasts, sentence, total_seconds
from partita_experiments.figure import draw
from partita_experiments.problem import fingerprint, prepare, sizes_and_labels
from partita_experiments.report import Part, Picture, Statement, Text, markdown, page
from partita_experiments.results import Results
from partita_experiments.runner import Plan, execute
from partita_experiments.statements import PAGES


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    name: str
    output: Path | None = None
    config: Path | None = None
    data: str | None = None
    solver: str | None = None
    seeds: int | None = None
    workers: int | None = None
    problems: tuple[str, ...] = ()
    quick: bool = False
    plan: bool = False


def run_experiment(settings: Settings, as_json: bool) -> None:
    """Prints a forecast, runs the missing cells, writes the files, and prints their paths, or JSON."""
    jax.config.update("jax_enable_x64", True)
    plan = _plan(settings)
    experiment, folder = plan.experiment, plan.folder
    began = time.perf_counter()
    plan, clients, left = _prepared(plan, settings)
    if settings.plan:
        _print_plan(plan, left, settings, as_json)
        return
    _warn(plan, left, settings)
    folder.mkdir(parents=True, exist_ok=True)
    cells = _with_progress(plan, settings.workers)
    results = Results(cells)
    write_text(folder / "results.csv", results.table())
    seconds = time.perf_counter() - began

    pictures = _figures(plan, results)
    about = _about(settings, seconds, sum(cell["seconds"] for cell in cells), experiment.seeds)
    found = PAGES[experiment.name](results, clients)
    if experiment.smoke:
        found = [part for part in found if not isinstance(part, Statement)]
    parts: list[Part] = [Text(experiment.question), Text(about), *pictures, *found]
    write_text(folder / "report.md", markdown(experiment.title, parts))
    write_text(folder / "report.html", page(experiment.title, parts))
    files = ["results.csv", "report.md", "report.html", *(picture.file for picture in pictures)]
    statements = [part for part in parts if isinstance(part, Statement)]
    if as_json:
        summary: dict[str, Any] = {
            "experiment": experiment.name,
            "seconds": seconds,
            "cells": len(cells),
            "clients": clients,
            "final": {
                problem: {
                    run: {metric: _finite(results.final(problem, run, metric)) for metric in ("nll", "error")}
                    for run in results.runs
                }
                for problem in results.problems
            },
            "statements": [{"text": part.text, "holds": part.holds, "seen": part.seen} for part in statements],
            "files": {file: str(folder / file) for file in files},
        }
        print(json.dumps(summary, indent=2))
        return
    console = Console()
    for part in statements:
        console.print(f"{part.verdict.strip('*')}: {part.text} Seen: {part.seen}", highlight=False)
    console.print(f"{len(cells)} cells, {seconds:.0f} s.")
    for file in files:
        console.print(f"{folder / file}", highlight=False, soft_wrap=True)


def _plan(settings: Settings) -> Plan:
    experiment = load(settings.name, settings.config)
    if settings.quick:
        experiment = experiment.smoke_version()
    if settings.seeds is not None:
        experiment = dataclasses.replace(experiment, seeds=settings.seeds)
    if settings.problems:
        known = {problem.name: problem for problem in experiment.problems}
        for name in settings.problems:
            if name not in known:
                raise unknown("problem", name, known)
        experiment = dataclasses.replace(experiment, problems=tuple(known[name] for name in settings.problems))
    if settings.data is not None:
        if settings.data not in experiment.alternatives:
            raise unknown(f"other data set for {settings.name}", settings.data, experiment.alternatives or ("none",))
        problems = [dataclasses.replace(problem, data=settings.data) for problem in experiment.problems]
        experiment = dataclasses.replace(experiment, problems=tuple(problems))
    parts = ["partita-experiment", settings.name, settings.data, settings.solver, *settings.problems]
    parts += ["quick" if settings.quick else None]
    folder = settings.output or Path("-".join(part.replace(" ", "-") for part in parts if part))
    return Plan(experiment, folder, settings.solver)


def _prepared(plan: Plan, settings: Settings) -> tuple[Plan, dict[str, list[dict[str, Any]]], list[Forecast]]:
    """The plan with digests of its data, a table of clients per problem, and forecasts of the remaining work.

    Smoke runs are not timed, except those of networks. Only one problem's rows are in memory at a time.
    """
    experiment, clients, found = plan.experiment, {}, []
    for problem in experiment.problems:
        setting = prepare(experiment, problem)
        clients[problem.name] = sizes_and_labels(setting)
        plan = plan._replace(fingerprints={**plan.fingerprints, problem.name: fingerprint(setting)})
        if settings.plan or problem.model == "network" or not experiment.smoke:
            found += forecasts(plan, problem, setting)
    return plan, clients, found


def _warn(plan: Plan, left: list[Forecast], settings: Settings) -> None:
    """Prints a forecast on stderr if the run may be long or has networks."""
    seconds = total_seconds(plan, left, settings.workers or cores())
    network = any(problem.model == "network" for problem in plan.experiment.problems)
    if left and (network or seconds > 60):
        Console(stderr=True).print(sentence(left, seconds, cores()), highlight=False, soft_wrap=True)


def _print_plan(plan: Plan, left: list[Forecast], settings: Settings, as_json: bool) -> None:
    """Prints what is left to do, run by run."""
    seconds = total_seconds(plan, left, settings.workers or cores())
    if as_json:
        runs = [forecast._asdict() for forecast in left]
        summary = {"experiment": plan.experiment.name, "cores": cores(), "seconds": seconds, "runs": runs}
        print(json.dumps(summary, indent=2))
        return
    console = Console()
    if not left:
        console.print(f"Nothing is left to run: {len(list(plan.cells()))} cells are there.", highlight=False)
        return
    for problem in dict.fromkeys(forecast.problem for forecast in left):
        grid = RichTable("run", "cells", "communications", "steps at most", "time at most", title=problem)
        for column in grid.columns[1:]:
            column.justify = "right"
        for forecast in left:
            if forecast.problem == problem:
                numbers = (forecast.cells, forecast.communications, forecast.steps)
                grid.add_row(forecast.run, *(f"{number:,}" for number in numbers), duration(forecast.seconds))
        console.print(grid)
    console.print(sentence(left, seconds, cores()), highlight=False, soft_wrap=True)


def _with_progress(plan: Plan, workers: int | None) -> list[dict[str, Any]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(plan.experiment.name, total=None)

        def report(done: int, total: int, last: str) -> None:
            bars.update(task, completed=done, total=total, description=last or plan.experiment.name)
            if not console.is_terminal and last:
                console.print(f"{done} of {total} cells: {last}", highlight=False)

        try:
            return execute(plan, workers, report)
        except KeyboardInterrupt:
            console.print("Interrupted. Run the same command to resume.")
            raise


def _figures(plan: Plan, results: Results) -> list[Picture]:
    """One figure per data set, as in the paper, and per horizontal axis."""
    experiment, pictures = plan.experiment, []
    shown = "one seed" if experiment.seeds == 1 else f"mean ± sd over {experiment.seeds} seeds"
    groups: dict[str, list[str]] = {}
    for problem in experiment.problems:
        groups.setdefault(problem.data, []).append(problem.name)
    for (data, problems), by in itertools.product(groups.items(), experiment.by):
        name = data if by == "communications" else f"{data} by {by.replace('_', ' ')}"
        file = f"{file_name(name)}.png"
        title = f"{experiment.title}: {data}"
        draw(plan.folder / file, results, problems, title, experiment.panels, by, experiment.log_metrics)
        pictures.append(Picture(file, f"{name}: {shown}."))
    return pictures


def _finite(values: np.ndarray) -> list[float | str]:
    """For JSON, which has no infinity."""
    return [float(value) if np.isfinite(value) else str(value) for value in values]


def _about(settings: Settings, seconds: float, work: float, seeds: int) -> str:
    chosen = {"data": settings.data, "solver": settings.solver, "config": settings.config, "seeds": settings.seeds}
    command = " ".join(
        ["partita-experiment", settings.name]
        + [f"--{key} {value}" for key, value in chosen.items() if value]
        + [f'--problem "{name}"' for name in settings.problems]
        + (["--quick"] if settings.quick else [])
    )
    return (
        f"`{command}`, {seeds} seed{'s' * (seeds > 1)}, partita {__version__}, JAX {jax.__version__}, "
        f"{platform.machine()} with {cores()} cores: this run took {seconds:.0f} s; "
        f"all cells together {work:.0f} s of one core."
    )
