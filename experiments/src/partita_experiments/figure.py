"""Figures in the paper's layout: test error and NLL against communications, mean ± sd over seeds, a line per run."""

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from partita_experiments.report import Picture
from partita_experiments.results import Curve, Results

STYLES = {
    "sequential": ("sequential PVI", "#1b6ca8", "-", "o"),
    "synchronous": ("synchronous PVI", "#c8553d", "--", "s"),
    "asynchronous": ("asynchronous PVI", "#3f7d20", "-.", "^"),
    "global_vi": ("global VI", "#222222", "-", ""),
    "stochastic_global_vi": ("stochastic global VI", "#8a8a8a", ":", ""),
    "streaming_vb": ("streaming VB", "#7a3e9d", (0, (5, 1, 1, 1, 1, 1)), "v"),
    "vcl": ("VCL", "#b8860b", "", "D"),
    "bcm_same": ("BCM (same)", "#0a7d7d", "", "P"),
    "bcm_split": ("BCM (split)", "#d1467f", "", "X"),
    "incremental_vi": ("incremental VI (ours)", "#e07b00", "-", "*"),
    "bayesian_admm": ("Bayesian ADMM", "#5b4636", (0, (8, 2)), "8"),
}
"""Name, colour, line and marker of each method; they also differ without colour."""

COLOURS = ("#1b6ca8", "#c8553d", "#3f7d20", "#7a3e9d", "#b8860b", "#0a7d7d", "#d1467f", "#8a8a8a")
LINES = ("-", "--", "-.", ":")
MARKERS = ("<", ">", "p", "h", "*", "d", "1", "2", "3", "4", "+", "x")
"""For runs without a style of their own; no method has one of these markers."""

ONE_PASS = ("vcl", "bcm_same", "bcm_split")
UNDRAWN = ("pooled", "alone")
"""Methods that do not communicate, and so have no curve."""
METRICS = {
    "error": "test error",
    "nll": "test NLL, nats per row",
    "pruned": "pruned parameters",
    "train_nll": "training NLL, nats per row",
    "gap": "nats of free energy below global VI",
}
FLOORS = {"gap": 0.01}
"""Metrics that are drawn by their logarithms, with mean and sd of these, and the smallest value that is told apart."""
DIGEST = "Numbers"
"""The name under which a figure's file carries the digest of its numbers."""
AXES = {
    "communications": "communications (one client, there and back)",
    "synchronous_steps": "gradient steps (the most among the clients of a round)",
    "clock": "simulated time (1: a visit of mean size at full speed)",
}


class Drawing(NamedTuple):
    """A figure to be drawn."""

    picture: Picture
    digest: str
    """A hash of its numbers, which its file carries, so that one of other results is found."""
    draw: Callable[[Path], Figure]


class Style(NamedTuple):
    """The label and the line style of a run."""

    name: str
    colour: str
    line: Any
    marker: str


def label(run: str) -> str:
    """How a run is called in tables and figures: "vcl, early stopping" is VCL, early stopping."""
    method, comma, rest = run.partition(",")
    others = {"pooled": "pooled rows", "alone": "clients alone, mean"}
    return (STYLES[method][0] if method in STYLES else others.get(method, method)) + comma + rest


