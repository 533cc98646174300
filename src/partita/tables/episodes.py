"""Survival as Poisson regression: every row is split where intervals of time end, with log exposure as an offset.

Within an interval the hazard is constant, so that the likelihood of a row is that of Poisson counts, 0 or 1, of the
events in each interval that it was under observation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.errors import DataError, SettingsError
from partita.expectations.capabilities import ResponseOfRows, Simulated, offered
from partita.families.base import Theta
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.tables.formula import Factor, Formula, evaluated, parsed
from partita.tables.reading import Columns, Site
from partita.tables.response import Declared, Observed, Response

__all__ = ["TIMES", "Episodes", "RowSplit", "constant_hazard", "episodes", "split_from_dict", "whole"]

_INTERVALS = 4
"""How many intervals there are where cut points are not given: they are quartiles of time."""
_MOST_CUTS = 100
TIMES = np.linspace(-6, 9, 301)
"""Edges of the bins in which times are counted to place cut points, as powers of ten."""


@dataclasses.dataclass(frozen=True)
class RowSplit:
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

    def most(self, rows: int) -> int:
        """How many rows of the design so many rows of a table become at most."""
        return rows

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        """A site's rows of the design, and for each of them the row of the table; whether events are known."""
        return site, np.arange(site.rows)

    def observed(self, site: Site, response: Response) -> Observed:
        """What is known of the response of each row of the table."""
        return response.observed(site.columns)

    def log_units(self, split: Site, response: Response) -> Float[np.ndarray, " k"]:
        """What the log density of each row of the design exceeds that per unit of the response as it was given by.

        A row that is censored has a probability, which has no unit.
        """
        return np.log(response.sd) * ~response.observed(split.columns).censored

    def unfinished(self, site: Site) -> tuple[Site, Int[np.ndarray, " k"]]:
        """The rows of the design that responses are simulated from, and for each of them the row of the table."""
        return site, np.arange(site.rows)

    def drawn(
        self, model: Model, theta: Theta, data: PyTree, real: int, key: Key[Array, ""]
    ) -> Float[np.ndarray, "n s"]:
        """A response of each row of the table at each draw of θ, given the first, real rows of an unfinished design."""
        able = offered(model, Simulated, "responses that can be simulated", "leave the check out")
        return np.asarray(_simulated(able, theta, data, key))[:real]

    def to_dict(self) -> dict[str, Any]:
        """The rows as texts and numbers, for JSON."""
        return {"asked": self.asked.text}


@dataclasses.dataclass(frozen=True)
class Episodes(RowSplit):
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

    def most(self, rows: int) -> int:
        return rows * (len(self.cuts) + 1)

    def split(self, site: Site, observed: bool = True) -> tuple[Site, Int[np.ndarray, " k"]]:
        times = _times(self._time, site.columns)
        happened = _events(self.event, site.columns, len(times)) if observed else np.zeros(len(times), bool)
        return self._split(site, times, happened)

    def observed(self, site: Site, response: Response) -> Observed:
        return Observed(_times(self._time, site.columns), ~_events(self.event, site.columns, site.rows))

    def log_units(self, split: Site, response: Response) -> Float[np.ndarray, " k"]:
        """A Poisson count of 1 has the density of the event's time, times the exposure."""
        events, exposure = (split.columns[name] for name in _made(self._time))
        return events * np.log(exposure)

    def unfinished(self, site: Site) -> tuple[Site, Int[np.ndarray, " k"]]:
        """Every row in all intervals, for a unit of time in the last."""
        return self._split(site, np.full(site.rows, (0.0, *self.cuts)[-1] + 1), np.zeros(site.rows, bool))

    def drawn(
        self, model: Model, theta: Theta, data: PyTree, real: int, key: Key[Array, ""]
    ) -> Float[np.ndarray, "n s"]:
        """Times at which the hazard that has come together reaches a standard exponential."""
        able = offered(model, ResponseOfRows, "response to predict", "leave the check out")
        hazards = np.asarray(_responses(able, theta, data))[:real]
        hazards = hazards.reshape(-1, len(self.cuts) + 1, hazards.shape[1])
        reached = np.asarray(jax.random.exponential(key, hazards[:, 0].shape, hazards.dtype))
        return self._reached(hazards, reached)

    def _reached(
        self, hazards: Float[np.ndarray, "n k s"], level: Float[np.ndarray, "n s"]
    ) -> Float[np.ndarray, "n s"]:
        """When the cumulative hazard is this level, given that of each interval, and of a unit of time in the last."""
        before = np.cumsum(hazards, axis=1) - hazards
        which = (before[:, 1:] < level[:, None]).sum(axis=1)[:, None]
        first, rate = (np.take_along_axis(each, which, axis=1)[:, 0] for each in (before, hazards))
        starts = np.array([0.0, *self.cuts])
        widths = np.append(np.diff(starts), 1.0)
        return starts[which[:, 0]] + widths[which[:, 0]] * (level - first) / rate

    def _split(
        self, site: Site, times: Float[np.ndarray, " n"], happened: Bool[np.ndarray, " n"]
    ) -> tuple[Site, Int[np.ndarray, " k"]]:
        """Rows up to these times, at which the event happened or not."""
        starts, ends = np.array([0.0, *self.cuts]), np.array([*self.cuts, np.inf])
        whose, which = np.nonzero(times[:, None] > starts)
        exposure = np.minimum(times[whose], ends[which]) - starts[which]
        last = times[whose] <= ends[which]
        events = last & happened[whose]
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


def split_from_dict(contents: Mapping[str, Any]) -> RowSplit:
    """The inverse of `to_dict`; anything else raises an `InputError`."""
    if isinstance(contents, Mapping) and contents.keys() == {"asked"}:
        return RowSplit(parsed(contents["asked"]))
    if not isinstance(contents, Mapping) or contents.keys() != {"asked", "event", "cuts", "agreed"}:
        raise DataError("This does not say how rows are split: send what RowSplit.to_dict made.")
    if not isinstance(contents["event"], str) or not isinstance(contents["cuts"], list):
        raise DataError("This does not say how rows are split: send what RowSplit.to_dict made.")
    agreed = contents["agreed"] is True
    return Episodes(parsed(contents["asked"]), contents["event"], _checked(contents["cuts"]), agreed)


def whole(formula: Formula, declared: Declared) -> RowSplit:
    """Every row is one row."""
    return RowSplit(formula)


def constant_hazard(formula: Formula, declared: Declared) -> RowSplit:
    """One interval for all times."""
    return Episodes(formula, declared.event or "")


def episodes(formula: Formula, declared: Declared) -> RowSplit:
    """Intervals that end at the cut points given, or else at quartiles of time, which sites agree on."""
    cuts = () if declared.cuts is None else _checked(declared.cuts)
    return Episodes(formula, declared.event or "", cuts, declared.cuts is not None)


@Compiled
def _simulated(model: Simulated, theta: Theta, data: PyTree, key: Array) -> Float[Array, "n s"]:
    keys = jax.random.split(key, len(jax.tree.leaves(theta)[0]))
    return jax.vmap(lambda each, own: model.simulated(each, data, own), out_axes=1)(theta, keys)


@Compiled
def _responses(model: ResponseOfRows, theta: Theta, data: PyTree) -> Float[Array, "n s"]:
    return jax.vmap(lambda each: model.response_of(each, data), out_axes=1)(theta)


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
