"""The design matrix of a formula: how every site makes it from what sites have agreed on."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import formulaic
import numpy as np
import pandas
from formulaic.parser.types import Factor as Looked
from formulaic.parser.types import Term
from formulaic.transforms import basis_spline
from jaxtyping import Float

from partita.data.columns import Counts, Moments
from partita.data.preprocess import Summary
from partita.errors import DataError
from partita.tables.formula import INTERCEPT, Factor, Formula, column, evaluated, parsed
from partita.tables.reading import MISSING, Columns, Site

__all__ = ["Design", "Spline", "absent", "categories", "numbers"]

_DAMAGED = (KeyError, TypeError, ValueError, AttributeError)


class Spline(NamedTuple):
    """Where a spline has its knots."""

    knots: tuple[float, ...]
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Design:
    """How every site makes its design matrix. It begins with the formula alone; `agreement` adds the rest."""

    formula: Formula
    indicated: bool = False
    """Whether a missing number is replaced by its column's mean, and marked in a column of its own."""
    summary: Summary = Summary({})
    """Of all sites' factors and indicators."""
    splines: Mapping[str, Spline] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ()
    """The columns of the matrix."""
    mean: Float[np.ndarray, " d"] = dataclasses.field(default_factory=lambda: np.empty(0))
    sd: Float[np.ndarray, " d"] = dataclasses.field(default_factory=lambda: np.empty(0))
    """By which columns are standardised; 0 and 1 for the intercept."""

    @property
    def references(self) -> dict[str, str]:
        """The reference level of every category."""
        return {factor.text: self.levels(factor)[0] for factor in self.formula.factors if self.is_category(factor)}

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        said = [f"Reference of {name}: {level}." for name, level in self.references.items()]
        said += [
            f"{factor.columns[0]} is missing in {self.missing(factor)} rows: its mean stands there, marked by "
            f"{factor.text}."
            for factor in self.marked
        ]
        return said

    def is_category(self, factor: Factor) -> bool:
        """Whether a factor has levels."""
        return isinstance(self.summary.columns[factor.text], Counts)

    @property
    def indicators(self) -> tuple[Factor, ...]:
        """For every column that may be missing, the indicator of where it is."""
        names = dict.fromkeys(name for factor in self.formula.factors for name in factor.columns)
        return tuple(
            Factor(f"missing({name})", "missing", column(name), {}, (name,)) for name in names if self.indicated
        )

    @property
    def marked(self) -> tuple[Factor, ...]:
        """The indicators of columns of numbers that are missing somewhere; a category has a level for that."""
        used = {name for factor in self.formula.factors if not self.is_category(factor) for name in factor.columns}
        return tuple(each for each in self.indicators if self.moments(each).mean > 0 and used & set(each.columns))

    def missing(self, indicator: Factor) -> int:
        """In how many rows the column of an indicator is missing."""
        about = self.moments(indicator)
        return round(about.mean * about.present)

    def moments(self, factor: Factor) -> Moments:
        """The moments of a factor without levels."""
        about = self.summary.columns[factor.text]
        assert isinstance(about, Moments)
        return about

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
        found = self._materialised(values, site.rows).to_numpy(dtype=float)
        return np.column_stack([found, *(absent(factor, site.columns) for factor in self.marked)])

    def standardised(self, site: Site) -> Float[np.ndarray, "n d"]:
        """The same with columns of mean 0 and sd 1 over all sites' rows, but for the intercept."""
        return (self.matrix(site) - self.mean) / self.sd

    def offset(self, site: Site) -> Float[np.ndarray, " n"]:
        """The sum of the formula's offsets."""
        return np.sum([numbers(factor, site.columns) for factor in self.formula.offsets], axis=0)

    def in_own_units(self) -> Float[np.ndarray, "d d"]:
        """The matrix that turns coefficients of standardised columns into those of the columns as they are."""
        turn = np.diag(1 / self.sd)
        if INTERCEPT in self.names:
            turn[self.names.index(INTERCEPT)] -= self.mean / self.sd
        return turn

    def named(self) -> Self:
        """The same with the names of the matrix's columns, which follow from kinds and levels."""
        marked = (factor.text for factor in self.marked)
        return dataclasses.replace(self, names=(*map(str, self._example().columns), *marked))

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of columns of each term, in the order of the matrix."""
        slices = self._example().model_spec.term_slices.values()
        found = (columns.stop - columns.start for columns in slices)
        return (*(width for width in found if width), *(1 for _ in self.marked))

    def _example(self) -> Any:
        """The terms' columns for a row of zeros and reference levels."""
        values = {
            factor.text: pandas.Categorical(self.levels(factor)[:1], self.levels(factor))
            if self.is_category(factor)
            else self._encoded(factor, np.zeros(1))
            for factor in self.formula.factors
        }
        return self._materialised(values, 1)

    def scaled(self, columns: Sequence[Moments]) -> Self:
        """The same with the scales of its columns, given the moments of each."""
        mean, sd = (np.array([getattr(column, name) for column in columns]) for name in ("mean", "sd"))
        for name, spread in zip(self.names, sd, strict=True):
            if name != INTERCEPT and not spread > 0:
                raise DataError(f"{name} is the same in every row: leave it out of the formula.")
        if INTERCEPT in self.names:
            place = self.names.index(INTERCEPT)
            mean[place], sd[place] = 0.0, 1.0
        else:
            mean[:] = 0.0
        return dataclasses.replace(self, mean=mean, sd=sd)

    def to_dict(self) -> dict[str, Any]:
        """The design as lists, texts and numbers, for JSON."""
        return {
            "formula": self.formula.text,
            "indicated": self.indicated,
            "summary": self.summary.to_dict(),
            "splines": {text: spline._asdict() for text, spline in self.splines.items()},
            "names": list(self.names),
            "mean": self.mean.tolist(),
            "sd": self.sd.tolist(),
        }

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        try:
            splines = {
                str(text): Spline(tuple(map(float, about["knots"])), float(about["low"]), float(about["high"]))
                for text, about in contents["splines"].items()
            }
            mean, sd = (np.array(contents[name], dtype=float) for name in ("mean", "sd"))
            names = tuple(map(str, contents["names"]))
            formula, indicated = parsed(contents["formula"]), contents["indicated"] is True
            found = cls(formula, indicated, Summary.from_dict(contents["summary"]), splines, names, mean, sd)
            right = mean.shape == sd.shape == (len(names),) and bool(np.isfinite(mean).all() and (sd > 0).all())
            if not right or (names and found.named().names != names):
                raise ValueError("its names and scales do not match its formula")
        except _DAMAGED as error:
            raise DataError(f"This is not a design ({error!r:.200}): send what Design.to_dict made.") from None
        return found

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
            return pandas.Categorical(categories(factor, columns, self.levels(factor)), self.levels(factor))
        return self._encoded(factor, numbers(factor, columns))

    def _encoded(self, factor: Factor, values: np.ndarray) -> Any:
        """A numeric factor's columns, given the values of what it is of."""
        about = self.moments(factor)
        values = np.where(np.isnan(values), about.mean, values)
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


