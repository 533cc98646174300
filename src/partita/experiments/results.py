"""What came out: a tidy table of all cells, and the curves and figures that reports are made of."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from partita.experiments.runner import COLUMNS

HEADER = ("problem", "method", "seed", "client", *COLUMNS)
PVI = ("sequential", "synchronous", "asynchronous")


class Curve(NamedTuple):
    """A metric of every seed where any of them was evaluated; a run that has ended keeps its last value."""

    x: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "seeds n"]


class Results:
    """The results of an experiment's cells."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self.cells = list(cells)
        self.problems = list(dict.fromkeys(cell["problem"] for cell in cells))
        self.methods = list(dict.fromkeys(cell["method"] for cell in cells))

    def table(self) -> str:
        """A row per evaluation, as CSV; the same cells always give the same text."""
        text = io.StringIO()
        writer = csv.DictWriter(text, HEADER, lineterminator="\n")
        writer.writeheader()
        for cell in self.cells:
            about = {name: cell[name] for name in ("problem", "method", "seed")}
            writer.writerows({**about, **row} for row in cell["rows"])
        return text.getvalue()

    def of(self, problem: str, method: str) -> list[Mapping[str, Any]]:
        """The cells of a method on a problem, a seed each."""
        return [cell for cell in self.cells if (cell["problem"], cell["method"]) == (problem, method)]

    def has(self, problem: str, *methods: str) -> bool:
        """Whether all these methods were run on the problem."""
        return all(self.of(problem, method) for method in methods)

    def final(self, problem: str, method: str, metric: str = "nll") -> Float[np.ndarray, " seeds"]:
        """The metric at the end, for every seed; clients alone count as their mean."""
        rows = [cell["rows"] if method == "alone" else cell["rows"][-1:] for cell in self.of(problem, method)]
        return np.array([np.mean([_number(row[metric]) for row in some]) for some in rows])

    def curve(self, problem: str, method: str, metric: str = "nll", by: str = "communications") -> Curve:
        """The metric against communications, or against the simulated clock."""
        runs = [
            (np.array([_number(row[by]) for row in cell["rows"]]), [_number(row[metric]) for row in cell["rows"]])
            for cell in self.of(problem, method)
        ]
        grid = np.unique(np.concatenate([x for x, _ in runs]))
        values = [_held(grid, x, np.array(y)) for x, y in runs]
        return Curve(grid, np.array(values))

    def reach(
        self, problem: str, method: str, target: float, within: float, by: str = "communications"
    ) -> Float[np.ndarray, " seeds"]:
        """Where each seed's NLL comes as near to the target for good; infinite if it does not.

        On either side: a run that passes far below has not arrived.
        """
        found = []
        for cell in self.of(problem, method):
            away = np.array([not abs(_number(row["nll"]) - target) <= within for row in cell["rows"]])
            first = int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0
            found.append(cell["rows"][first][by] if first < len(away) else np.inf)
        return np.array(found, float)

    def seconds(self, problem: str, method: str) -> float:
        """The mean time of a run, compilation included where it was the first of its shape."""
        return float(np.mean([cell["seconds"] for cell in self.of(problem, method)]))


def _number(value: float | str) -> float:
    """A kept number, which is a text where it is not finite."""
    return float(value)


def _held(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y at the last x not beyond each point of the grid; NaN before the first."""
    index = np.searchsorted(x, grid, side="right") - 1
    return np.where(index >= 0, y[np.maximum(index, 0)], np.nan)
