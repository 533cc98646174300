"""The response of a formula as numbers: labels that are agreed among sites, units, and what belongs to it.

Each kind of response below says, given what all sites send of theirs, how every site turns it into numbers.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from partita.data.columns import Column, Counts, Moments
from partita.data.table import Times, Trials
from partita.errors import DataError, SettingsError
from partita.tables.design import categories, numbers
from partita.tables.formula import Factor, Formula
from partita.tables.reading import Columns

__all__ = [
    "BINARY",
    "IN_UNITS",
    "NOMINAL",
    "NUMERIC",
    "ORDERED",
    "STANDARDISED",
    "SURVIVAL",
    "TRIALS",
    "Declared",
    "Kind",
    "Observed",
    "Response",
]

_MOST_LABELS = 20


class Declared(NamedTuple):
    """Settings of the response and likelihood; None where they are not given."""

    positive: str | None = None
    """The label that counts as 1."""
    trials: str | None = None
    """The column of the number of trials."""
    event: str | None = None
    """The column that says whether the event was at the time."""
    link: str | None = None
    noise: str | float | None = None
    cuts: Sequence[float] | None = None
    """Where intervals of time end."""
    levels: Sequence[str] | None = None
    """The labels in their order; the first is the reference."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are named."""
        return tuple(name for name in (self.trials, self.event) if name is not None)


class Observed(NamedTuple):
    """What is known of the response of each row, in its own units: a number, a label's place, events, or a time."""

    numbers: Float[np.ndarray, " n"]
    censored: Bool[np.ndarray, " n"]
    """Whether it is only known to be larger, as a time without event is."""


def _known(y: Float[np.ndarray, " n"]) -> Observed:
    return Observed(y, np.zeros(len(y), bool))


