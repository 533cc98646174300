"""Round 0: sites agree on design and response from counts and sums, never from pooled rows.

It goes in stages. In each, every site answers with a summary of its rows, and the server adds what follows from all
answers: where intervals of time end, if rows are split at them, from counts in bins; levels and moments of factors and
response; knots of splines from counts in bins as wide as a tenth of a standard deviation; the scales of the columns.
Answers are plain data, the same in one process and on a network.
"""

import abc
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float

from partita.data.columns import Column, Counts, Moments
from partita.data.disclosure import Limits
from partita.data.plausible import MOST_LEVELS, check_sums, crowding, outlying
from partita.data.preprocess import Summary, merge
from partita.errors import DataError, SettingsError
from partita.tables import bins
from partita.tables.cells import is_counted, smallest_cells
from partita.tables.design import Design, absent, categories, numbers
from partita.tables.episodes import Episodes, RowSplit, split_from_dict
from partita.tables.formula import Factor
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Columns, Site

__all__ = ["Agreement", "Answer", "agreed"]

Answer = Mapping[str, Any]
"""What a site sends: lists, texts and numbers."""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What sites have agreed on so far."""

    rows: RowSplit
    """Which rows of the design a row of the table becomes."""
    design: Design
    counted: bool = False
    """Whether numbers that are the response are labels."""
    response: Summary = Summary({})
    """Of the response."""

    @classmethod
    def of(cls, rows: RowSplit, indicated: bool = False, counted: bool = False) -> Self:
        """The beginning: a formula, and whether missing numbers are replaced by means and marked."""
        return cls(rows, Design(rows.formula, indicated), counted)

    @property
    def stages_left(self) -> int:
        """How many stages are left."""
        return len(self._waiting())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to agree on."""
        return self.stages_left == 0

    def answer(self, site: Site) -> Answer:
        """What a site sends next."""
        return next((stage.answer(self, site) for stage in self._waiting()), {})

    def numbers(self, site: Site) -> dict[str, Float[np.ndarray, " n"]]:
        """The columns whose moments a site sends next or, once all is agreed on, those of its design."""
        return (self._waiting() or [_SCALES])[0].numbers(self, site)

    def check(self, answer: Answer, rows: int) -> None:
        """Raises unless this may be what a site with so many rows sends next."""
        for stage in self._waiting()[:1]:
            stage.check(self, answer, rows)

    def follows(self, begun: "Agreement") -> bool:
        """Whether sites may have come to this from there."""
        whole = self.rows.to_dict() == begun.rows.to_dict()
        rows = whole if begun.rows.known else self.rows.asked.text == begun.rows.asked.text
        return rows and (self.design.indicated, self.counted) == (begun.design.indicated, begun.counted)

    def strangers(
        self, answers: Mapping[str, Answer], likelihood: Likelihood, levels: Sequence[str] | None = None
    ) -> dict[str, str]:
        """The sites whose columns are of another kind, or whose labels are others, than most sites', and why.

        Where the levels of the response are given, a site with another label is one of them.
        """
        if not (answers and self._summarising):
            return {}
        summaries = {name: Summary.from_dict(answer) for name, answer in answers.items()}
        found = _strangers(summaries, self, likelihood, levels)
        return found | crowding({name: summary for name, summary in summaries.items() if name not in found})

    def outlying(self, answers: Mapping[str, Answer], bound: float) -> dict[str, str]:
        """The sites whose means or sds lie beyond a bound from the medians of all, and why; 0 is no bound."""
        if not any(stage.summarising for stage in self._waiting()[:1]):
            return {}
        return outlying({name: Summary.from_dict(answer) for name, answer in answers.items()}, bound)

    def missing(self, answer: Answer) -> dict[str, int]:
        """How many numbers are missing at a site, by column, and become the mean, if its answer tells so."""
        if not self._summarising:
            return {}
        own = dataclasses.replace(self.design, summary=Summary.from_dict(answer))
        return {factor.columns[0]: own.missing(factor) for factor in own.marked}

    def taken(self, answers: Sequence[Answer]) -> "Agreement":
        """The same with what follows from the answers of all sites."""
        return next((stage.taken(self, answers) for stage in self._waiting()), self)

    def to_dict(self) -> dict[str, Any]:
        """The agreement as lists, texts and numbers, for JSON."""
        return {
            "rows": self.rows.to_dict(),
            "design": self.design.to_dict(),
            "counted": self.counted,
            "response": self.response.to_dict(),
        }

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        keys = {"rows", "design", "counted", "response"}
        if not isinstance(contents, Mapping) or contents.keys() != keys:
            raise DataError("This is not an agreement on a design: send what Agreement.to_dict made.")
        rows, design = split_from_dict(contents["rows"]), Design.from_dict(contents["design"])
        if rows.formula.text != design.formula.text:
            raise DataError("This design is not of its formula: send what Agreement.to_dict made.")
        return cls(rows, design, contents["counted"] is True, Summary.from_dict(contents["response"]))

    @property
    def _summarising(self) -> bool:
        """Whether the next answers are summaries of factors and response."""
        return isinstance(next(iter(self._waiting()), None), _Factors)

    def _waiting(self) -> "list[_Stage]":
        return [stage for stage in _STAGES if stage.needed(self)]


