"""The result of a federation: the posterior for predictions, a summary table and a figure."""

import contextlib
import csv
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax

from partita.errors import DamagedFileError, FederationError
from partita.federation import config
from partita.federation.attendance import Attendance, sizes
from partita.federation.beginning import beginning
from partita.federation.encoded import FederationResult
from partita.federation.grid import MAX_PARAMETERS_SHOWN
from partita.federation.scheme import Scheme, Sizes
from partita.federation.serve import LEDGER_FILE
from partita.io.settings import build
from partita.models.prior import base_of
from partita.server.monitor import posterior_of
from partita.server.run import Result
from partita.server.state import init, with_learning
from partita.server.stopping import Status
from partita.storage.ledger import read
from partita.storage.records import opened
from partita.tables.fit import Fit
from partita.tables.forest import literal

__all__ = ["account", "draw", "fitted", "shown", "summary"]


class _Loaded(NamedTuple):
    """What a run has left in its folder."""

    scheme: Scheme
    result: Result
    sizes: Sizes


def fitted(folder: str | os.PathLike[str]) -> Fit | FederationResult:
    """Loads the result of the federation in a folder.

    Of a formula it is a `Fit`, without the rows that stayed with the clients: print it, or ask it to predict.
    """
    found = _loaded(Path(folder))
    fit: Fit | FederationResult = found.scheme.fitted(found.result, found.sizes)
    return fit


def shown(folder: Path) -> str:
    """The posterior as a table of text."""
    found = _loaded(folder)
    return found.scheme.printed(f"Posterior of {folder.name}", found.result, found.sizes)


def _loaded(folder: Path) -> _Loaded:
    if not jax.config.read("jax_enable_x64"):
        raise FederationError(
            'A federation is in double precision: jax.config.update("jax_enable_x64", True) comes first.'
        )
    federation, about = config.load(folder), _result(folder)
    members = _members(folder, about)
    scheme = beginning(federation).restored(about["agreed"])
    method, model = scheme.method(), scheme.model()
    like = init(base_of(scheme.prior()), [member.name for member in members], federation.seed, method.aggregation)
    if method.learning is not None:
        like = with_learning(like, method.learning, model)
    path = folder / LEDGER_FILE
    if not path.exists():
        raise FederationError(f"There is no {path}, which holds the posterior: use the server's folder.")
    with contextlib.closing(opened(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10.0)) as db:
        state, history = read(db, like, str(path))
    status = Status(about["status"])
    result = Result(posterior_of(model, state), status, str(about["message"]), history, state)
    return _Loaded(scheme, result, sizes(members))


def summary(folder: Path) -> list[dict[str, Any]]:
    """A row per parameter with mean, standard deviation and interval; None for missing values."""
    _result(folder)
    with (folder / "summary.csv").open(newline="", encoding="utf-8") as file:
        return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(file)]


def account(folder: Path) -> list[str]:
    """How the run ended, and a line for every client: its rows, its answers, and why it has no part."""
    about = _result(folder)
    return [str(about["message"]), *(member.line for member in _members(folder, about))]


def _members(folder: Path, about: dict[str, Any]) -> list[Attendance]:
    return [build(Attendance, member, str(folder / "result.json")) for member in about.get("clients", [])]


def draw(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Plots the intervals of the first parameters and the free energy into result.png."""
    from matplotlib.figure import Figure

    history, rows = _result(folder)["history"], [row for row in rows if row["sd"] is not None][:MAX_PARAMETERS_SHOWN]
    figure = Figure(figsize=(10, max(3.0, 0.25 * len(rows) + 1)), layout="constrained")
    intervals, path = figure.subplots(1, 2)
    for place, row in enumerate(reversed(rows)):
        intervals.plot([row["low"], row["high"]], [place, place], color="C0")
        intervals.plot(row["mean"], place, "o", color="C0")
    intervals.set_yticks(range(len(rows)), [literal(str(row["name"])) for row in reversed(rows)])
    intervals.axvline(0, color="grey", linewidth=0.5)
    intervals.set_xlabel("mean and interval")
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
        if not isinstance(found["history"], list) or not isinstance(found["agreed"], dict):
            raise TypeError("it has no history or no design")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error!r:.100}): `partita resume {folder}` writes it again from the ledger."
        ) from None
    return dict(found)


def _number(text: str) -> str | float | None:
    try:
        return None if text in ("", "nan") else float(text)
    except ValueError:
        return text
