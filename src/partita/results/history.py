"""The history of a run: one row per server step."""

import copy
import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import InputError, unknown
from partita.results.columns import HistoryRows

__all__ = ["History", "with_error"]


class History:
    """A table with a row per server step; `history["free_energy"]` is a column.

    Columns: step, communications, rounds, gradient_steps, seconds, clock (simulated time), clients (who answered),
    staleness (largest number of posterior updates between sending a task and aggregating its answer), free_energy,
    free_energy_error (its standard error, where it is estimated by draws), ell (what clients last reported of their
    expected log-likelihood, in all, once all have), reporting (how many these are), residual (largest of the clients'
    latest), damping, refused (client → reason), unconverged (client → why its solver stopped without converging),
    skipped (client → number of rows without a proper factor), log_evidence (power EP only), hyper (learned
    hyperparameters by name), and the user's metrics.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.rows = HistoryRows()
        """The rows, each a dict that is made when it is asked for: a step takes a few hundred bytes."""
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        self.rows.append(row)

    def latest(self, column: str) -> Any:
        """The last value in a column, NaN if there is none."""
        return next((value for _, value in self.rows.entries(column)), math.nan)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which they first appeared."""
        return list(self.rows.columns)

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise unknown("column", column, self.columns)
        values = [math.nan] * len(self)
        for place, value in self.rows.entries(column):
            values[place] = copy.copy(value)
        if any(isinstance(value, list | dict) for value in values):
            array = np.empty(len(values), object)
            array[:] = values
            return array
        return np.asarray(values)

    def to_pandas(self) -> Any:
        """The table as a pandas data frame, indexed by step."""
        pandas = _library("pandas")
        return pandas.DataFrame(list(self.rows), columns=self.columns).set_index("step")

    def to_polars(self) -> Any:
        """The table as a polars data frame; entries by client, such as `refused`, are JSON text."""
        polars = _library("polars")
        rows = [
            {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
            for row in self.rows
        ]
        return polars.DataFrame(rows, infer_schema_length=None)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def last(self, column: str) -> dict[str, Any]:
        """For a column of per-client entries, the entry of each client's last answer, if any."""
        found: dict[str, Any] = {}
        for (_, clients), (_, entries) in zip(self.rows.entries("clients"), self.rows.entries(column), strict=True):
            for name in clients:
                found.setdefault(name, entries.get(name))
        return {name: value for name, value in found.items() if value is not None}

    @property
    def remarks(self) -> list[str]:
        """Warnings about clients' last answers: skipped rows, solvers that did not converge, refusals.

        Where everybody's were refused, that is how the run ended.
        """
        skipped = self.last("skipped").items()
        found = [f"{rows} rows of {name} have no proper site and were skipped." for name, rows in skipped]
        unconverged = self.last("unconverged")
        for reason in dict.fromkeys(unconverged.values()):
            names = [name for name in unconverged if unconverged[name] == reason]
            who = names[0] if len(names) == 1 else f"{len(names)} clients"
            found.append(f"The last solve of {who} did not converge: {reason}")
        refused = self.last_refused
        if any(name not in refused for _, clients in self.rows.entries("clients") for name in clients):
            found += [f"The last answer of {name} was refused: it {reason}." for name, reason in refused.items()]
        return found

    @property
    def last_refused(self) -> dict[str, str]:
        """The clients whose last answer was refused, or divided out again, with the reason."""
        found: dict[str, str] = {}
        for (_, clients), (_, refused) in zip(self.rows.entries("clients"), self.rows.entries("refused"), strict=True):
            for name in (*clients, *refused):
                found.setdefault(name, refused.get(name, ""))
        return {name: reason for name, reason in found.items() if reason}

    @property
    def refusals(self) -> list[tuple[int, str, str]]:
        """Every refused answer: step, client and reason."""
        rows = [place for place, refused in self.rows.entries("refused") if refused]
        found = [self.rows[place] for place in reversed(rows)]
        return [(row["step"], name, reason) for row in found for name, reason in row["refused"].items()]


def with_error(value: float, error: float, form: str = ".6g") -> str:
    """A number as text, in a format; if it has a standard error, with that, and the places that it leaves certain."""
    if not 0 < error < math.inf:
        return format(value, form)
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{places}f} ± {error:,.{places}f}"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"A history becomes a data frame with {name}: pip install {name}.") from None