def agreed(begun: Agreement, sites: Sequence[Site], limits: Limits | None = None) -> Agreement:
    """All of round 0 with sites in this process, with limits on what they disclose to one another."""
    found = begun
    while not found.complete:
        found = found.taken(_answers(found, sites, limits))
    return found


def _answers(known: Agreement, sites: Sequence[Site], limits: Limits | None) -> list[Answer]:
    """What sites send next, within the limits."""
    if limits is None:
        return [known.answer(site) for site in sites]
    return [limits.released(site.rows, partial(known.numbers, site), partial(known.answer, site)) for site in sites]


class _Stage(abc.ABC):
    """One exchange of summaries."""

    summarising: ClassVar[bool] = False
    """Whether answers are summaries of columns, rather than counts in bins."""

    @abc.abstractmethod
    def needed(self, known: Agreement) -> bool:
        """Whether what this stage adds is not known."""

    @abc.abstractmethod
    def answer(self, known: Agreement, site: Site) -> Answer:
        """What a site sends."""

    def numbers(self, known: Agreement, site: Site) -> dict[str, Float[np.ndarray, " n"]]:
        """The columns whose moments are in a site's answer."""
        return {}

    @abc.abstractmethod
    def check(self, known: Agreement, answer: Answer, rows: int) -> None:
        """Raises unless a site with so many rows may send this."""

    @abc.abstractmethod
    def taken(self, known: Agreement, answers: Sequence[Answer]) -> Agreement:
        """What is known with all answers."""


class _Intervals(_Stage):
    """Counts of times in bins, where rows are split at quartiles of time."""

    def needed(self, known: Agreement) -> bool:
        return not known.rows.known

    def answer(self, known: Agreement, site: Site) -> Answer:
        return {"times": self._rows(known).counts(site).tolist()}

    def check(self, known: Agreement, answer: Answer, rows: int) -> None:
        bins.check_binned("times", bins.counts_of(answer, "times", bins.TIMES), rows, rows)

    def taken(self, known: Agreement, answers: Sequence[Answer]) -> Agreement:
        counts = np.sum([bins.counts_of(answer, "times", bins.TIMES) for answer in answers], axis=0)
        return Agreement.of(self._rows(known).at_quartiles(counts), known.design.indicated, known.counted)

    @staticmethod
    def _rows(known: Agreement) -> Episodes:
        assert isinstance(known.rows, Episodes)
        return known.rows