def styles(results: Results, only: Sequence[str] | None = None) -> dict[str, Style]:
    """The style of every run that is drawn: first the methods as they are, in their own styles, then the others.

    A variant of a method that is drawn as well ("vcl, early stopping" beside "vcl") has its colour, and others have one
    that no method as it is has, as long as there are any.
    """
    runs = [run for run in results.runs if only is None or run in only]
    found = {run: Style(*STYLES[run]) for run in STYLES if run in runs}
    used = {style.colour for style in found.values()}
    free = [colour for colour in COLOURS if colour not in used] or COLOURS
    others = [run for run in runs if run not in found and results.methods[run] not in UNDRAWN]
    for index, run in enumerate(others):
        plain = found.get(run.partition(",")[0])
        colour = plain.colour if plain else free[index % len(free)]
        line = LINES[(2 + index + index // len(MARKERS)) % len(LINES)]
        found[run] = Style(label(run), colour, line, MARKERS[index % len(MARKERS)])
    return found


def draw(
    path: Path,
    results: Results,
    problems: Sequence[str],
    title: str,
    panels: Sequence[str] = ("error", "nll"),
    by: str = "communications",
    log: bool = False,
    only: Sequence[str] | None = None,
) -> Figure:
    """A row of panels per problem. The methods of one pass are points where they end, with their sd as a bar.

    Of all runs, or `only` some.
    """
    height = 3.1 * len(problems) + 0.9
    figure = Figure(figsize=(5 * len(panels), height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(problems), len(panels), squeeze=False)
    drawn = styles(results, only)
    for problem, row in zip(problems, grid, strict=True):
        runs = [run for run in drawn if results.has(problem, run)]
        for axes, metric in zip(row, panels, strict=True):
            for run in runs:
                curve = results.curve(problem, run, metric, by)
                if metric in FLOORS:
                    curve = curve._replace(values=np.maximum(curve.values, FLOORS[metric]))
                _line(axes, curve, drawn[run], results.methods[run] in ONE_PASS, metric in FLOORS)
            axes.set(ylabel=METRICS[metric], xscale="log", title=problem)
            ends = np.array([results.final(problem, run, metric).mean() for run in runs])
            _scale(axes, ends, (log and metric != "pruned") or metric in FLOORS)
            axes.grid(alpha=0.25)
            first, last = axes.get_xlim()
            if last < 100 * first:  # else labels of minor ticks would cover each other
                axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    for axes in grid[-1]:
        axes.set(xlabel=AXES[by])
    handles, labels = grid[0][0].get_legend_handles_labels()
    legend(figure, handles, labels)
    figure.suptitle(title)
    save(figure, path, digest(results, problems, panels, by, only))
    return figure


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below, with as many columns as its labels leave room for, five at most."""
    longest = max(map(len, labels), default=0)
    columns = int(np.clip(figure.get_figwidth() / (0.065 * longest + 0.65), 1, 5))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Figure, path: Path, numbers: str) -> None:
    """Writes a figure with the digest of its numbers."""
    figure.savefig(path, dpi=130, metadata={DIGEST: numbers})


def digest(
    results: Results,
    problems: Sequence[str],
    panels: Sequence[str],
    by: str = "communications",
    only: Sequence[str] | None = None,
) -> str:
    """A hash of the numbers that a figure of curves draws."""
    curves = {
        f"{problem}, {run}, {metric}": [part.tolist() for part in results.curve(problem, run, metric, by)]
        for problem in problems
        for run in styles(results, only)
        if results.has(problem, run)
        for metric in panels
    }
    return hashed(curves)


def hashed(numbers: Any) -> str:
    """A hash of numbers in lists and dicts."""
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]


def drawn(path: Path) -> str | None:
    """The digest that a figure's file carries, None if there is none."""
    try:
        with Image.open(path) as image:
            return image.info.get(DIGEST)
    except OSError:
        return None


def _line(axes: Axes, curve: Curve, style: Style, one_pass: bool, logarithms: bool) -> None:
    (x, values), (name, colour, line, marker) = curve, style
    if one_pass:
        final = values[:, -1]
        if not np.isfinite(final).all():  # ∞ cannot be drawn, but the run stays in the legend
            final = np.full(1, np.nan)
        axes.errorbar(
            x[-1],
            final.mean(),
            final.std(ddof=min(1, len(final) - 1)),
            color=colour,
            marker=marker,
            markersize=7,
            capsize=3,
            linestyle="",
            label=name,
        )
        return
    with warnings.catch_warnings():  # points before the first evaluation of any seed
        warnings.simplefilter("ignore", RuntimeWarning)
        values = np.log(values) if logarithms else values
        mean, sd = np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=min(1, len(values) - 1))
    low, mean, high = (np.exp(each) if logarithms else each for each in (mean - sd, mean, mean + sd))
    every = max(1, len(x) // 8)
    axes.plot(x, mean, color=colour, linestyle=line, marker=marker or None, markersize=4, markevery=every, label=name)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _scale(axes: Axes, ends: np.ndarray, log: bool) -> None:
    """Limits a linear axis to the range of final values, so that the prior's bad predictions do not dominate it."""
    ends = ends[np.isfinite(ends)]
    if log and (ends > 0).any():
        axes.set(yscale="log")
        return
    if not len(ends):
        return
    low, high = ends.min(), ends.max()
    room = max(high - low, 0.06 * high) or 1.0
    axes.set(ylim=(low - 0.15 * room, high + 0.35 * room))