def categories(factor: Factor, columns: Columns, levels: Sequence[str] = ()) -> list[str]:
    """A category's values as texts; where levels were agreed on, another one is an error."""
    values = [
        (f"{value:g}" if value == value else MISSING) if isinstance(value, float) else str(value)
        for value in evaluated(factor.argument, columns).tolist()
    ]
    new = sorted(set(values) - set(levels)) if levels else []
    if new:
        raise DataError(
            f"{factor.text} has the level {new[0]!r}, which the fit did not have: use one of {_few(levels)}.",
            f"{factor.text} has a level that was not agreed on.",
        )
    return values


def numbers(factor: Factor, columns: Columns) -> Float[np.ndarray, " n"]:
    """The values of what a numeric factor is of; NaN where a column is missing."""
    for name in factor.columns:
        if columns[name].dtype.kind == Counts.dtype.kind:
            wrong = f"Column {name!r} holds texts, but {factor.text} needs numbers: use C({name}), or recode it."
            raise DataError(wrong, wrong)
    with np.errstate(all="ignore"):
        values = np.asarray(evaluated(factor.argument, columns), dtype=float)
    wrong = ~np.isfinite(values) & (absent(factor, columns) == 0)
    if wrong.any():
        raise DataError(
            f"{factor.text} is not finite in {wrong.sum()} rows: leave them out, or use another function.",
            f"{factor.text} is not finite in some rows.",
        )
    return np.broadcast_to(values, (len(columns[factor.columns[0]]),)) if factor.columns else values


def absent(factor: Factor, columns: Columns) -> Float[np.ndarray, " n"]:
    """1 where a column of a factor is missing, else 0; texts have a level for that."""
    found = [np.isnan(columns[name]) for name in factor.columns if columns[name].dtype.kind == "f"]
    return (
        np.any(found, axis=0).astype(float)
        if found
        else np.zeros(len(columns[factor.columns[0]]) if factor.columns else 1)
    )


def _few(levels: Sequence[str]) -> str:
    return ", ".join(map(repr, levels[:8])) + (", …" if len(levels) > 8 else "")
