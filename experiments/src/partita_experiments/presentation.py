"""A report and its figures from stored cells: nothing is run, and the same cells give the same files."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.io.atomic import write_text
from partita_experiments import store
from partita_experiments.config import Experiment, file_name, load
from partita_experiments.figure import Drawing, digest, draw, drawn, label
from partita_experiments.report import Heading, Part, Picture, Report, ReportTable, Statement, Text, markdown, page
from partita_experiments.results import Results
from partita_experiments.runner import Plan
from partita_experiments.statements import FIGURES, PAGES


def from_table(name: str, table: Path, config: Path | None, output: Path | None) -> Report:
    """Writes the report of an experiment from its stored table, beside it or into another folder."""
    plan, stored = opened(name, table, config)
    return write_report(plan, stored.cells, stored.clients, output or table.parent)


def opened(name: str, table: Path, config: Path | None) -> tuple[Plan, store.Stored]:
    """A table, and the plan of the experiment with the problems and seeds that it has."""
    stored = store.load(table)
    if stored.experiment != name:
        raise InputError(f"{table} has results of {stored.experiment}, not of {name}: give the table of {name}.")
    experiment = load(name, config)
    if stored.smoke:
        experiment = experiment.smoke_version()
    kept = tuple(problem for problem in experiment.problems if problem.name in stored.clients)
    most = max((cell["seed"] for cell in stored.cells), default=-1) + 1
    experiment = dataclasses.replace(experiment, problems=kept, seeds=max(experiment.seeds, most))
    return Plan(experiment, table.parent, stored={store.key(cell): cell for cell in stored.cells}), stored


def write_report(plan: Plan, cells: Sequence[store.Cell], clients: store.Clients, folder: Path) -> Report:
    """Writes `report.md`, `report.html` and the figures of these cells into a folder."""
    experiment, results = plan.experiment, Results(in_order(plan, cells), clients)
    folder.mkdir(parents=True, exist_ok=True)
    drawings, parts = _drawings(experiment, results), _parts(plan, results, clients)
    for drawing in drawings:
        drawing.draw(folder / drawing.picture.file)
    write_text(folder / "report.md", markdown(experiment.title, parts))
    write_text(folder / "report.html", page(experiment.title, parts))
    return Report(parts, ("report.md", "report.html", *(drawing.picture.file for drawing in drawings)))


def outdated(name: str, folder: Path) -> list[str]:
    """The files beside a folder's table that do not tell what it does: the report, and figures by their digests."""
    plan, stored = opened(name, folder / store.FILE, None)
    experiment, results = plan.experiment, Results(in_order(plan, stored.cells), stored.clients)
    told = markdown(experiment.title, _parts(plan, results, stored.clients))
    found = ["report.md"] if (folder / "report.md").read_text(encoding="utf-8") != told else []
    drawings = _drawings(experiment, results)
    return found + [one.picture.file for one in drawings if drawn(folder / one.picture.file) != one.digest]


def _parts(plan: Plan, results: Results, clients: store.Clients) -> list[Part]:
    """What the report says."""
    experiment = plan.experiment
    found = PAGES[experiment.name](results, clients)
    if experiment.smoke:
        found = [part for part in found if not isinstance(part, Statement)]
    pictures = [drawing.picture for drawing in _drawings(experiment, results)]
    return [Text(experiment.question), *pictures, *found, Heading("The cells"), *_cells(plan, results)]


def in_order(plan: Plan, cells: Sequence[store.Cell]) -> list[store.Cell]:
    """The cells in the order of the plan, without those that it does not have."""
    found = {store.key(cell): cell for cell in cells}
    wanted = [(cell.problem.name, cell.run.curve, cell.seed) for cell in plan.cells()]
    return [found[key] for key in wanted if key in found]