@dataclasses.dataclass(frozen=True)
class Response:
    """How every site turns its response into numbers."""

    factor: Factor
    labels: tuple[str, ...] = ()
    """The labels that count as 0, 1, …; none if the response is numbers."""
    mean: float = 0.0
    sd: float = 1.0
    """By which numbers are standardised."""
    slope: float = 1.0
    """By which coefficients of the standardised response are multiplied."""
    shift: float = 0.0
    """What is added to its intercept."""
    note: str | None = None
    """What a reader should know."""
    paired: Callable[[Any, Any], Any] | None = None
    """Makes the response of two columns."""
    beside: str | None = None
    """The second of them; where there is none, it is ones."""
    known: Callable[[Any], Observed] = _known
    """What is observed of the response, before its units are restored."""

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        return [] if self.note is None else [self.note]

    def numbers(self, columns: Columns) -> Any:
        """A site's response: numbers, or a named tuple of numbers."""
        if self.labels:
            texts = categories(self.factor, columns)
            if new := sorted(set(texts) - set(self.labels)):
                raise DataError(
                    f"The response {self.factor.text!r} has the label {new[0]!r}, where {', '.join(self.labels)} were "
                    "agreed on: recode it.",
                    f"The response {self.factor.text!r} has a label that was not agreed on.",
                )
            places = {label: float(place) for place, label in enumerate(self.labels)}
            found = np.array([places[text] for text in texts])
        else:
            found = (numbers(self.factor, columns) - self.mean) / self.sd
        if self.paired is None:
            return found
        return self.paired(found, np.ones(len(found)) if self.beside is None else _column(self.beside, columns))

    def observed(self, columns: Columns) -> Observed:
        """What is known of a site's response, in its own units."""
        numbers, censored = self.known(self.numbers(columns))
        return Observed(self.restored(numbers), censored)

    def restored(self, numbers: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """The inverse for numbers."""
        return self.mean + self.sd * numbers


class Kind(NamedTuple):
    """A kind of response."""

    agreed: Callable[[Formula, Column, Declared], Response]
    """The response of all sites, given the counts of their labels, or the moments of their numbers."""
    counted: bool = False
    """Whether numbers are labels too."""
    binary: bool = False
    """Whether there are two labels."""


def _numeric(formula: Formula, about: Column, declared: Declared) -> Response:
    """Numbers as they are."""
    _refuse_texts(formula.response, about)
    return Response(formula.response)


def _standardised(formula: Formula, about: Column, declared: Declared) -> Response:
    """Numbers whose unit has no meaning to the prior; without an intercept they are scaled and not centred."""
    known = _moments(formula.response, about)
    mean = known.mean if formula.has_intercept else 0.0
    return Response(formula.response, mean=mean, sd=known.sd, slope=known.sd, shift=mean)


def _in_units(formula: Formula, about: Column, declared: Declared) -> Response:
    """Positive numbers in units of their mean, where a log link and an intercept can take the unit in."""
    known = _moments(formula.response, about)
    unit = known.mean if formula.has_intercept and known.mean > 0 else 1.0
    return Response(formula.response, sd=unit, shift=float(np.log(unit)))


def _survival(formula: Formula, about: Column, declared: Declared) -> Response:
    """Times, in units of their mean, and whether the event was then; without a column it was in every row."""
    found = _in_units(formula, about, declared)
    return dataclasses.replace(
        found, paired=Times, beside=declared.event, known=lambda y: Observed(y.time, y.event == 0)
    )


def _trials(formula: Formula, about: Column, declared: Declared) -> Response:
    """Events among trials, or with neither a column of trials nor numbers, one of two labels."""
    found = (_binary if declared.trials is None else _numeric)(formula, about, declared)
    return dataclasses.replace(found, paired=Trials, beside=declared.trials, known=lambda y: _known(y.events))


def _binary(formula: Formula, about: Column, declared: Declared) -> Response:
    """One of two labels, or 0 and 1."""
    factor, positive = formula.response, declared.positive
    if not isinstance(about, Counts):
        if positive is not None:
            raise DataError(f"The response {factor.text!r} is numbers, so no label counts as 1: leave `positive` out.")
        return Response(factor)
    labels = sorted(about.levels)
    if len(labels) != 2:
        few = ", ".join(map(repr, labels[:5]))
        raise DataError(f"The response {factor.text!r} has the labels {few}, where two are needed: recode it.")
    one = labels[1] if positive is None else positive
    if one not in labels:
        raise DataError(
            f"The response {factor.text!r} has no label {positive!r}: choose {labels[0]!r} or {labels[1]!r}."
        )
    zero = labels[labels[0] == one]
    note = f"{factor.text} is {one!r} where it counts as 1, and {zero!r} where as 0."
    return Response(factor, (zero, one), note=note)


def _nominal(formula: Formula, about: Column, declared: Declared) -> Response:
    """One of several labels; the reference is the first of those listed, or the most frequent."""
    counts = _counts(about)
    order = _sorted(counts)
    reference = max(order, key=lambda label: counts[label])
    labels = _listed(formula.response, declared, [reference, *(label for label in order if label != reference)], counts)
    return Response(formula.response, labels, note=f"Reference of {formula.response.text}: {labels[0]}.")


def _ordered(formula: Formula, about: Column, declared: Declared) -> Response:
    """Ordered levels: as listed, or as numbers or in the alphabet."""
    if not formula.has_intercept:
        raise SettingsError("An ordinal response has cut points in place of an intercept: leave 0 + out.")
    counts = _counts(about)
    labels = _listed(formula.response, declared, _sorted(counts), counts)
    return Response(formula.response, labels, note=f"Order of {formula.response.text}: {' < '.join(labels)}.")


def _listed(factor: Factor, declared: Declared, order: Sequence[str], counts: Mapping[str, int]) -> tuple[str, ...]:
    """The labels in the order that was asked for."""
    labels = tuple(order if declared.levels is None else map(str, declared.levels))
    if len(set(labels)) != len(labels) or set(labels) != set(counts):
        few = ", ".join(map(repr, list(counts)[:8]))
        raise DataError(f"The response {factor.text!r} has the labels {few}: list each of them once as levels.")
    if not 3 <= len(labels) <= _MOST_LABELS:
        raise DataError(
            f"The response {factor.text!r} has {len(labels)} labels, where 3 to {_MOST_LABELS} are needed: recode it, "
            "or use bernoulli for two."
        )
    return labels


def _sorted(labels: Mapping[str, int]) -> list[str]:
    """As numbers where all are, else in the alphabet."""
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)


def _counts(about: Column) -> Mapping[str, int]:
    """How many rows have each label."""
    assert isinstance(about, Counts)
    return about.counts


def _moments(factor: Factor, about: Column) -> Moments:
    _refuse_texts(factor, about)
    assert isinstance(about, Moments)
    if not about.sd > 0:
        raise DataError(f"The response {factor.text!r} is the same in every row: there is nothing to explain.")
    return about


def _refuse_texts(factor: Factor, about: Column) -> None:
    if isinstance(about, Counts):
        raise DataError(f"The response {factor.text!r} holds texts, where this family needs numbers: recode it.")


def _column(name: str, columns: Columns) -> np.ndarray:
    """A column of numbers, or of truth values."""
    values = columns[name]
    if values.dtype.kind != "U":
        return values
    if set(values.tolist()) <= {"True", "False"}:
        return (values == "True").astype(float)
    raise DataError(f"Column {name!r} holds texts, where numbers are needed: recode it.")


NUMERIC = Kind(_numeric)
STANDARDISED = Kind(_standardised)
IN_UNITS = Kind(_in_units)
SURVIVAL = Kind(_survival)
TRIALS = Kind(_trials, binary=True)
BINARY = Kind(_binary, binary=True)
NOMINAL = Kind(_nominal, counted=True)
ORDERED = Kind(_ordered, counted=True)
