"""Results: the curves and numbers for reports, from the cells."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from partita_experiments.store import Clients

PVI = ("sequential", "synchronous", "asynchronous")


class Curve(NamedTuple):
    """A metric of every seed at all evaluation points; a finished run keeps its last value."""

    x: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "seeds n"]


class Results:
    """The results of an experiment's cells. A run goes by its name, which is its method's unless it was given one.

    Rows have a column more, `gap`: how many nats of free energy lie between them and the highest that any run has found
    on the problem. Where the bound has one maximum, as of a generalised linear model, that is global VI's.
    """

    def __init__(self, cells: Sequence[Mapping[str, Any]], clients: Clients | None = None) -> None:
        highest = _highest(cells)
        self.cells = [dict(cell) | {"rows": _below(cell["rows"], highest[cell["problem"]])} for cell in cells]
        self.clients = clients or {}
        self.problems = list(dict.fromkeys(cell["problem"] for cell in cells))
        self.runs = list(dict.fromkeys(cell["run"] for cell in cells))
        self.methods = {cell["run"]: cell["method"] for cell in cells}

    def of(self, problem: str, run: str) -> list[Mapping[str, Any]]:
        """The cells of a run on a problem, a seed each."""
        return [cell for cell in self.cells if (cell["problem"], cell["run"]) == (problem, run)]

    def has(self, problem: str, *runs: str) -> bool:
        """Whether all these runs were made on the problem."""
        return all(self.of(problem, run) for run in runs)

    def setting(self, run: str, name: str) -> Any:
        """A setting of the run's method, None if it was left to the method."""
        return next(cell for cell in self.cells if cell["run"] == run)["settings"].get(name)

    def rows(self, problem: str) -> int:
        """How many training rows all clients have together; 1 where that is not known."""
        return sum(client["rows"] for client in self.clients.get(problem, ())) or 1

    def statuses(self, problem: str, run: str) -> list[str]:
        """The distinct statuses with which the run ended."""
        return sorted({status for cell in self.of(problem, run) for status in cell["statuses"]})

    def final(self, problem: str, run: str, metric: str = "nll") -> Float[np.ndarray, " seeds"]:
        """The metric at the end, for every seed; clients alone count as their mean."""
        alone = self.methods.get(run) == "alone"
        rows = [cell["rows"] if alone else cell["rows"][-1:] for cell in self.of(problem, run)]
        return np.array([np.mean([_number(row[metric]) for row in some]) for some in rows])

    def curve(self, problem: str, run: str, metric: str = "nll", by: str = "communications") -> Curve:
        """The metric against communications, or against the simulated clock."""
        runs = [columns(cell, by, metric) for cell in self.of(problem, run)]
        grid = np.unique(np.concatenate([x for x, _ in runs]))
        return Curve(grid, np.array([_last_value_at(grid, x, y) for x, y in runs]))

    def at(self, problem: str, run: str, communications: int, metric: str = "nll") -> Float[np.ndarray, " seeds"]:
        """The metric when so many communications have been made, or at the end of a run that made fewer."""
        point = np.array([float(communications)])
        cells = self.of(problem, run)
        return np.array([_last_value_at(point, *columns(cell, "communications", metric))[0] for cell in cells])

    def first(
        self, problem: str, run: str, level: float, metric: str = "error", by: str = "communications"
    ) -> Float[np.ndarray, " seeds"]:
        """When each seed's metric first is as low as the level; infinite if it never is."""
        found = []
        for cell in self.of(problem, run):
            x, y = columns(cell, by, metric)
            found.append(np.min(x[y <= level], initial=np.inf))
        return np.array(found)

    def reach(
        self,
        problem: str,
        run: str,
        target: float,
        within: float,
        by: str = "communications",
        metric: str = "nll",
    ) -> Float[np.ndarray, " seeds"]:
        """When each seed's metric stays within the tolerance of the target; infinite if it does not.

        The tolerance is two-sided: a run far below the target has not reached it.
        """
        found = []
        for cell in self.of(problem, run):
            x, y = columns(cell, by, metric)
            away = ~(np.abs(y - target) <= within)
            first = int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0
            found.append(x[first] if first < len(away) else np.inf)
        return np.array(found, float)

    def seconds(self, problem: str, run: str) -> float:
        """The mean time of a run, compilation included where it was the first of its shape."""
        return float(np.mean([cell["seconds"] for cell in self.of(problem, run)]))


def _highest(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each problem's highest free energy; that of clients alone is of their own rows, and does not count."""
    found: dict[str, float] = {}
    for cell in cells:
        values = [_number(row["free_energy"]) for row in cell["rows"] if cell["method"] != "alone"]
        found[cell["problem"]] = max(found.get(cell["problem"], -np.inf), *filter(np.isfinite, values), -np.inf)
    return found


def _below(rows: Sequence[Mapping[str, Any]], highest: float) -> list[dict[str, Any]]:
    """Rows with their gap."""
    return [{**row, "gap": highest - _number(row["free_energy"])} for row in rows]


def columns(cell: Mapping[str, Any], *names: str) -> list[Float[np.ndarray, " n"]]:
    """Columns of a cell's rows."""
    return [np.array([_number(row[name]) for row in cell["rows"]]) for name in names]


def _number(value: float | str) -> float:
    """A stored number; non-finite values are stored as text."""
    return float(value)


def _last_value_at(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y at the last x not beyond each point of the grid; NaN before the first."""
    index = np.searchsorted(x, grid, side="right") - 1
    return np.where(index >= 0, y[np.maximum(index, 0)], np.nan)
