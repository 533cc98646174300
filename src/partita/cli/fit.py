"""`partita fit`: a formula and a file in, a table of coefficients out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

from partita.errors import SettingsError
from partita.tables.fit import Fit, fit

__all__ = ["run_fit", "show_fit"]


def run_fit(formula: str, file: Path, mass: float, as_json: bool, output: Path | None, **options: Any) -> None:
    """Fits, writes the folder that is asked for, and prints."""
    if not 0 < mass < 1:
        raise SettingsError(f"--mass is between 0 and 1, not {mass}.")
    jax.config.update("jax_enable_x64", True)
    found = fit(formula, file, **options)
    if output is not None:
        found.save(output)
    show_fit(found, mass, as_json)


def show_fit(found: Fit, mass: float, as_json: bool) -> None:
    """Prints a fit."""
    if not as_json:
        print(found.table(mass))
        return
    print(
        json.dumps(
            {
                "formula": found.spec.formula.text,
                "family": found.spec.settings.family,
                "status": found.result.status.value,
                "coefficients": [dataclasses.asdict(row) for row in found.coefficients(mass)],
                "free_energy": found.free_energy,
                "sites": {site.name: {"rows": site.rows, "dropped": site.dropped} for site in found.sites},
                "notes": list(found.notes),
            }
        )
    )
