"""Figures in the paper's layout: test error and NLL against communications, mean ± sd over seeds, a line per method."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita.experiments.results import Results

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
}
"""Name, colour, line and marker of each method: to be told apart without colour, too."""

ONE_PASS = ("vcl", "bcm_same", "bcm_split")
METRICS = {"error": "test error", "nll": "test NLL, nats per row"}


def label(method: str) -> str:
    """How a method is called in tables and figures."""
    return STYLES[method][0] if method in STYLES else {"pooled": "pooled rows", "alone": "clients alone, mean"}[method]


def draw(path: Path, results: Results, problems: Sequence[str], title: str) -> Figure:
    """A row of two panels per problem. The methods of one pass are points where they end, with their sd as a bar."""
    height = 3.1 * len(problems) + 0.9
    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(problems), 2, squeeze=False)
    for problem, row in zip(problems, grid, strict=True):
        for axes, metric in zip(row, METRICS, strict=True):
            for method in STYLES:
                if results.has(problem, method):
                    _line(axes, results, problem, method, metric)
            _scale(axes, results, problem, metric)
            axes.set(ylabel=METRICS[metric], xscale="log", title=problem)
            axes.grid(alpha=0.25)
    for axes in grid[-1]:
        axes.set(xlabel="communications (one client, there and back)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    return figure


def _line(axes: Axes, results: Results, problem: str, method: str, metric: str) -> None:
    name, colour, line, marker = STYLES[method]
    x, values = results.curve(problem, method, metric)
    if method in ONE_PASS:
        final = values[:, -1]
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
        mean, sd = np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=min(1, len(values) - 1))
    every = max(1, len(x) // 8)
    axes.plot(x, mean, color=colour, linestyle=line, marker=marker or None, markersize=4, markevery=every, label=name)
    axes.fill_between(x, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)


def _scale(axes: Axes, results: Results, problem: str, metric: str) -> None:
    """Shows where the methods end, and not how bad a prior's predictions are."""
    methods = [method for method in STYLES if results.has(problem, method)]
    ends = np.array([results.curve(problem, method, metric).values[:, -1].mean() for method in methods])
    ends = ends[np.isfinite(ends)]
    low, high = ends.min(), ends.max()
    room = max(high - low, 0.06 * high)
    axes.set(ylim=(low - 0.15 * room, high + 0.35 * room))
