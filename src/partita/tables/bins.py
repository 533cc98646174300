"""Counts in bins, from which quantiles follow without any value: of times, and of what is given a spline."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from partita.data.columns import Moments
from partita.errors import DataError, SettingsError
from partita.tables.design import Spline, numbers
from partita.tables.episodes import TIMES as _POWERS
from partita.tables.formula import Factor
from partita.tables.reading import Columns

__all__ = ["KNOTS", "TIMES", "binned", "check_binned", "counts_of", "spline"]

_BINS = np.linspace(-4, 4, 81)
"""Edges of the bins in which values are counted to place knots, in standard deviations from the mean."""
KNOTS = len(_BINS) - 1
"""How many bins of values there are."""
TIMES = len(_POWERS) - 1
"""How many bins of times there are."""


def binned(factor: Factor, about: Moments, columns: Columns) -> Int[np.ndarray, " b"]:
    """How many of a site's values lie in each bin."""
    scores = (numbers(factor, columns) - about.mean) / (about.sd or 1.0)
    return np.histogram(np.clip(scores[~np.isnan(scores)], _BINS[0], np.nextafter(_BINS[-1], 0)), _BINS)[0]


def counts_of(answer: Mapping[str, Any], name: str, bins: int) -> Int[np.ndarray, " b"]:
    """A site's counts in bins, as it has sent them."""
    contents: Any = answer.get(name) if isinstance(answer, Mapping) else None
    plain = isinstance(contents, list) and all(type(count) is int and 0 <= count < 2**53 for count in contents)
    if not plain or len(contents) != bins or not any(contents):
        raise DataError("A site has sent something else than counts in bins: it needs the same version of partita.")
    return np.array(contents)


def check_binned(name: str, counts: Int[np.ndarray, " b"], least: int, most: int) -> None:
    """Raises where counts in bins are of more or fewer values than a site has."""
    if not least <= counts.sum() <= most:
        raise DataError(f"A site has counted {counts.sum():,} values of {name!r}, where it has {least:,} rows.")


def spline(factor: Factor, about: Moments, counts: Int[np.ndarray, " b"]) -> Spline:
    """Knots at quantiles, which counts give to within a tenth of a standard deviation; or those given."""
    edges = about.mean + (about.sd or 1.0) * _BINS
    used = np.flatnonzero(counts)
    low, high = float(edges[used[0]]), float(edges[used[-1] + 1])
    degree, df, knots = (
        factor.options.get(name, default) for name, default in (("degree", 3), ("df", None), ("knots", None))
    )
    if (df is None) == (knots is None) or not isinstance(degree, int) or degree < 1:
        raise SettingsError(f"Write {factor.text} with df or knots, as bs({factor.columns[0]}, df=4).")
    if knots is None:
        if not isinstance(df, int) or not degree <= df <= 50:
            raise SettingsError(f"{factor.text} needs df from {degree} to 50.")
        cumulative = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
        knots = np.interp(np.linspace(0, 1, df - degree + 2)[1:-1], cumulative, edges)
    inner = tuple(float(knot) for knot in np.ravel(knots))
    if any(not low < knot < high for knot in inner) or list(inner) != sorted(set(inner)):
        raise SettingsError(f"The knots of {factor.text} must rise, and lie inside the column's values.")
    return Spline(inner, low, high)
