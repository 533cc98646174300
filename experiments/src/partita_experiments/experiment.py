"""Runs an experiment that compares methods, and writes its table, report and figures."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable

from partita.engines.local import cores
from partita.errors import InputError, unknown
from partita.methods import named
from partita_experiments import committed, store, study
from partita_experiments.config import NAMES, Experiment, Problem, load
from partita_experiments.estimate import Forecast, duration, forecasts, sentence, total_seconds
from partita_experiments.presentation import from_table, in_order, printed, summary, write_report
from partita_experiments.problem import PreparedProblem, fingerprint, prepare, sizes_and_labels
from partita_experiments.program import program
from partita_experiments.report import Report
from partita_experiments.runner import Plan, execute, method_settings


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
    """Prints a forecast, runs the missing cells, writes table, report and figures, and prints their paths, or JSON."""
    jax.config.update("jax_enable_x64", True)
    plan = _plan(settings)
    plan, clients, left = _prepared(plan, settings)
    if settings.plan:
        _print_plan(plan, left, settings, as_json)
        return
    _warn(plan, left, settings)
    plan.folder.mkdir(parents=True, exist_ok=True)
    cells = _with_progress(plan, settings.workers)
    before = _table(plan.folder)
    kept = store.Stored(plan.experiment.name, cells, clients, plan.experiment.smoke)
    store.save(plan.folder / store.FILE, store.merged([before, kept]) if before else kept)
    cells = in_order(plan, store.load(plan.folder / store.FILE).cells)  # as the table has them, with its digits
    report = write_report(plan, cells, clients, plan.folder)
    tell(plan.experiment, cells, report, plan.folder, as_json)


def report_experiment(name: str, table: Path, config: Path | None, output: Path | None, as_json: bool) -> None:
    """Writes the report of an experiment from its stored table alone, and prints where it is, or JSON."""
    if name in NAMES:
        report = from_table(name, table, config, output)
        tell(load(name, config), store.load(table).cells, report, output or table.parent, as_json)
        return
    written = study.write_report(committed.study_named(name), table, output or table.parent)
    _tell_written({table: written}, output, as_json)


def report_all(folder: Path, as_json: bool) -> None:
    """Writes the reports of all tables in a folder and below, each beside its table, and prints where they are."""
    tables = committed.tables(folder)
    if not tables:
        raise InputError(f"There is no {store.FILE} in this folder or below: go to one, or name an experiment.")
    _tell_written({table: committed.write(table) for table in tables}, None, as_json)


def _tell_written(reports: Mapping[Path, Report], output: Path | None, as_json: bool) -> None:
    """Prints the statements and files of reports, or a JSON object of them."""
    files = {
        table: [str((output or table.parent) / file) for file in report.files] for table, report in reports.items()
    }
    if as_json:
        told = {
            str(table): {"statements": [part._asdict() for part in report.statements], "files": files[table]}
            for table, report in reports.items()
        }
        print(json.dumps(told, indent=2))
        return
    console = Console()
    for table, report in reports.items():
        for line in (*printed(report), *files[table]):
            console.print(line, highlight=False, soft_wrap=True)


def merge_experiments(tables: Sequence[Path], output: Path) -> None:
    """Writes one table with the cells of several, such as those of several machines."""
    store.save(output, store.merged([store.load(table) for table in tables]))


def tell(experiment: Experiment, cells: Sequence[store.Cell], report: Report, folder: Path, as_json: bool) -> None:
    """Prints the statements and the files' paths, or one JSON object."""
    if as_json:
        print(json.dumps(summary(experiment, cells, report, folder), indent=2))
        return
    console = Console()
    for line in printed(report):
        console.print(line, highlight=False)
    console.print(f"{len(cells)} cells.")
    for file in (store.FILE, *report.files):
        console.print(f"{folder / file}", highlight=False, soft_wrap=True)


def _table(folder: Path) -> store.Stored | None:
    """The folder's table, if it has one."""
    path = folder / store.FILE
    return store.load(path) if path.exists() else None


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
    stored = _table(folder)
    results = {store.key(cell): cell for cell in stored.cells} if stored else {}
    return Plan(experiment, folder, settings.solver, stored=results)


def _prepared(plan: Plan, settings: Settings) -> tuple[Plan, dict[str, list[dict[str, Any]]], list[Forecast]]:
    """The plan with digests of its data, a table of clients per problem, and forecasts of the remaining work.

    Smoke runs are not timed, except those of networks. Only one problem's rows are in memory at a time.
    """
    experiment, clients, found = plan.experiment, {}, []
    for problem in experiment.problems:
        setting = prepare(experiment, problem)
        clients[problem.name] = sizes_and_labels(setting)
        plan = plan._replace(
            fingerprints={**plan.fingerprints, problem.name: fingerprint(setting)},
            programs={**plan.programs, **_programs(plan, problem, setting)},
        )
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


def _with_progress(plan: Plan, workers: int | None) -> list[store.Cell]:
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


def _programs(plan: Plan, problem: Problem, setting: PreparedProblem) -> dict[tuple[str, str, bool], str]:
    """The digest of the clients' program for each solver of a problem's cells, with pooled rows and without."""
    found: dict[tuple[str, str, bool], str] = {}
    for cell in plan.cells():
        about = (problem.name, cell.solver, cell.pooled)
        if cell.problem == problem and about not in found:
            method = named(cell.run.named, **method_settings(plan, cell, setting))
            rows = setting._replace(clients=setting.clients.pooled()) if cell.pooled else setting
            found[about] = program(rows, method)
    return found