def _drawings(experiment: Experiment, results: Results) -> list[Drawing]:
    """One figure per data set, as in the paper, per horizontal axis, and, where they are asked for, per method.

    An experiment may have figures of its own instead.
    """
    if experiment.name in FIGURES:
        return FIGURES[experiment.name](experiment, results)
    groups = dict[str, list[str]]()
    for problem in experiment.problems:
        if problem.name in results.problems:
            groups.setdefault(problem.data, []).append(problem.name)
    methods = dict.fromkeys(results.methods.values()) if experiment.by_method else (None,)
    return [
        _curves(experiment, results, data, problems, by, method)
        for (data, problems), by, method in itertools.product(groups.items(), experiment.by, methods)
    ]


def _curves(
    experiment: Experiment, results: Results, data: str, problems: list[str], by: str, method: str | None
) -> Drawing:
    """A figure of all runs on some problems, or of those of a method."""
    runs = [run for run in results.runs if method in (None, results.methods[run])]
    of = data if method is None else f"{data}, {label(method)}"
    name = of if by == "communications" else f"{of} by {by.replace('_', ' ')}"
    counts = [len(results.of(problem, run)) for problem in problems for run in runs]
    picture = Picture(f"{file_name(name)}.png", f"{name}: {_seeds([count for count in counts if count])}.")
    about: dict[str, Any] = {
        "results": results,
        "problems": problems,
        "panels": experiment.panels,
        "by": by,
        "only": runs,
    }
    title = f"{experiment.title}: {of}"
    return Drawing(picture, digest(**about), functools.partial(draw, **about, title=title, log=experiment.log_metrics))


def _seeds(counts: Sequence[int]) -> str:
    """How many seeds the runs of a figure have."""
    if max(counts) == 1:
        return "one seed"
    if min(counts) == max(counts):
        return f"mean ± sd over {min(counts)} seeds"
    return f"mean ± sd over the seeds that there are, {min(counts)} to {max(counts)} a run"


def _cells(plan: Plan, results: Results) -> list[Part]:
    """Which cells there are, with what versions they were made, and which are missing or stale."""
    rows = []
    for problem, run in itertools.product(results.problems, results.runs):
        cells = results.of(problem, run)
        if not cells:
            continue
        wanted = [cell for cell in plan.cells() if (cell.problem.name, cell.run.curve) == (problem, run)]
        settings = {cell.seed: plan.digest(cell) for cell in wanted}
        stale = [f"seed {cell['seed']}" for cell in cells if settings[cell["seed"]] != cell["digest"]]
        rows.append(
            [
                problem,
                run,
                f"{len(cells)} of {len(wanted)}",
                ", ".join(stale),
                ", ".join(sorted({cell["version"] for cell in cells})),
                f"{np.mean([cell['seconds'] for cell in cells]):.0f}",
            ]
        )
    whole = sum(cell["seconds"] for cell in results.cells)
    return [
        Text(
            f"{len(results.cells)} cells, {whole:.0f} s of one core in all. *Stale* are those whose settings are no "
            "longer those of the experiment; the next run makes them again."
        ),
        ReportTable(["problem", "run", "seeds", "stale", "version", "seconds"], rows),
    ]


def summary(experiment: Experiment, cells: Sequence[store.Cell], report: Report, folder: Path) -> dict[str, Any]:
    """The same for machines."""
    results = Results(cells)
    return {
        "experiment": experiment.name,
        "cells": len(cells),
        "final": {
            problem: {
                run: {metric: _finite(results.final(problem, run, metric)) for metric in ("nll", "error")}
                for run in results.runs
            }
            for problem in results.problems
        },
        "statements": [part._asdict() for part in report.statements],
        "files": {file: str(folder / file) for file in (store.FILE, *report.files)},
    }


def printed(report: Report) -> list[str]:
    """The statements, a line each."""
    return [f"{part.verdict.strip('*')}: {part.told}" for part in report.statements]


def _finite(values: np.ndarray) -> list[float | str]:
    """For JSON, which has no infinity."""
    return [float(value) if np.isfinite(value) else str(value) for value in values]