class _Factors(_Stage):
    """Levels with their numbers of rows, or moments, of every factor and of the response."""

    summarising = True

    def needed(self, known: Agreement) -> bool:
        return not known.response.columns

    def answer(self, known: Agreement, site: Site) -> Answer:
        columns = known.rows.split(site)[0].columns
        response, *others = self._all(known)
        found = {response.text: _counted(response, columns) if known.counted else _summarised(response, columns)}
        return Summary(found | {factor.text: _summarised(factor, columns) for factor in others}).to_dict()

    def numbers(self, known: Agreement, site: Site) -> dict[str, Float[np.ndarray, " n"]]:
        columns = known.rows.split(site)[0].columns
        asked = [factor for factor in self._all(known)[known.counted :] if factor.function != "missing"]
        return {factor.text: numbers(factor, columns) for factor in asked if not is_counted(factor, columns)}

    def check(self, known: Agreement, answer: Answer, rows: int) -> None:
        found = _merged([answer], [factor.text for factor in self._all(known)])
        check_sums(Summary(found), rows, known.rows.most(rows), whole=not known.design.indicated)
        for name, column in found.items():
            if isinstance(column, Counts) and column.declared:
                raise DataError(f"A site declares levels of {name!r}: it needs the same version of partita.")
        for indicator in known.design.indicators:
            about = found[indicator.text]
            if not isinstance(about, Moments) or not about.is_share or about.present < rows:
                raise DataError(f"A site's sums of {indicator.text!r} are not those of its rows.")

    def taken(self, known: Agreement, answers: Sequence[Answer]) -> Agreement:
        formula = known.design.formula
        found = _merged(answers, [factor.text for factor in self._all(known)])
        for factor in formula.factors:
            _check(factor, found[factor.text])
        response = {formula.response.text: found.pop(formula.response.text)}
        design = dataclasses.replace(known.design, summary=Summary(found))
        return dataclasses.replace(known, design=design, response=Summary(response))

    @staticmethod
    def _all(known: Agreement) -> list[Factor]:
        formula = known.design.formula
        return [formula.response, *formula.factors, *known.design.indicators]


class _Knots(_Stage):
    """Counts in bins, of every factor that is given a spline."""

    def needed(self, known: Agreement) -> bool:
        return any(factor.text not in known.design.splines for factor in _splines(known.design))

    def answer(self, known: Agreement, site: Site) -> Answer:
        design, columns = known.design, known.rows.split(site)[0].columns
        return {
            factor.text: bins.binned(factor, design.moments(factor), columns).tolist() for factor in _splines(design)
        }

    def check(self, known: Agreement, answer: Answer, rows: int) -> None:
        least = 0 if known.design.indicated else rows
        for factor in _splines(known.design):
            bins.check_binned(
                factor.text, bins.counts_of(answer, factor.text, bins.KNOTS), least, known.rows.most(rows)
            )

    def taken(self, known: Agreement, answers: Sequence[Answer]) -> Agreement:
        splines = {}
        for factor in _splines(known.design):
            counts = np.sum([bins.counts_of(answer, factor.text, bins.KNOTS) for answer in answers], axis=0)
            splines[factor.text] = bins.spline(factor, known.design.moments(factor), counts)
        return dataclasses.replace(known, design=dataclasses.replace(known.design, splines=splines))


