"""`partita fit`: a formula and a file in, a table of coefficients out."""

import json
from pathlib import Path
from typing import Any

from partita.cli.beginning import begin
from partita.errors import SettingsError
from partita.tables.estimates import Estimates
from partita.tables.export import described_fit
from partita.tables.fit import Fit
from partita.tables.fitting import fit
from partita.tables.policies import policy
from partita.tables.report import forest_names

__all__ = ["listed", "run_fit", "show_fit"]

_PICTURES = (".png", ".svg", ".pdf")


def run_fit(
    formula: str,
    file: Path,
    mass: float,
    as_json: bool,
    forest: str | None,
    output: Path | None,
    cuts: str | None,
    levels: str | None,
    missing: str,
    **options: Any,
) -> None:
    """Fits, prints, and writes what was asked for."""
    if not 0 < mass < 1:
        raise SettingsError(f"--mass is between 0 and 1, not {mass}.")
    picture = output if output is not None and output.suffix.lower() in _PICTURES else None
    if picture is not None and forest is None:
        raise SettingsError(f"{picture} is a picture: say by --forest of which coefficient, or give a folder.")
    if output is not None and picture is None and policy(missing).draws:
        raise SettingsError("--output keeps one fit, and missing values that are drawn make several: leave it out.")
    begin()
    found = fit(formula, file, cuts=listed(cuts), levels=listed(levels), missing=missing, **options)
    if forest is not None:
        found.forest(forest, picture or (output or Path()) / "forest.png", mass)
    if output is not None and picture is None:
        assert isinstance(found, Fit)
        found.save(output)
        _write(found, output, mass, forest)
    show_fit(found, mass, as_json)


def listed(text: str | None) -> list[Any] | None:
    """The parts of a text between commas."""
    return None if text is None else [part.strip() for part in text.split(",")]


def show_fit(found: Estimates, mass: float, as_json: bool) -> None:
    """Prints a fit."""
    print(json.dumps(described_fit(found, mass)) if as_json else found.table(mass))


def _write(found: Fit, folder: Path, mass: float, forest: str | None) -> None:
    """Writes the folder of results; the forest is of the first coefficient, unless one was named."""
    found.to_json(folder / "fit.json", mass)
    found.to_csv(folder / "coefficients.csv", mass)
    found.report(folder / "report.html", mass)
    if forest is None and (names := forest_names(found)):
        found.forest(names[0], folder / "forest.png", mass)
