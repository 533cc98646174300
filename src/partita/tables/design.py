"""The design matrix of a formula, agreed among sites in round 0 from counts and sums, never from pooled rows.

Sites send the number of rows per level of each category, moments of what is centred, scaled or given a spline, then
counts in bins as wide as a tenth of a standard deviation, from which the knots of splines follow, and at last moments
of every column of the design, which standardise it.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import formulaic
import numpy as np
import pandas
from formulaic.parser.types import Factor as Looked
from formulaic.parser.types import Term
from formulaic.transforms import basis_spline
from jaxtyping import Float

from partita.data.columns import Column, Counts, Moments
from partita.data.preprocess import Summary, merge
from partita.errors import DataError, SettingsError
from partita.tables.formula import Factor, Formula, evaluated
from partita.tables.reading import Columns, Site

__all__ = ["INTERCEPT", "Design", "agree", "binned", "quantiles"]

_BINS = np.linspace(-4, 4, 81)
"""Edges of the bins in which values are counted to place knots, in standard deviations from the mean."""
_MOST_LEVELS = 1000
INTERCEPT = "Intercept"
"""The name of the column of ones."""


class _Spline(NamedTuple):
    """Where a spline has its knots."""

    knots: tuple[float, ...]
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Design:
    """How every site makes its design matrix."""

    formula: Formula
    summary: Summary
    """Of all sites' factors."""
    splines: Mapping[str, _Spline]
    names: tuple[str, ...] = ()
    """The columns of the matrix."""
    mean: Float[np.ndarray, " d"] = dataclasses.field(default_factory=lambda: np.empty(0))
    sd: Float[np.ndarray, " d"] = dataclasses.field(default_factory=lambda: np.empty(0))
    """By which columns are standardised; 0 and 1 for the intercept."""

    @property
    def references(self) -> dict[str, str]:
        """The reference level of every category."""
        return {factor.text: self.levels(factor)[0] for factor in self.formula.factors if self.is_category(factor)}

    def is_category(self, factor: Factor) -> bool:
        """Whether a factor has levels."""
        return isinstance(self.summary.columns[factor.text], Counts)

    def levels(self, factor: Factor) -> tuple[str, ...]:
        """The levels of a category, its reference first: the one named, or the most frequent."""
        counts = self.summary.columns[factor.text]
        assert isinstance(counts, Counts)
        found = counts.levels
        reference = factor.options.get("reference")
        if reference is None:
            reference = max(found, key=lambda level: (counts.counts.get(level, 0), [-ord(c) for c in level]))
        elif str(reference) not in found:
            raise DataError(
                f"{factor.text} names the reference {reference!r}, which no row has: choose from {_few(found)}."
            )
        return (str(reference), *(level for level in found if level != str(reference)))

    def matrix(self, site: Site) -> Float[np.ndarray, "n d"]:
        """The design matrix of a site's rows, in the columns' own units."""
        values = {factor.text: self._values(factor, site.columns) for factor in self.formula.factors}
        return self._materialised(values, site.rows).to_numpy(dtype=float)

    def standardised(self, site: Site) -> Float[np.ndarray, "n d"]:
        """The same with columns of mean 0 and sd 1 over all sites' rows, but for the intercept."""
        return (self.matrix(site) - self.mean) / self.sd

    def offset(self, site: Site) -> Float[np.ndarray, " n"]:
        """The sum of the formula's offsets."""
        return np.sum([_numbers(factor, site.columns) for factor in self.formula.offsets], axis=0)

    def in_own_units(self) -> Float[np.ndarray, "d d"]:
        """The matrix that turns coefficients of standardised columns into those of the columns as they are."""
        turn = np.diag(1 / self.sd)
        if INTERCEPT in self.names:
            turn[self.names.index(INTERCEPT)] -= self.mean / self.sd
        return turn

    def named(self) -> Self:
        """The same with the names of the matrix's columns, which follow from kinds and levels."""
        values = {
            factor.text: pandas.Categorical(self.levels(factor)[:1], self.levels(factor))
            if self.is_category(factor)
            else self._encoded(factor, np.zeros(1))
            for factor in self.formula.factors
        }
        found = self._materialised(values, 1)
        return dataclasses.replace(self, names=tuple(map(str, found.columns)))

    def _materialised(self, values: Mapping[str, Any], rows: int) -> Any:
        """The terms' columns; formulaic looks the factors' values up, and evaluates nothing."""
        looked = [
            Term(
                [
                    Looked(factor.expr, eval_method="literal" if factor.expr not in values else "lookup")
                    for factor in term.factors
                ]
            )
            for term in self.formula.terms
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return formulaic.formula.SimpleFormula(looked, _ordering="none").get_model_matrix(
                pandas.DataFrame(index=range(rows)), context=dict(values), na_action="ignore", output="pandas"
            )

    def _values(self, factor: Factor, columns: Columns) -> Any:
        """A factor's values, as formulaic takes them."""
        if self.is_category(factor):
            return pandas.Categorical(_category(factor, columns, self.levels(factor)), self.levels(factor))
        return self._encoded(factor, _numbers(factor, columns))

    def _encoded(self, factor: Factor, values: np.ndarray) -> Any:
        """A numeric factor's columns, given the values of what it is of."""
        about = self.summary.columns[factor.text]
        assert isinstance(about, Moments)
        if factor.function in ("center", "scale"):
            unit = about.sd if factor.function == "scale" and about.sd > 0 else 1.0
            values = ((values - about.mean) - about.rest) / unit
        if factor.function == "bs":
            spline = self.splines[factor.text]
            degree = factor.options.get("degree", 3)
            return basis_spline(
                values,
                knots=spline.knots,
                degree=degree,
                lower_bound=spline.low,
                upper_bound=spline.high,
                extrapolation="extend",
                _state={},
            )
        return pandas.Series(values)


def agree(formula: Formula, sites: Sequence[Site]) -> Design:
    """The design that all sites use: round 0 of a fit."""
    summary = merge(_summary(formula, site.columns) for site in sites)
    for factor in formula.factors:
        _check(factor, summary.columns[factor.text])
    design = Design(formula, summary, {})
    splines = {}
    for factor in formula.factors:
        if factor.function == "bs":
            about = summary.columns[factor.text]
            assert isinstance(about, Moments)
            counts = np.sum([binned(_numbers(factor, site.columns), about) for site in sites], axis=0)
            splines[factor.text] = _spline(factor, about, counts)
    design = dataclasses.replace(design, splines=splines).named()
    merged = [_column_moments(design.matrix(site)) for site in sites]
    return _scaled(design, merged)


def _scaled(design: Design, sites: Iterable[Sequence[Moments]]) -> Design:
    """The design with the scales of its columns."""
    merged = [Moments.merge("", column) for column in zip(*sites, strict=True)]
    mean = np.array([column.mean for column in merged])
    sd = np.array([column.sd for column in merged])
    for name, spread in zip(design.names, sd, strict=True):
        if name != INTERCEPT and not spread > 0:
            raise DataError(f"{name} is the same in every row: leave it out of the formula.")
    if INTERCEPT in design.names:
        place = design.names.index(INTERCEPT)
        mean[place], sd[place] = 0.0, 1.0
    else:
        mean[:] = 0.0
    return dataclasses.replace(design, mean=mean, sd=sd)


def _column_moments(matrix: np.ndarray) -> list[Moments]:
    return [Moments.summarise("", column) for column in matrix.T]


def _summary(formula: Formula, columns: Columns) -> Summary:
    """What a site sends of its factors."""
    return Summary({factor.text: _summarised(factor, columns) for factor in formula.factors})


def _summarised(factor: Factor, columns: Columns) -> Column:
    name = factor.columns[0] if factor.columns else factor.text
    is_text = columns[name].dtype.kind == Counts.dtype.kind and len(factor.columns) == 1
    if factor.function == "C" or (is_text and not factor.function and factor.text == name):
        return Counts.summarise(factor.text, np.array(_category(factor, columns, ()), dtype=str), ())
    return Moments.summarise(factor.text, _numbers(factor, columns))


def _category(factor: Factor, columns: Columns, levels: Sequence[str]) -> list[str]:
    """A category's values as texts; one that was not agreed on is an error."""
    values = [
        f"{value:g}" if isinstance(value, float) else str(value)
        for value in evaluated(factor.argument, columns).tolist()
    ]
    new = sorted(set(values) - set(levels)) if levels else []
    if new:
        raise DataError(
            f"{factor.text} has the level {new[0]!r}, which the fit did not have: use one of {_few(levels)}."
        )
    return values


def _numbers(factor: Factor, columns: Columns) -> np.ndarray:
    for name in factor.columns:
        if columns[name].dtype.kind == Counts.dtype.kind:
            raise DataError(
                f"Column {name!r} holds texts, but {factor.text} needs numbers: use C({name}), or recode it."
            )
    with np.errstate(all="ignore"):
        values = np.asarray(evaluated(factor.argument, columns), dtype=float)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise DataError(f"{factor.text} is not finite in {wrong.sum()} rows: leave them out, or use another function.")
    return np.broadcast_to(values, (len(columns[factor.columns[0]]),)) if factor.columns else values


def _check(factor: Factor, about: Column) -> None:
    """Raises where a factor cannot stand in a formula."""
    options = {"C": {"reference"}, "bs": {"df", "knots", "degree"}}.get(factor.function, set())
    for option in factor.options.keys() - options:
        raise SettingsError(f"{factor.text} has the option {option!r}: use {' or '.join(sorted(options)) or 'none'}.")
    if isinstance(about, Counts):
        if len(about.levels) < 2:
            raise DataError(f"{factor.text} has one level, {about.levels[0]!r}, in all rows: leave it out.")
        if len(about.levels) > _MOST_LEVELS:
            raise DataError(
                f"{factor.text} has {len(about.levels)} levels, more than {_MOST_LEVELS}: is it an identifier?"
            )


def binned(values: Float[np.ndarray, " n"], about: Moments) -> np.ndarray:
    """How many of a site's values lie in each bin, given the moments of all sites' values."""
    scores = np.clip((values - about.mean) / (about.sd or 1.0), _BINS[0], np.nextafter(_BINS[-1], 0))
    return np.histogram(scores, _BINS)[0]


def quantiles(shares: Float[np.ndarray, " k"], about: Moments, counts: np.ndarray) -> Float[np.ndarray, " k"]:
    """The values below which these shares of all rows lie, told from counts to within a tenth of an sd."""
    cumulative = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    return np.interp(shares, cumulative, about.mean + (about.sd or 1.0) * _BINS)


def _spline(factor: Factor, about: Moments, counts: np.ndarray) -> _Spline:
    """Knots at quantiles, which are told from counts to within a tenth of a standard deviation; or those given."""
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
        knots = quantiles(np.linspace(0, 1, df - degree + 2)[1:-1], about, counts)
    inner = tuple(float(knot) for knot in np.ravel(knots))
    if any(not low < knot < high for knot in inner) or list(inner) != sorted(set(inner)):
        raise SettingsError(f"The knots of {factor.text} must rise, and lie inside the column's values.")
    return _Spline(inner, low, high)


def _few(levels: Sequence[str]) -> str:
    return ", ".join(map(repr, levels[:8])) + (", …" if len(levels) > 8 else "")
