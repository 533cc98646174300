"""How many local steps a visit is to have (`sec:optim:offtheshelf`, `sec:conclusion`): communications against steps."""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita_experiments.config import Experiment
from partita_experiments.figure import AXES, STYLES, Drawing, Style, hashed, label, legend, save
from partita_experiments.images import at_most_two_labels, client_summary
from partita_experiments.judge import LEAST, UNREACHED, clearly, count, lacking, spread
from partita_experiments.report import Heading, Part, Picture, ReportTable, Statement, Text
from partita_experiments.results import Results
from partita_experiments.store import Clients

LEVELS = (0.8, 0.4, 0.2)
"""Test NLLs, in nats per row, at which communications are counted."""
LEVEL = 0.4
"""The one that is drawn and judged."""
FEW = 10
"""The number of steps of a visit that is compared with visits to convergence; one that has to stop has fewer."""


class Visits(NamedTuple):
    """A run, and how many gradient steps its visits had on average."""

    run: str
    steps: float


class Series(NamedTuple):
    """The runs of one schedule, from the shortest visits to the longest."""

    style: Style
    runs: list[Visits]


def series(results: Results, problem: str) -> list[Series]:
    """Runs of one method and damping belong together."""
    found: dict[tuple[str, float | None], list[Visits]] = {}
    for run in results.runs:
        if results.has(problem, run):
            last = [cell["rows"][-1] for cell in results.of(problem, run)]
            steps = float(np.mean([row["gradient_steps"] / row["communications"] for row in last]))
            of = (results.methods[run], results.setting(run, "damping"))
            found.setdefault(of, []).append(Visits(run, steps))
    return [
        Series(_style(method, damping), sorted(runs, key=lambda visits: visits.steps))
        for (method, damping), runs in found.items()
    ]


def _style(method: str, damping: float | None) -> Style:
    """Synchronous PVI whose damping follows the free energy has the style that asynchronous PVI has elsewhere."""
    if damping is None:
        return Style(f"{label(method)}, adaptive ρ", *STYLES["asynchronous"][1:])
    return Style(f"{label(method)}, ρ = {damping:g}", *STYLES[method][1:])


def reached(results: Results, problem: str, run: str, by: str, level: float = LEVEL) -> Float[np.ndarray, " seeds"]:
    """When each seed's test NLL first is at the level."""
    return results.first(problem, run, level, "nll", by)


def page(results: Results, clients: Clients) -> list[Part]:
    """Tables, and the paper's statements on the length of visits."""
    parts: list[Part] = [*client_summary(clients)]
    for problem in results.problems:
        found = series(results, problem)
        parts += [
            Heading(f"{problem}: communications until the test NLL first is at a level"),
            Text("Medians over the seeds; ∞: not within the budget by half of them. Steps are a visit's, on average."),
            _table(results, problem, found),
            Heading(f"{problem}: the paper's statements"),
        ]
        parts += [_saves(results, problem, some) for some in found if len(some.runs) > 1]
        if at_most_two_labels(clients, problem):
            parts += [part for some in found for part in _few_help(results, problem, some)]
    return parts


def _table(results: Results, problem: str, found: Sequence[Series]) -> ReportTable:
    header = ["schedule", "steps", "budget", *(f"to {level:g}" for level in LEVELS), f"steps in rounds to {LEVEL:g}"]
    rows = []
    for style, runs in found:
        for run, steps in runs:
            budget = results.of(problem, run)[0]["rows"][-1]["communications"]
            arrived = [
                count(float(np.median(reached(results, problem, run, "communications", level)))) for level in LEVELS
            ]
            in_rounds = count(float(np.median(reached(results, problem, run, "synchronous_steps"))))
            ends = [spread(results.final(problem, run, metric)) for metric in ("nll", "error")]
            rows.append([style.name, f"{steps:.0f}", f"{budget:.0f}", *arrived, in_rounds, *ends])
    return ReportTable([*header, "NLL at the end", "error at the end"], rows)


