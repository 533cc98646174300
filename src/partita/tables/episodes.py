"""Survival as Poisson regression: every row is split where intervals of time end, with log exposure as an offset.

Within an interval the hazard is constant, so that the likelihood of a row is that of Poisson counts, 0 or 1, of the
events in each interval that it was under observation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from partita.errors import DataError, SettingsError
from partita.tables.formula import Factor, Formula, evaluated, parsed
from partita.tables.reading import Columns, Site
from partita.tables.response import Declared

__all__ = ["TIMES", "Episodes", "Rows", "constant_hazard", "episodes", "rows_from_dict", "whole"]

_INTERVALS = 4
"""How many intervals there are where cut points are not given: they are quartiles of time."""
_MOST_CUTS = 100
TIMES = np.linspace(-6, 9, 301)
"""Edges of the bins in which times are counted to place cut points, as powers of ten."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Which rows of the design a row of the table becomes: itself."""

    asked: Formula
    """The formula as it was given."""

    @property
    def known(self) -> bool:
        """Whether nothing is left to agree on."""
        return True

    @property
    def formula(self) -> Formula:
        """Of the design."""
        return self.asked

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table to predict for."""
        return self.asked.columns

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        return []

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        """A site's rows of the design, and for each of them the row of the table; whether events are known."""
        return site, np.arange(site.rows)

    def to_dict(self) -> dict[str, Any]:
        """The rows as texts and numbers, for JSON."""
        return {"asked": self.asked.text}


@dataclasses.dataclass(frozen=True)
class Episodes(Rows):
    """A row for each interval that it was under observation in."""

    event: str = ""
    """The column of events; empty if there was one in every row."""
    cuts: tuple[float, ...] = ()
    """Where intervals end."""
    agreed: bool = True
    """Whether the cut points are known; else sites agree on them."""

    @property
    def known(self) -> bool:
        return self.agreed

    @property
    def formula(self) -> Formula:
        events, exposure = _made(self._time)
        terms = [self.asked.text.split("~")[1], *(f"`{label}`" for label in _labels(self._time, self.cuts)[1:])]
        return parsed(f"`{events}` ~ {' + '.join(terms)} + offset(log(`{exposure}`))")

    @property
    def columns(self) -> tuple[str, ...]:
        """Also that of time: what is predicted is the number of events by then."""
        return tuple(dict.fromkeys((*self.asked.columns, *self._time.columns)))

    @property
    def notes(self) -> list[str]:
        return [f"Reference of the intervals: {_labels(self._time, self.cuts)[0]}."] if self.cuts else []

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        times = _times(self._time, site.columns)
        starts, ends = np.array([0.0, *self.cuts]), np.array([*self.cuts, np.inf])
        whose, which = np.nonzero(times[:, None] > starts)
        exposure = np.minimum(times[whose], ends[which]) - starts[which]
        last = times[whose] <= ends[which]
        events = last & _events(self.event, site.columns, len(times))[whose] if observed else np.zeros(len(whose), bool)
        made = dict(zip(_made(self._time), (events.astype(float), exposure), strict=True))
        made |= {label: (which == k).astype(float) for k, label in enumerate(_labels(self._time, self.cuts))}
        columns = {name: values[whose] for name, values in site.columns.items()}
        return Site(site.name, columns | made, len(whose), site.dropped), whose

    def counts(self, site: Site) -> Int[np.ndarray, " b"]:
        """How many of a site's times lie in each bin."""
        powers = np.log10(_times(self._time, site.columns))
        return np.histogram(np.clip(powers, TIMES[0], np.nextafter(TIMES[-1], 0)), TIMES)[0]

    def at_quartiles(self, counts: Int[np.ndarray, " b"]) -> "Episodes":
        """The same with cut points at quartiles of time, given all sites' counts."""
        cumulative = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
        found = 10 ** np.interp(np.linspace(0, 1, _INTERVALS + 1)[1:-1], cumulative, TIMES)
        return dataclasses.replace(self, cuts=_checked([float(f"{cut:.3g}") for cut in found]), agreed=True)

    def to_dict(self) -> dict[str, Any]:
        return {"asked": self.asked.text, "event": self.event, "cuts": list(self.cuts), "agreed": self.agreed}

    @property
    def _time(self) -> Factor:
        return self.asked.response


def rows_from_dict(contents: Mapping[str, Any]) -> Rows:
    """The inverse of `to_dict`; anything else raises an `InputError`."""
    if isinstance(contents, Mapping) and contents.keys() == {"asked"}:
        return Rows(parsed(contents["asked"]))
    if not isinstance(contents, Mapping) or contents.keys() != {"asked", "event", "cuts", "agreed"}:
        raise DataError("This does not say how rows are split: send what Rows.to_dict made.")
    if not isinstance(contents["event"], str) or not isinstance(contents["cuts"], list):
        raise DataError("This does not say how rows are split: send what Rows.to_dict made.")
    agreed = contents["agreed"] is True
    return Episodes(parsed(contents["asked"]), contents["event"], _checked(contents["cuts"]), agreed)


def whole(formula: Formula, declared: Declared) -> Rows:
    """Every row is one row."""
    return Rows(formula)


def constant_hazard(formula: Formula, declared: Declared) -> Rows:
    """One interval for all times."""
    return Episodes(formula, declared.event or "")


def episodes(formula: Formula, declared: Declared) -> Rows:
    """Intervals that end at the cut points given, or else at quartiles of time, which sites agree on."""
    cuts = () if declared.cuts is None else _checked(declared.cuts)
    return Episodes(formula, declared.event or "", cuts, declared.cuts is not None)


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
    told_apart = len({f"{cut:.4g}" for cut in found}) == len(found)
    if not (rising and told_apart and np.isfinite(found).all() and len(found) <= _MOST_CUTS):
        raise SettingsError(f"The cuts of time must rise from above 0, and be at most {_MOST_CUTS}.")
    return found


def _times(time: Factor, columns: Columns) -> Float[np.ndarray, " n"]:
    values = evaluated(time.argument, columns)
    if values.dtype.kind != "f" or not (np.isfinite(values).all() and (values > 0).all()):
        wrong = f"The response {time.text!r} holds times: give finite numbers above 0."
        raise DataError(wrong, wrong)
    return values


def _events(name: str, columns: Columns, rows: int) -> Bool[np.ndarray, " n"]:
    """Whether the event was at each row's time; in all rows without a column."""
    if not name:
        return np.ones(rows, bool)
    values = columns[name]
    if not set(values.tolist()) <= {0.0, 1.0, "True", "False"}:
        wrong = f"Column {name!r} holds events: give 0 and 1, or truth values."
        raise DataError(wrong, wrong)
    return np.isin(values, [1.0]) if values.dtype.kind == "f" else values == "True"
