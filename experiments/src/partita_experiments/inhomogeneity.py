"""Forms of inhomogeneity (`sec:appen:inhomogeneity`): when is one shared model right, and when one of each client?"""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from partita_experiments import store
from partita_experiments.judge import clearly, spread
from partita_experiments.personal import ALONE, PARTLY, SHARED, WAYS, densities
from partita_experiments.presentation import printed
from partita_experiments.report import Heading, Part, Picture, ReportTable, Statement, Text
from partita_experiments.shifts import PARTS, clients
from partita_experiments.study import Drawing, Row, Rows, Study, load, save, write_report

SEEDS = 5
STYLES = {ALONE: ("#c8553d", "s", "white"), PARTLY: ("#1b6ca8", "o", "#1b6ca8")}
"""Colour of the edge, marker and filling: of models of each client's, and of those that share information."""
CLAIMS = {
    "Covariate shift alone: one shared model predicts better than one of each client": (
        ("covariate shift, model large enough", SHARED, ALONE),
        ("adult's occupations", SHARED, ALONE),
    ),
    "Covariate shift and a model too small: models of each client predict better than one shared": (
        ("covariate shift, model too small", ALONE, SHARED),
        ("covariate shift, model too small", PARTLY, SHARED),
    ),
    "Conditional shift: models of each client predict better than one shared": (
        ("conditional shift", ALONE, SHARED),
        ("conditional shift", PARTLY, SHARED),
        ("heart's hospitals", PARTLY, SHARED),
        ("epilepsy's patients", PARTLY, SHARED),
    ),
    "Conditional shift: it is still useful to share information": (
        ("conditional shift", PARTLY, ALONE),
        ("heart's hospitals", PARTLY, ALONE),
        ("epilepsy's patients", PARTLY, ALONE),
    ),
    "Generative models: those of each client are better under covariate shift as well": (
        ("p(x), one Gaussian", ALONE, SHARED),
        ("p(x), mixture of six", ALONE, SHARED),
        ("p(x) of heart's hospitals", ALONE, SHARED),
    ),
}
"""What the paper says, and the parts that show it: which way is to be better than which."""


def run(folder: Path, quick: bool, as_json: bool) -> None:
    """Measures what is missing, writes table, report and figure, and prints the statements, or JSON."""
    jax.config.update("jax_enable_x64", True)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / store.FILE
    rows = [row for row in (load(table) if table.exists() else []) if row["digest"] == STUDY.digest(row["part"])]
    there = {(row["part"], row["seed"]) for row in rows}
    parts = ["conditional shift"] if quick else list(PARTS)
    for part in parts:
        for seed in range(1 if quick else SEEDS):
            if (part, seed) not in there:
                rows += measured(part, seed)
                save(table, STUDY, rows)
    report = write_report(STUDY, table, folder)
    files = [str(table), *(str(folder / file) for file in report.files)]
    if as_json:
        told = [statement._asdict() for statement in report.statements]
        print(json.dumps({"experiment": STUDY.name, "statements": told, "files": files}, indent=2))
        return
    Console().print("\n".join([*printed(report), *files]), highlight=False, soft_wrap=True)


def measured(part: str, seed: int) -> list[Row]:
    """A row for each way and client: the mean log density of its held-out rows."""
    some = clients(part, seed)
    found = densities(PARTS[part]["model"], some, PARTS[part])
    return [
        STUDY.row(part, seed=seed, way=way, client=client.name, rows=client.train, log_density=float(value))
        for way, values in found.items()
        for client, value in zip(some, values, strict=True)
    ]


def by_way(rows: Rows, part: str) -> Mapping[str, Float[np.ndarray, "seeds clients"]]:
    """A part's measurements by the way of modelling."""
    found = {}
    for way in WAYS:
        some = [row for row in rows if (row["part"], row["way"]) == (part, way)]
        seeds = sorted({row["seed"] for row in some})
        if some:
            found[way] = np.array([[row["log_density"] for row in some if row["seed"] == seed] for seed in seeds])
    return found


