"""Survival as Poisson regression: every row is split where intervals of time end, with log exposure as an offset.

Within an interval the hazard is constant, so that the likelihood of a row is that of Poisson counts, 0 or 1, of the
events in each interval that it was under observation.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from partita.data.columns import Moments
from partita.errors import DataError, SettingsError
from partita.tables.design import binned, quantiles
from partita.tables.formula import Factor, Formula, evaluated, parsed
from partita.tables.reading import Columns, Site
from partita.tables.response import Declared

__all__ = ["Rows", "constant_hazard", "episodes", "whole"]

_INTERVALS = 4
"""How many intervals there are where cut points are not given: they are quartiles of time."""
_MOST_CUTS = 100


@dataclasses.dataclass(frozen=True)
class Rows:
    """Which rows of the design a row of the table becomes: itself."""

    formula: Formula
    """Of the design."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table to predict for."""
        return self.formula.columns

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        return []

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        """A site's rows of the design, and for each of them the row of the table; whether events are known."""
        return site, np.arange(site.rows)


@dataclasses.dataclass(frozen=True)
class _Episodes(Rows):
    """A row for each interval that it was under observation in."""

    time: Factor
    event: str | None
    asked: Formula
    """The formula as it was given."""
    cuts: tuple[float, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Also that of time: what is predicted is the number of events by then."""
        return tuple(dict.fromkeys((*self.asked.columns, *self.time.columns)))

    @property
    def notes(self) -> list[str]:
        return [f"Reference of the intervals: {_labels(self.time, self.cuts)[0]}."] if self.cuts else []

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        times = _times(self.time, site.columns)
        starts, ends = np.array([0.0, *self.cuts]), np.array([*self.cuts, np.inf])
        whose, which = np.nonzero(times[:, None] > starts)
        exposure = np.minimum(times[whose], ends[which]) - starts[which]
        last = times[whose] <= ends[which]
        events = last & _events(self.event, site.columns, len(times))[whose] if observed else np.zeros(len(whose), bool)
        made = dict(zip(_made(self.time), (events.astype(float), exposure), strict=True))
        made |= {label: (which == k).astype(float) for k, label in enumerate(_labels(self.time, self.cuts))}
        columns = {name: values[whose] for name, values in site.columns.items()}
        return Site(site.name, columns | made, len(whose), site.dropped), whose


def whole(formula: Formula, sites: Sequence[Site], declared: Declared) -> Rows:
    """Every row is one row."""
    return Rows(formula)


def constant_hazard(formula: Formula, sites: Sequence[Site], declared: Declared) -> Rows:
    """One interval for all times."""
    return episodes(formula, sites, declared._replace(cuts=()))


def episodes(formula: Formula, sites: Sequence[Site], declared: Declared) -> Rows:
    """Intervals that end at the cut points given, or else at quartiles of time, told from sites' counts."""
    time = formula.response
    cuts = _quartiles(time, sites) if declared.cuts is None else _checked(declared.cuts)
    events, exposure = _made(time)
    terms = " + ".join([formula.text.split("~")[1], *(f"`{label}`" for label in _labels(time, cuts)[1:])])
    text = f"`{events}` ~ {terms} + offset(log(`{exposure}`))"
    return _Episodes(parsed(text), time, declared.event, formula, cuts)


def _made(time: Factor) -> tuple[str, str]:
    """The columns that are made of a time: events and exposure."""
    return f"events of {time.text}", f"exposure of {time.text}"


def _labels(time: Factor, cuts: Sequence[float]) -> list[str]:
    """The columns that are 1 in an interval."""
    ends = [f"{cut:.4g}" for cut in cuts]
    return [f"{time.text} {low} to {high}" for low, high in zip(["0", *ends], [*ends, "…"], strict=True)]


def _checked(cuts: Sequence[float]) -> tuple[float, ...]:
    try:
        found = tuple(float(cut) for cut in cuts)
    except (TypeError, ValueError):
        raise SettingsError("Give the cuts of time as a list of numbers.") from None
    rising = all(low < high for low, high in zip((0.0, *found), found, strict=False))
    if (
        not rising
        or not np.isfinite(found).all()
        or len({f"{cut:.4g}" for cut in found}) < len(found)
        or len(found) > _MOST_CUTS
    ):
        raise SettingsError(f"The cuts of time must rise from above 0, and be at most {_MOST_CUTS}.")
    return found


def _quartiles(time: Factor, sites: Sequence[Site]) -> tuple[float, ...]:
    logs = [np.log(_times(time, site.columns)) for site in sites]
    about = Moments.merge("", [Moments.summarise(time.text, values) for values in logs])
    counts = np.sum([binned(values, about) for values in logs], axis=0)
    found = np.exp(quantiles(np.linspace(0, 1, _INTERVALS + 1)[1:-1], about, counts))
    return tuple(float(f"{cut:.3g}") for cut in found)


def _times(time: Factor, columns: Columns) -> Float[np.ndarray, " n"]:
    values = evaluated(time.argument, columns)
    if values.dtype.kind != "f" or not (np.isfinite(values).all() and (values > 0).all()):
        raise DataError(f"The response {time.text!r} holds times: give finite numbers above 0.")
    return values


def _events(name: str | None, columns: Columns, rows: int) -> Bool[np.ndarray, " n"]:
    """Whether the event was at each row's time; in all rows without a column."""
    if name is None:
        return np.ones(rows, bool)
    values = columns[name]
    if not set(values.tolist()) <= {0.0, 1.0, "True", "False"}:
        raise DataError(f"Column {name!r} holds events: give 0 and 1, or truth values.")
    return np.isin(values, [1.0]) if values.dtype.kind == "f" else values == "True"
