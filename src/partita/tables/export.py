"""Fits for other programs: ArviZ, CSV, and a JSON file that is read without partita."""

import dataclasses
import json
import math
import os
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import enable_x64
from jaxtyping import Float

from partita.errors import MissingExtraError
from partita.families.base import Theta
from partita.inputs import check_flag, check_path, check_seed, check_whole
from partita.io.atomic import write_csv, write_text
from partita.results.draws import CHAINS
from partita.tables.draws import draws_of, log_densities
from partita.tables.fitted import Fitted, rows_at
from partita.tables.reading import Site

if TYPE_CHECKING:
    from xarray import DataTree

__all__ = ["described_fit", "fit_to_arviz", "fit_to_csv", "fit_to_json"]


def described_fit(fit: Fitted, mass: float = 0.95) -> dict[str, Any]:
    """Everything that a fit tells, as plain numbers and texts; numbers that are not finite are None."""
    with enable_x64(True):
        learned = {name: np.asarray(value).tolist() for name, value in fit.result.posterior.hyper.items()}
        start = [np.asarray(each).tolist() for each in fit.result.state.current_prior.moments()]
    response, design = fit.response, fit.design
    return _plain(
        {
            "format": "partita fit 1",
            "version": metadata.version("partita"),
            "formula": fit.formula,
            "family": fit.family,
            "status": fit.result.status.value,
            "names": fit.names,
            "mean": fit.mean,
            "covariance": fit.covariance,
            "mass": mass,
            "joint": dict(zip(("names", "mean", "covariance"), fit.joint(), strict=True)),
            "coefficients": [dataclasses.asdict(row) for row in fit.coefficients(mass)],
            "ratio": fit.likelihood.ratio,
            "references": design.references,
            "response": {
                "name": fit.spec.formula.response.text,
                "labels": response.labels,
                "mean": response.mean,
                "sd": response.sd,
            },
            "standardised": {
                "mean": design.mean,
                "sd": design.sd,
                "prior": {"mean": start[0], "sd": start[1]},
                "learned": learned,
            },
            "free_energy": fit.free_energy,
            "sites": {site.name: {"rows": site.rows, "dropped": site.dropped} for site in fit.sites},
            "notes": fit.notes,
        }
    )


def fit_to_json(fit: Fitted, path: str | os.PathLike[str], mass: float = 0.95) -> None:
    """Writes `described_fit`; see `Fit.to_json`."""
    check_path(path)
    write_text(path, json.dumps(described_fit(fit, mass), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def fit_to_csv(fit: Fitted, path: str | os.PathLike[str], mass: float = 0.95) -> None:
    """Writes a row per coefficient; see `Fit.to_csv`."""
    check_path(path)
    rows = []
    for row in fit.coefficients(mass):
        cells: dict[str, object] = {name: value for name, value in dataclasses.asdict(row).items() if name != "ratio"}
        if row.ratio is not None:
            cells |= dict(zip(("ratio", "ratio_low", "ratio_high"), row.ratio, strict=True))
        rows.append(cells)
    write_csv(path, rows)


def fit_to_arviz(fit: Fitted, draws: int, rows: bool, seed: int) -> "DataTree":
    """Draws of the coefficients in ArviZ's form; see `Fit.to_arviz`."""
    check_whole("number of draws", draws, least=CHAINS)
    check_flag("choice of rows", rows)
    check_seed(seed)
    try:
        from arviz_base import from_dict
    except ImportError:
        raise MissingExtraError("arviz-base", "arviz") from None
    count = draws // CHAINS
    with enable_x64(True):
        theta = draws_of(fit.result.posterior.q, CHAINS * count, seed)
        own, constants = fit.in_own_units(np.asarray(theta))
    groups = {"posterior": {"coefficients": own.reshape(CHAINS, count, -1)}}
    coords: dict[str, Any] = {"coefficient": list(fit.names)}
    dims = {"coefficients": ["coefficient"]}
    if constants.size:
        groups["posterior"]["constants"] = constants.reshape(CHAINS, count, -1)
        coords["constant"] = [constant.name for constant in fit.units.constants]
        dims["constants"] = ["constant"]
    sites = np.array([])
    if rows:
        name, own_rows = fit.spec.formula.response.text, fit.with_rows().sites
        with enable_x64(True):
            density = np.concatenate([_densities(fit, site, theta) for site in own_rows])
        known = [fit.spec.agreement.rows.observed(site, fit.response) for site in own_rows]
        observed, censored = (np.concatenate(part) for part in zip(*known, strict=True))
        groups["log_likelihood"] = {name: density.T.reshape(CHAINS, count, -1)}
        groups["observed_data"] = {name: observed} | ({f"{name} censored": censored} if censored.any() else {})
        sites = np.repeat([site.name for site in own_rows], [site.rows for site in own_rows])
        coords["row"] = np.arange(len(sites))
        dims |= {each: ["row"] for each in groups["observed_data"]}
    about = {"formula": fit.formula, "family": fit.family, "creation_library": "partita"}
    tree: DataTree = from_dict(groups, coords=coords, dims=dims, attrs={"/": about})
    for group in ("log_likelihood", "observed_data") if rows else ():
        tree[group].dataset = tree[group].to_dataset().assign_coords(site=("row", sites))
    return tree


def _densities(fit: Fitted, site: Site, theta: Theta) -> Float[np.ndarray, "n s"]:
    """The log density of each of a site's rows at each draw; they leave the site only where it is asked for."""
    found = log_densities(fit.result.posterior.model, rows_at(fit.spec, site), theta)
    return np.concatenate([piece for piece, _ in found])


def _plain(value: Any) -> Any:
    """Numbers, texts, lists and dicts, as JSON has them."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | jax.Array | list | tuple):
        return [_plain(each) for each in (value.tolist() if hasattr(value, "tolist") else value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
