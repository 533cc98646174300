"""The result of a federation: the posterior for predictions, a summary table and a figure."""

import csv
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from partita.data.preprocess import Encoding
from partita.data.table import Table
from partita.errors import DamagedFileError, FederationError
from partita.federation import config
from partita.federation.attendance import Attendance
from partita.federation.rows import read
from partita.hyper.values import model_given
from partita.io.settings import build
from partita.results.posterior import Posterior
from partita.results.posterior_file import load_posterior

__all__ = ["MAX_PARAMETERS_SHOWN", "FederationResult", "account", "draw", "fitted", "summary"]

MAX_PARAMETERS_SHOWN = 60
"""The largest number of parameters shown in a figure or a terminal."""


class FederationResult(NamedTuple):
    """The posterior of a federation, and the encoding of its data."""

    posterior: Posterior
    encoding: Encoding
    data: config.Data

    def table(self, path: str | os.PathLike[str]) -> Table:
        """Reads a file with the federation's columns and encodes it as the clients' rows were.

        The response may be missing, as it is of rows to predict: then it is NaN.
        """
        return self.encoding.encode(read(Path(path), self.data, response=False))


def fitted(folder: str | os.PathLike[str]) -> FederationResult:
    """Loads the result of the federation in a folder."""
    if not jax.config.read("jax_enable_x64"):
        raise FederationError(
            'A federation is in double precision: jax.config.update("jax_enable_x64", True) comes first.'
        )
    place = Path(folder)
    federation = config.load(place)
    agreed = Encoding.from_dict(_result(place)["encoding"])
    model = federation.built_model(len(agreed.names))
    q, about = load_posterior(place / "posterior.npz", federation.built_prior(model, len(agreed.names)))
    hyper = {name: jnp.asarray(value) for name, value in about.get("hyper", {}).items()}
    named = Posterior(model_given(model, hyper), q, hyper, names=tuple(map(str, about.get("names", ()))))
    return FederationResult(named, agreed, federation.data)


def summary(folder: Path) -> list[dict[str, Any]]:
    """A row per parameter with mean, standard deviation and interval; None for missing values."""
    _result(folder)
    with (folder / "summary.csv").open(newline="", encoding="utf-8") as file:
        return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(file)]


def account(folder: Path) -> list[str]:
    """How the run ended, and a line for every client: its rows, its answers, and why it has no part."""
    about = _result(folder)
    members = [build(Attendance, member, str(folder / "result.json")) for member in about.get("clients", [])]
    return [str(about["message"]), *(member.line for member in members)]


def draw(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Plots the intervals of the first parameters and the free energy into result.png."""
    from matplotlib.figure import Figure

    history, rows = _result(folder)["history"], [row for row in rows if row["sd"] is not None][:MAX_PARAMETERS_SHOWN]
    figure = Figure(figsize=(10, max(3.0, 0.25 * len(rows) + 1)), layout="constrained")
    intervals, path = figure.subplots(1, 2)
    lower, upper = (name for name in rows[0] if name not in ("name", "mean", "sd"))
    for place, row in enumerate(reversed(rows)):
        intervals.plot([row[lower], row[upper]], [place, place], color="C0")
        intervals.plot(row["mean"], place, "o", color="C0")
    intervals.set_yticks(range(len(rows)), [str(row["name"]) for row in reversed(rows)])
    intervals.axvline(0, color="grey", linewidth=0.5)
    intervals.set_xlabel(f"mean, {lower} to {upper}")
    known = [
        (row["communications"], row["reported_free_energy"], row.get("reported_free_energy_error", 0.0))
        for row in history
        if "reported_free_energy" in row
    ]
    path.errorbar(*zip(*known, strict=True)) if known else None
    path.set_xlabel("communications")
    path.set_ylabel("free energy as reported")
    target = folder / "result.png"
    figure.savefig(target, dpi=150)
    return target


def _result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.exists():
        raise FederationError(f"There is no result in {folder} yet: `partita status {folder}` says how it stands.")
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found["history"], list) or not isinstance(found["encoding"], dict):
            raise TypeError("it has no history or no encoding")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error!r:.100}): `partita resume {folder}` writes it again from the ledger."
        ) from None
    return dict(found)


def _number(text: str) -> str | float | None:
    try:
        return None if text == "nan" else float(text)
    except ValueError:
        return text
