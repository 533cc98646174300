"""Multiple imputation: every site draws its own missing values, and Rubin's rules combine the fits.

A site imputes by chained equations (van Buuren, 2018): each column with missing values in turn is predicted from all
others, the response included, by a regression fitted to a bootstrap sample of its rows; a number is drawn from the rows
whose predictions are nearest, a category from its predicted probabilities. No row and no value leaves the site.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression

from partita.errors import DataError
from partita.tables.reading import MISSING, Columns, Site

__all__ = ["Combined", "combined", "imputed", "missing_in"]

_SWEEPS = 10
"""How often every column is drawn again, given the others."""
_DONORS = 5
_FEWEST = 20
"""The fewest rows with a value from which a column is imputed."""
_RIDGE = 1e-4
"""A row's worth of it keeps regressions on collinear columns defined."""


def imputed(site: Site, generator: np.random.Generator) -> Site:
    """The site with one draw of its missing values."""
    absent = {name: _absent(values) for name, values in site.columns.items()}
    incomplete = sorted((name for name in absent if absent[name].any()), key=lambda name: (absent[name].sum(), name))
    columns = dict(site.columns)
    for name in incomplete:
        present = columns[name][~absent[name]]
        if len(present) < _FEWEST:
            raise DataError(
                f"{site.name} has {len(present)} rows with a value of {name!r}, too few to impute the others from "
                f"({_FEWEST} are needed): use missing='mean', or leave the column out."
            )
        columns[name] = _filled(columns[name], absent[name], generator.choice(present, absent[name].sum()))
    for _ in range(_SWEEPS if len(incomplete) > 1 else 1):
        for name in incomplete:
            others = _matrix({other: values for other, values in columns.items() if other != name})
            draw = _category if columns[name].dtype.kind == "U" else _number
            drawn = draw(columns[name], absent[name], others, generator)
            columns[name] = _filled(columns[name], absent[name], drawn)
    return site._replace(columns=columns)


def missing_in(site: Site) -> dict[str, int]:
    """In how many of a site's rows each incomplete column is missing."""
    counts = {name: int(_absent(values).sum()) for name, values in site.columns.items()}
    return {name: count for name, count in counts.items() if count}


class Combined(NamedTuple):
    """A Gaussian posterior that includes the uncertainty about missing values."""

    mean: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]
    between: Float[np.ndarray, "d d"]
    """The part of the covariance that comes from missing values."""


def combined(means: Float[np.ndarray, "m d"], covariances: Float[np.ndarray, "m d d"]) -> Combined:
    """Rubin's rules: the mean of the means, and within + (1 + 1/m) between."""
    between = (1 + 1 / len(means)) * np.atleast_2d(np.cov(means.T, ddof=1))
    return Combined(means.mean(axis=0), covariances.mean(axis=0) + between, between)


def _absent(values: np.ndarray) -> np.ndarray:
    return values == MISSING if values.dtype.kind == "U" else np.isnan(values)


def _filled(values: np.ndarray, absent: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    found = values.copy()
    found[absent] = drawn
    return found


def _matrix(columns: Columns) -> Float[np.ndarray, "n d"]:
    """The columns as standardised numbers, with an intercept; categories as indicators of their levels."""
    parts = []
    for values in columns.values():
        if values.dtype.kind == "U":
            parts += [(values == level).astype(float) for level in np.unique(values)[1:]]
        else:
            parts.append(values)
    rows = len(next(iter(columns.values())))
    found = np.column_stack([np.empty((rows, 0)), *parts])
    spread = found.std(axis=0)
    return np.column_stack([np.ones(rows), (found - found.mean(axis=0)) / np.where(spread > 0, spread, 1.0)])


def _bootstrap(absent: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """As many of the rows with a value as there are, drawn with replacement."""
    present = np.flatnonzero(~absent)
    return generator.choice(present, len(present))


def _number(
    values: np.ndarray, absent: np.ndarray, others: Float[np.ndarray, "n d"], generator: np.random.Generator
) -> np.ndarray:
    """Values of rows whose predictions are near (predictive mean matching)."""
    donors = np.flatnonzero(~absent)
    predicted = others[donors] @ _least_squares(others[donors], values[donors])
    rows = _bootstrap(absent, generator)
    wanted = others[absent] @ _least_squares(others[rows], values[rows])
    order = np.argsort(predicted, kind="stable")
    nearest = np.searchsorted(predicted[order], wanted) + generator.integers(
        -(_DONORS // 2), _DONORS // 2 + 1, len(wanted)
    )
    return values[donors[order[np.clip(nearest, 0, len(order) - 1)]]]


def _category(
    values: np.ndarray, absent: np.ndarray, others: Float[np.ndarray, "n d"], generator: np.random.Generator
) -> np.ndarray:
    """Levels drawn from their predicted probabilities."""
    rows = _bootstrap(absent, generator)
    if len(np.unique(values[rows])) == 1:
        return np.full(absent.sum(), values[rows][0])
    fitted = LogisticRegression(max_iter=200).fit(others[rows][:, 1:], values[rows])
    cumulative = np.cumsum(fitted.predict_proba(others[absent][:, 1:]), axis=1)
    place = (generator.random((len(cumulative), 1)) > cumulative[:, :-1]).sum(axis=1)
    return fitted.classes_[place]


def _least_squares(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " d"]:
    return np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ y)
