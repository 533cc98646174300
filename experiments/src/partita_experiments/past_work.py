"""Drawings of past work: which methods partitioned VI becomes, and where each stands."""

import re
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partita.io.atomic import write

PAGE = Path(__file__).parents[3] / "docs" / "past-work.md"
GRANULARITY = ("M = 1", "M ≥ 1", "M > 1", "one pass")
OPTIMISATION = (
    "analytic",
    "fixed point",
    "natural gradient",
    "gradient",
    "stochastic fixed point",
    "stochastic natural gradient",
    "stochastic gradient",
)
MARKS = {"conjugate": ("o", "white"), "both": ("s", "#999999"), "other": ("^", "black")}
CASES = {
    "global VI": "one client\nwith all rows",
    "local VI": "a factor for each\nrow or group",
    "online VI": "each client visited once,\nnothing divided out",
    "stochastic VI": "one factor for all\nclients, t^M",
    "power EP": "moments of tilted\ndensities, α > 0",
}
"""What partitioned VI becomes, and with what."""


class Work(NamedTuple):
    """A row of the table."""

    name: str
    granularity: str
    optimisation: str
    models: str


def works(page: Path = PAGE) -> list[Work]:
    """The rows of the table of past work."""
    rows = re.findall(
        r"^\| ([^|*]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page.read_text("utf-8"), re.MULTILINE
    )
    return [Work(*row) for row in rows if row[1] in GRANULARITY]


def draw(path: Path) -> None:
    """Past work by granularity and optimisation (`fig:past_work`)."""
    figure = Figure(figsize=(10.5, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    found = works()
    for column, granularity in enumerate(GRANULARITY):
        for row, optimisation in enumerate(OPTIMISATION):
            here = [work for work in found if (work.granularity, work.optimisation) == (granularity, optimisation)]
            for place, work in enumerate(here):
                height = row + (place + 0.5) / max(len(here), 4) - 0.45
                mark, fill = MARKS[work.models]
                axis.plot(column - 0.4, height, mark, color="black", markerfacecolor=fill, markersize=7)
                axis.text(column - 0.33, height, work.name, va="center", fontsize=9)
    for name, (mark, fill) in MARKS.items():
        label = "conjugate and other models" if name == "both" else f"{name} models"
        axis.plot([], [], mark, color="black", markerfacecolor=fill, label=label)
    axis.set(xlim=(-0.5, len(GRANULARITY) - 0.5), ylim=(len(OPTIMISATION) - 0.5, -0.5))
    axis.set_xticks(range(len(GRANULARITY)), GRANULARITY)
    axis.set_yticks(range(len(OPTIMISATION)), [name.replace("stochastic ", "stochastic\n") for name in OPTIMISATION])
    axis.set(xlabel="granularity", ylabel="optimisation")
    for edge in range(1, len(GRANULARITY)):
        axis.axvline(edge - 0.5, color="#bbbbbb", linewidth=0.8)
    for edge in range(1, len(OPTIMISATION)):
        axis.axhline(edge - 0.5, color="#bbbbbb", linewidth=0.8)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.07), ncols=3, frameon=False)
    save(figure, path)


def draw_cases(path: Path) -> None:
    """The schemes that partitioned VI encompasses (`fig:pvi_special_cases`)."""
    figure = Figure(figsize=(11.5, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.set_axis_off()
    middle = (len(CASES) - 1) / 2
    _box(axis, middle, 1.0, "partitioned VI\nq = p · t_1 · … · t_M")
    for place, (name, condition) in enumerate(CASES.items()):
        _box(axis, place, 0.0, name)
        axis.annotate(
            "",
            (place, 0.13),
            (middle + (place - middle) * 0.25, 0.84),
            arrowprops={"arrowstyle": "->", "color": "#555555"},
        )
        across = middle + (place - middle) * 0.72
        axis.text(across, 0.43, condition, ha="center", va="center", fontsize=9, backgroundcolor="white")
    axis.text(
        middle,
        -0.32,
        "α → 0 leads from power EP to local VI, and from its form with one factor to stochastic VI",
        ha="center",
        fontsize=9,
        style="italic",
    )
    axis.set(xlim=(-0.6, len(CASES) - 0.4), ylim=(-0.4, 1.25))
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure."""
    write(path, lambda file: figure.savefig(file, dpi=130, format="png"))


def _box(axis: Axes, x: float, y: float, text: str) -> None:
    frame = {"boxstyle": "round,pad=0.5", "facecolor": "#eeeeee", "edgecolor": "black"}
    axis.text(x, y, text, ha="center", va="center", bbox=frame)
