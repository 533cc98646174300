"""`partita fit`: a formula and a file in, a table of coefficients out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

from partita.errors import SettingsError

__all__ = ["run_fit"]


def run_fit(
    formula: str,
    file: Path,
    mass: float,
    as_json: bool,
    noise: str | None = None,
    cuts: str | None = None,
    levels: str | None = None,
    **options: Any,
) -> None:
    """Fits and prints."""
    from partita.tables.fit import fit

    if not 0 < mass < 1:
        raise SettingsError(f"--mass is between 0 and 1, not {mass}.")
    jax.config.update("jax_enable_x64", True)
    options |= {"noise": _number(noise), "cuts": _listed(cuts), "levels": _listed(levels)}
    found = fit(formula, file, **options)
    if not as_json:
        print(found.table(mass))
        return
    print(
        json.dumps(
            {
                "formula": formula,
                "family": found.family,
                "status": found.result.status.value,
                "coefficients": [dataclasses.asdict(row) for row in found.coefficients(mass)],
                "free_energy": found.result.free_energy,
                "sites": {site.name: {"rows": site.rows, "dropped": site.dropped} for site in found.sites},
                "notes": list(found.notes),
            }
        )
    )


def _number(text: str | None) -> str | float | None:
    """The number that a text is, or else the text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _listed(text: str | None) -> list[str] | None:
    """The parts of a text between commas."""
    return None if text is None else [part.strip() for part in text.split(",")]