def tell(rows: Rows) -> list[Part]:
    """The table of held-out densities, and the paper's statements."""
    there = [part for part in PARTS if any(row["part"] == part for row in rows)]
    grid = []
    for part in there:
        found = by_way(rows, part)
        best = np.argmax([found[way].mean(axis=0) for way in found], axis=0)
        wins = [f"{np.sum(best == place)}" if way in found else "" for place, way in enumerate(WAYS)]
        ways = [spread(found[way].mean(axis=1)) if way in found else "" for way in WAYS]
        learned = sorted({row["rows"] for row in rows if row["part"] == part})
        sizes = f"{learned[0]}" if len(learned) == 1 else f"{learned[0]} to {learned[-1]}"
        grid.append([part, f"{len(best)}", sizes, *ways, " / ".join(filter(None, wins))])
    parts: list[Part] = [
        Heading("Held-out log density, nats per row"),
        Text(
            "Mean over clients, ± sd over the seeds, each of which makes other rows or holds others out. The last "
            "column: for how many clients each way is the best."
        ),
        ReportTable(["part", "clients", "rows of each", *WAYS, "best for"], grid),
        Heading("The paper's statements"),
    ]
    for claim, shown in CLAIMS.items():
        parts += [_judged(rows, claim, *about) for about in shown if about[0] in there]
    return parts


def _judged(rows: Rows, claim: str, part: str, better: str, worse: str) -> Statement:
    found = by_way(rows, part)
    gap = (found[better] - found[worse]).mean(axis=1)
    return clearly(
        f"{claim} ({part}: {better} above {worse}, by more than 2 sd).",
        gap,
        0.0,
        f"{spread(gap)} above it.",
    )


def draw(rows: Rows) -> Figure:
    """A panel for each part: how far each client's held-out log density is from that of one shared model."""
    there = [part for part in PARTS if any(row["part"] == part for row in rows)]
    height = -(-len(there) // 3)
    figure = Figure(figsize=(10.5, 3.0 * height + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(height, 3, squeeze=False).flatten()
    for axis, part in zip(grid, there, strict=False):
        _panel(axis, by_way(rows, part), part)
    for axis in grid[len(there) :]:
        axis.set_visible(False)
    for axis in grid[::3]:
        axis.set_ylabel("held-out log density above that\nof one shared model, nats per row")
    handles = {label: handle for axis in grid for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle("Who differs how: each client's rows under a model of its own, or one that shares information")
    return figure


def _panel(axis: Axes, found: Mapping[str, np.ndarray], part: str) -> None:
    """Every client as a mark, its mean over the seeds; a bar for the mean over clients ± its sd over the seeds."""
    axis.axhline(0, color="black", linewidth=1, linestyle="--", label="one shared model")
    for place, (way, (colour, marker, filling)) in enumerate(STYLES.items()):
        if way not in found:
            continue
        above = found[way] - found[SHARED]
        each = np.sort(above.mean(axis=0))
        at = place + np.linspace(-0.3, 0.3, len(each))
        axis.plot(at, each, marker, color=colour, markerfacecolor=filling, markersize=4, label=way)
        mean = above.mean(axis=1)
        sd = mean.std(ddof=min(1, len(mean) - 1))
        axis.errorbar(place, mean.mean(), sd, color="black", marker="_", markersize=16, capsize=4, linewidth=1.5)
    ways = [way for way in STYLES if way in found]
    axis.set(title=part, xticks=range(len(ways)), xticklabels=ways, xlim=(-0.6, len(ways) - 0.4))
    axis.title.set_fontsize("medium")
    axis.grid(alpha=0.25, axis="y")


STUDY = Study(
    "inhomogeneity",
    "Forms of inhomogeneity",
    "Where clients differ in p(x), in p(y | x) or in both: is one shared model right, or one of each client, or models "
    "that share information (`sec:appen:inhomogeneity`, appendix D)?",
    PARTS,
    tell,
    (
        Drawing(
            Picture(
                "inhomogeneity.png",
                f"Every client as a mark, and the mean over clients ± sd over {SEEDS} seeds; above 0 is better than "
                "one shared model.",
            ),
            draw,
        ),
    ),
)