def _saves(results: Results, problem: str, some: Series) -> Statement:
    """Judged with three seeds or more; a run that is not there counts only if it was allowed what one step needs."""
    arrived = [float(np.median(reached(results, problem, run, "communications"))) for run, _ in some.runs]
    budgets = [results.of(problem, run)[0]["rows"][-1]["communications"] for run, _ in some.runs]
    fewer = sum(number < arrived[0] for number in arrived[1:])
    undecided = sum(number >= arrived[0] > budget for number, budget in zip(arrived[1:], budgets[1:], strict=True))
    half = (len(arrived) - 1) / 2
    holds = True if fewer > half else None if fewer + undecided > half else False
    seeds = min(len(results.of(problem, run)) for run, _ in some.runs)
    seen = ", ".join(
        f"{count(number)} of {budget:.0f} with {steps:.0f}"
        for number, budget, (_, steps) in zip(arrived, budgets, some.runs, strict=True)
    )
    return Statement(
        f"{problem}: {some.style.name}: of the longer visits more than half reach a test NLL of {LEVEL:g} with fewer "
        "communications than visits of one step.",
        holds if seeds >= LEAST else None,
        f"communications of those allowed by steps a visit: {seen}.",
        lacking(seeds) or ("" if holds is not None else UNREACHED),
    )


def _few_help(results: Results, problem: str, some: Series) -> list[Part]:
    few = [run for run, steps in some.runs if abs(steps - FEW) < 1]
    longest = some.runs[-1]
    if not few or longest.steps <= FEW:
        return []
    gap = results.final(problem, longest.run) - results.final(problem, few[0])
    end = f"visits of {FEW} steps end at a lower test NLL than visits to convergence, by more than 2 sd."
    return [clearly(f"{problem}: {some.style.name}: {end}", gap, 0.0, f"{spread(gap)} below it.")]


def figures(experiment: Experiment, results: Results) -> list[Drawing]:
    """Communications, and steps in rounds, to the level against the steps of a visit."""
    points = {problem: _points(results, problem) for problem in results.problems}
    counts = [len(results.of(problem, run)) for problem in results.problems for run in results.runs]
    most, least = max(counts), min(number for number in counts if number)
    seeds = f"{most}" if most == least else f"{least} to {most}"
    caption = (
        f"Communications and gradient steps until the test NLL first is {LEVEL:g}, by steps a visit: medians and "
        f"range over the {seeds} seeds. At the upper edge, hollow: not within the budget by half of them."
    )
    return [Drawing(Picture("steps.png", caption), hashed(points), functools.partial(_draw, experiment.title, points))]


Points = list[tuple[str, list[float], dict[str, list[list[float]]]]]
"""For each schedule its name, the steps of its visits, and by each axis when the seeds are there."""


def _points(results: Results, problem: str) -> Points:
    return [
        (
            some.style.name,
            [steps for _, steps in some.runs],
            {by: [reached(results, problem, run, by).tolist() for run, _ in some.runs] for by in AXES},
        )
        for some in series(results, problem)
    ]


LOOKS = (("#1b6ca8", "-", "o"), ("#c8553d", "--", "s"), ("#3f7d20", "-.", "^"))
"""Colour, line and marker of the schedules in turn."""


def _draw(title: str, points: dict[str, Points], path: Path) -> Figure:
    figure = Figure(figsize=(10, 3.6 * len(points) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(points), len(AXES), squeeze=False, sharex=True)
    for (problem, found), row in zip(points.items(), grid, strict=True):
        for axes, by in zip(row, AXES, strict=True):
            finite = [v for _, _, arrived in found for seeds in arrived[by] for v in seeds if np.isfinite(v)]
            top = 2 * max(finite, default=1.0)
            for (name, steps, arrived), (colour, line, marker) in zip(found, itertools.cycle(LOOKS), strict=False):
                middle = np.array([np.median(seeds) for seeds in arrived[by]])
                there = np.isfinite(middle)
                ends = np.array([[min(seeds), min(max(seeds), top)] for seeds in arrived[by]])
                x = np.array(steps)
                about = {"color": colour, "linestyle": line, "marker": marker, "markersize": 6}
                bars = np.abs(ends[there].T - middle[there])
                axes.errorbar(x[there], middle[there], bars, capsize=3, label=name, **about)
                axes.plot(
                    x[~there], np.full((~there).sum(), top), color=colour, marker=marker, mfc="white", linestyle=""
                )
            axes.set(xscale="log", yscale="log", title=problem, ylabel=AXES[by].replace(" (", "\n("))
            axes.grid(alpha=0.25)
    for axes in grid[-1]:
        axes.set(xlabel="gradient steps a visit")
    handles, labels = grid[0][0].get_legend_handles_labels()
    legend(figure, handles, labels)
    figure.suptitle(title)
    save(figure, path, hashed(points))
    return figure
