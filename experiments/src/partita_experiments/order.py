"""Does the posterior favour the client that was visited last (`sec:pvi:pvi_flavours`, `sec:experiments`)?"""

import functools
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita_experiments.config import Experiment
from partita_experiments.figure import Drawing, Style, hashed, label, legend, save, styles
from partita_experiments.images import client_summary
from partita_experiments.judge import clearly, spread
from partita_experiments.report import Heading, Part, Picture, ReportTable, Statement, Text
from partita_experiments.results import Results
from partita_experiments.store import Clients


def measured(results: Results, problem: str) -> list[str]:
    """The runs with scores of each client."""
    return [run for run in results.runs if any("by_recency" in cell["rows"][-1] for cell in results.of(problem, run))]


def by_recency(results: Results, problem: str, run: str) -> Float[np.ndarray, "seeds m"]:
    """Each seed's NLL on the rows of the client visited last, the one before, and so on.

    The mean over all evaluations at which everybody has been visited.
    """
    found = []
    for cell in results.of(problem, run):
        lists = [row["by_recency"] for row in cell["rows"]]
        everybody = max(map(len, lists))
        found.append(np.mean([some for some in lists if len(some) == everybody], axis=0))
    return np.array(found)


def page(results: Results, clients: Clients) -> list[Part]:
    """A table, and the paper's statement on whom the posterior favours."""
    parts: list[Part] = [*client_summary(clients)]
    for problem in results.problems:
        found = {run: by_recency(results, problem, run) for run in measured(results, problem)}
        if not found:
            continue
        members = next(iter(found.values())).shape[1]
        shown = [place for place in (0, 1, 2, 4, members - 1) if place < members]
        rows = [[label(run), *(spread(scores[:, place]) for place in shown)] for run, scores in found.items()]
        parts += [
            Heading(f"{problem}: NLL on clients' own training rows, by how many visits ago they were visited"),
            Text("Mean ± sd over the seeds; of each seed the mean over all visits since everybody was visited."),
            ReportTable(["method", *(_ago(place) for place in shown)], rows),
            Heading(f"{problem}: the paper's statement"),
            *(_favours(problem, run, scores) for run, scores in found.items()),
        ]
    return parts


def _ago(place: int) -> str:
    return "the last" if place == 0 else f"{place} before"


def _favours(problem: str, run: str, scores: Float[np.ndarray, "seeds m"]) -> Statement:
    gap = scores[:, 1:].mean(axis=1) - scores[:, 0]
    last = "the NLL on its rows is lower than on the others', by more than 2 sd."
    seen = f"{spread(gap)} below the others' mean; it is lower with {(gap > 0).sum()} of {len(gap)} seeds."
    return clearly(f"{problem}: {label(run)} favours the client visited last: {last}", gap, 0.0, seen)


def figures(experiment: Experiment, results: Results) -> list[Drawing]:
    """NLL on clients' own rows against how recently they were visited."""
    looks = styles(results)
    scores = {
        problem: {run: by_recency(results, problem, run).tolist() for run in measured(results, problem)}
        for problem in results.problems
    }
    seeds = max(len(some) for runs in scores.values() for some in runs.values())
    caption = (
        f"NLL on the training rows of each client, by how recently it was visited: mean and range over {seeds} seeds."
    )
    drawn = functools.partial(_draw, experiment.title, scores, looks)
    return [Drawing(Picture("order.png", caption), hashed(scores), drawn)]


def _draw(title: str, scores: dict[str, dict[str, list[list[float]]]], looks: dict[str, Style], path: Path) -> Figure:
    figure = Figure(figsize=(5 * len(scores), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    [grid] = figure.subplots(1, len(scores), squeeze=False)
    for axes, (problem, runs) in zip(grid, scores.items(), strict=True):
        for place, (run, some) in enumerate(runs.items()):
            values, style = np.array(some), looks[run]
            mean = values.mean(axis=0)
            ends = np.abs(np.array([values.min(axis=0), values.max(axis=0)]) - mean)
            about = {"color": style.colour, "linestyle": style.line or (0, (1, 1)), "marker": style.marker}
            axes.errorbar(np.arange(len(mean)) + 0.12 * place, mean, ends, capsize=3, label=style.name, **about)
        axes.set(title=problem, xlabel="visits since the client's own", ylabel="NLL on its training rows", yscale="log")
        axes.grid(alpha=0.25)
    handles, labels = grid[0].get_legend_handles_labels()
    legend(figure, handles, labels)
    figure.suptitle(title)
    save(figure, path, hashed(scores))
    return figure