class _Scales(_Stage):
    """Moments of every column of the design matrix, which standardise it."""

    summarising = True

    def needed(self, known: Agreement) -> bool:
        return not known.design.names

    def answer(self, known: Agreement, site: Site) -> Answer:
        columns = self._columns(known, site)
        return Summary({name: Moments.summarise(name, column) for name, column in columns.items()}).to_dict()

    def numbers(self, known: Agreement, site: Site) -> dict[str, Float[np.ndarray, " n"]]:
        marked = {factor.text for factor in known.design.marked}
        told = {name: column for name, column in self._columns(known, site).items() if name not in marked}
        return told | smallest_cells(known.design, known.rows.split(site)[0].columns)

    @staticmethod
    def _columns(known: Agreement, site: Site) -> dict[str, Float[np.ndarray, " n"]]:
        design = known.design.named()
        return dict(zip(design.names, design.matrix(known.rows.split(site)[0]).T, strict=True))

    def check(self, known: Agreement, answer: Answer, rows: int) -> None:
        found = _merged([answer], known.design.named().names)
        if not all(isinstance(each, Moments) for each in found.values()):
            raise DataError("A site has sent something else than moments: it needs the same version of partita.")
        check_sums(Summary(found), rows, known.rows.most(rows), whole=True)

    def taken(self, known: Agreement, answers: Sequence[Answer]) -> Agreement:
        design = known.design.named()
        found = _merged(answers, design.names).values()
        return dataclasses.replace(known, design=design.scaled([each for each in found if isinstance(each, Moments)]))


_SCALES = _Scales()
_STAGES: tuple[_Stage, ...] = (_Intervals(), _Factors(), _Knots(), _SCALES)
"""In their order."""


def _merged(answers: Sequence[Answer], names: Sequence[str]) -> dict[str, Column]:
    """The summary of all sites' columns, which must be these."""
    found = merge(Summary.from_dict(answer) for answer in answers).columns
    if tuple(found) != tuple(names):
        raise DataError("A site has summarised other columns than those of the formula: use the same formula.")
    return dict(found)


def _strangers(
    summaries: Mapping[str, Summary], known: Agreement, likelihood: Likelihood, levels: Sequence[str] | None
) -> dict[str, str]:
    """Why sites cannot agree with most others."""
    formula, found = known.design.formula, dict[str, str]()
    for factor in (formula.response, *formula.factors):
        kinds = [type(summary.columns[factor.text]) for summary in summaries.values()]
        usual = max(kinds, key=kinds.count)
        for name, kind in zip(summaries, kinds, strict=True):
            if kind is not usual:
                found[name] = f"{factor.text} is {kind.kind} here and {usual.kind} at most clients: give it one kind."
    text = formula.response.text
    labels = {name: summary.columns[text].levels for name, summary in summaries.items() if name not in found}
    having = Counter(label for some in labels.values() for label in some)
    most = set(levels) if levels else {label for label, _ in having.most_common(2 if likelihood.kind.binary else None)}
    if strange := [name for name, some in labels.items() if not set(some) <= most]:
        whose = "the levels of the fit" if levels else "at most clients"
        found |= dict.fromkeys(strange, f"The response {text!r} has other labels than {whose}: recode it.")
    return found


def _summarised(factor: Factor, columns: Columns) -> Column:
    """What a site sends of a factor: counts of levels where it is a category, else moments."""
    if factor.function == "missing":
        return Moments.summarise(factor.text, absent(factor, columns))
    if is_counted(factor, columns):
        return _counted(factor, columns)
    return Moments.summarise(factor.text, numbers(factor, columns))


def _counted(factor: Factor, columns: Columns) -> Counts:
    """How many rows have each of a category's levels."""
    return Counts.summarise(factor.text, np.array(categories(factor, columns), dtype=str), ())


def _check(factor: Factor, about: Column) -> None:
    """Raises where a factor cannot stand in a formula."""
    options = {"C": {"reference"}, "bs": {"df", "knots", "degree"}}.get(factor.function, set())
    for option in factor.options.keys() - options:
        raise SettingsError(f"{factor.text} has the option {option!r}: use {' or '.join(sorted(options)) or 'none'}.")
    if isinstance(about, Counts):
        if len(about.levels) < 2:
            raise DataError(f"{factor.text} has one level, {about.levels[0]!r}, in all rows: leave it out.")
        if len(about.levels) > MOST_LEVELS:
            raise DataError(
                f"{factor.text} has {len(about.levels)} levels, more than {MOST_LEVELS}: is it an identifier?"
            )


def _splines(design: Design) -> list[Factor]:
    return [factor for factor in design.formula.factors if factor.function == "bs"]
