"""What came out of a federation: a table of its posterior, and a picture."""

import csv
import json
from pathlib import Path
from typing import Any

from partita.errors import InputError


def summary(folder: Path) -> list[dict[str, Any]]:
    """The posterior's parameters with mean, standard deviation and interval."""
    path = folder / "summary.csv"
    if not path.exists():
        raise InputError(f"There is no result in {folder} yet: `partita status {folder}` says how it stands.")
    with path.open(newline="") as file:
        return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(file)]


def draw(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Draws the intervals of the parameters, and how the run converged, into result.png."""
    from matplotlib.figure import Figure

    history = json.loads((folder / "result.json").read_text())["history"]
    figure = Figure(figsize=(10, max(3.0, 0.25 * len(rows) + 1)), layout="constrained")
    intervals, path = figure.subplots(1, 2)
    lower, upper = (name for name in rows[0] if name not in ("name", "mean", "sd"))
    for place, row in enumerate(reversed(rows)):
        intervals.plot([row[lower], row[upper]], [place, place], color="C0")
        intervals.plot(row["mean"], place, "o", color="C0")
    intervals.set_yticks(range(len(rows)), [str(row["name"]) for row in reversed(rows)])
    intervals.axvline(0, color="grey", linewidth=0.5)
    intervals.set_xlabel(f"mean, {lower} to {upper}")
    known = [(row["communications"], row["reported_free_energy"]) for row in history if "reported_free_energy" in row]
    path.plot(*zip(*known, strict=True)) if known else None
    path.set_xlabel("communications")
    path.set_ylabel("free energy as reported")
    target = folder / "result.png"
    figure.savefig(target, dpi=150)
    return target


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
