"""How communications and time until arrival grow with the number of clients: numbers and figure."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita_experiments.config import Experiment
from partita_experiments.figure import Drawing, Style, hashed, save, styles
from partita_experiments.report import Picture
from partita_experiments.results import Results

NEAR = 1.0
"""How many nats below global VI's free energy a run has arrived."""
AXES = {"communications": "communications", "clock": "simulated time"}


class Arrival(NamedTuple):
    """When a run has arrived on a problem with so many clients, for every seed; infinite where it has not."""

    clients: int
    communications: Float[np.ndarray, " seeds"]
    clock: Float[np.ndarray, " seeds"]


class Growth(NamedTuple):
    """Arrivals by the kind of clients ("alike"), the run and its problems, which have ever more clients."""

    arrivals: Mapping[str, Mapping[str, list[Arrival]]]
    styles: Mapping[str, Style]

    @property
    def digest(self) -> str:
        """A hash of the numbers that are drawn."""
        return hashed(
            {
                f"{kind}, {run}": [[at.clients, at.communications.tolist(), at.clock.tolist()] for at in some]
                for kind, runs in self.arrivals.items()
                for run, some in runs.items()
            }
        )


def figures(experiment: Experiment, results: Results) -> list[Drawing]:
    """Communications and simulated time until arrival against the number of clients."""
    found = growth(results)
    seeds = max(len(results.of(problem, run)) for problem in results.problems for run in results.runs)
    caption = f"Until within {NEAR:g} nat of global VI, by the number of clients: medians over up to {seeds} seeds."
    draw = functools.partial(_draw, title=experiment.title, found=found)
    return [Drawing(Picture("clients.png", caption), found.digest, draw)]


def growth(results: Results) -> Growth:
    """The arrivals of all runs that are drawn; a problem is called after its clients, such as "30 clients alike"."""
    drawn = styles(results)
    arrivals: dict[str, dict[str, list[Arrival]]] = {}
    for problem in results.problems:
        runs = arrivals.setdefault(kind_of(problem), {})
        for run in [run for run in drawn if results.has(problem, run)]:
            reached = [results.reach(problem, run, 0.0, NEAR, by, "gap") for by in AXES]
            runs.setdefault(run, []).append(Arrival(len(results.clients[problem]), *reached))
    return Growth(arrivals, drawn)


def kind_of(problem: str) -> str:
    """What kind of clients a problem has: "alike" of "30 clients alike"."""
    return problem.partition(" clients ")[2] or problem


def _draw(path: Path, title: str, found: Growth) -> Figure:
    """A row of panels per kind of clients: medians over the seeds; runs that have not arrived have no point."""
    figure = Figure(figsize=(10, 3.3 * len(found.arrivals) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(found.arrivals), len(AXES), squeeze=False, sharex=True)
    for (kind, runs), row in zip(found.arrivals.items(), grid, strict=True):
        for axes, (by, ylabel) in zip(row, AXES.items(), strict=True):
            for run, some in runs.items():
                _line(axes, some, by, found.styles[run])
            axes.set(
                xscale="log",
                yscale="log",
                ylabel=ylabel,
                title=f"clients {kind}: until within {NEAR:g} nat of global VI",
            )
            axes.grid(alpha=0.25)
    for axes in grid[-1]:
        axes.set(xlabel="number of clients M")
    handles, labels = grid[0][0].get_legend_handles_labels()
    more = [pair for pair in zip(*grid[-1][0].get_legend_handles_labels(), strict=True) if pair[1] not in labels]
    handles, labels = handles + [handle for handle, _ in more], labels + [name for _, name in more]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title)
    save(figure, path, found.digest)
    return figure


def _line(axes: Axes, some: list[Arrival], by: str, style: Style) -> None:
    values = [getattr(arrival, by) for arrival in some]
    y = np.array([np.median(each) for each in values])
    x = np.array([arrival.clients for arrival in some])
    shown = np.isfinite(y)
    axes.plot(x[shown], y[shown], color=style.colour, linestyle=style.line, marker=style.marker, label=style.name)
