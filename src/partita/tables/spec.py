"""What is fitted: the settings that a user gives, and the spec that follows when sites have agreed on the design.

A spec is plain data, so that it goes to a file, or from a server to its clients.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Float, Int

from partita import methods
from partita.data.columns import Moments
from partita.data.shard import Partition, federate
from partita.data.table import GroupedTable, OffsetTable, Table
from partita.errors import DataError, SettingsError
from partita.families import BlockGaussian, Family, FullGaussian, MeanFieldGaussian, NearestMeanField
from partita.inputs import check_choice, check_finite_number, check_kind, check_texts
from partita.io.settings import build
from partita.models import Model
from partita.models.prior import OutsidePrior
from partita.models.prior_text import Placed, built, clauses, normal
from partita.numerics.arrays import jax_array
from partita.server.method import Method
from partita.tables.agreement import Agreement
from partita.tables.blocks import block_sizes
from partita.tables.design import Design
from partita.tables.formula import Formula, parsed
from partita.tables.group_terms import check_sites, columns_of_groups, numbers_of_groups, with_groups
from partita.tables.laws import Laws
from partita.tables.likelihoods import LIKELIHOODS, Likelihood, likelihood
from partita.tables.policies import policy
from partita.tables.reading import Site
from partita.tables.response import Declared, Response
from partita.tables.units import Units

__all__ = ["Settings", "Spec"]

_Vector = Float[np.ndarray, " d"]


def _full(mean: _Vector, sd: _Vector, widths: Sequence[int]) -> Family:
    return FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


def _block(mean: _Vector, sd: _Vector, widths: Sequence[int]) -> Family:
    return BlockGaussian.from_mean_sd(mean, sd, block_sizes(widths))


def _mean_field(mean: _Vector, sd: _Vector, widths: Sequence[int]) -> Family:
    kind = NearestMeanField if len(mean) <= _MOST_FULL else MeanFieldGaussian
    return kind.from_mean_sd(mean, sd)


def _mean_field_optimum(mean: _Vector, sd: _Vector, widths: Sequence[int]) -> Family:
    return MeanFieldGaussian.from_mean_sd(mean, sd)


_FAMILIES: Mapping[str, Callable[[_Vector, _Vector, Sequence[int]], Family]] = {
    "full": _full,
    "block": _block,
    "mean-field": _mean_field,
    "mean-field-optimum": _mean_field_optimum,
}
"""A prior of each form of the covariance, given mean and sd of every coefficient."""
_MOST_FULL = 500
"""The largest number of columns for which a full covariance is the default, and mean field's way; beyond are blocks."""
_MANY_ROWS = 50_000
"""Above so many rows padding sites to one length would take longer than compiling for several lengths."""
_AUTOMATIC = "automatic"
_AS_THEY_ARE = Moments(2, 0.0, 0.0, 2.0)
"""Of numbers that no kind of response moves or scales."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a user asks for; the arguments of `fit`."""

    formula: str
    family: str = "gaussian"
    prior: str = "normal(0, 2.5)"
    covariance: str = _AUTOMATIC
    weights: str = ""
    """The column of row weights; empty for none."""
    positive: str = ""
    """The label of a binary response that counts as 1; empty for the last in the alphabet."""
    trials: str = ""
    """The column of the number of trials."""
    event: str = ""
    """The column that says whether the event was at the time."""
    link: str = ""
    noise: str = ""
    """Of a Gaussian response: learned, inferred, or its known sd."""
    cuts: tuple[float, ...] = ()
    """Where intervals of time end; empty for quartiles."""
    levels: tuple[str, ...] = ()
    """The labels of the response in their order, or with the reference first."""
    missing: str = "drop"
    """What is done about missing predictors, by the name of a policy that makes one table."""

    def __post_init__(self) -> None:
        check_choice("covariance", self.covariance, (_AUTOMATIC, *_FAMILIES))
        if policy(self.missing).draws:
            raise SettingsError(
                "Missing values are drawn only where one process fits all sites, by pt.fit or partita fit: in a "
                'federation use missing = "mean", or complete each file beforehand.'
            )
        for what in ("weights", "positive", "trials", "event", "link", "noise"):
            check_kind(f"setting {what}", getattr(self, what), str, "give a name", name="a text")
        clauses(self.prior)
        grouped = parsed(self.formula).grouped
        if grouped and not self.likelihood.grouped:
            able = [name for name in LIKELIHOODS if likelihood(name, Declared()).grouped]
            raise SettingsError(
                f"The family {self.family} takes no effects of groups such as {grouped[0].text:.100}: use one of "
                f"{', '.join(able)}."
            )
        _ = self.begun  # which refuses what does not fit formula and likelihood

    @classmethod
    def given(
        cls,
        formula: str,
        family: str,
        prior: str | Mapping[str, str],
        missing: str,
        *,
        noise: str | float | None = None,
        cuts: Sequence[float | str] | None = None,
        levels: Sequence[str] | None = None,
        **names: str | None,
    ) -> Self:
        """The settings, where None stands for what is not said."""
        for what, text in names.items():
            if text is not None:
                check_kind(f"setting {what}", text, str, "give a name", name="a text")
        if levels is not None:
            check_texts("levels", levels)
        if noise is not None and not isinstance(noise, str):
            check_finite_number("noise", noise, above=0)
        said: dict[str, Any] = names | {
            "noise": None if noise is None else str(noise),
            "cuts": None if cuts is None else _cuts(cuts),
            "levels": None if levels is None else tuple(levels),
        }
        said = {name: value for name, value in said.items() if value is not None}
        if isinstance(prior, Mapping):
            prior = "; ".join(f"{name}: {law}" if name else f"{law}" for name, law in prior.items())
        return cls(formula, family, prior, missing=missing, **said)

    @property
    def declared(self) -> Declared:
        """What is said of response and likelihood."""
        return Declared(
            self.positive or None,
            self.trials or None,
            self.event or None,
            self.link or None,
            _number(self.noise) if self.noise else None,
            self.cuts or None,
            self.levels or None,
        )

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood."""
        return likelihood(self.family, self.declared)

    def row_weights(self, site: Site) -> Float[np.ndarray, " n"]:
        """The weight of each of a site's rows."""
        if not self.weights:
            return np.ones(site.rows)
        found = site.columns[self.weights]
        if found.dtype.kind != "f" or not (np.isfinite(found).all() and (found >= 0).all()):
            wrong = f"Column {self.weights!r} holds weights: give finite numbers from 0 up."
            raise DataError(wrong, wrong)
        return found

    def check_response(self, site: Site) -> None:
        """Raises where the model takes none of a site's numbers as its response, whatever sites agree on."""
        rows, chosen = self.begun.rows, self.likelihood
        formula, site = rows.formula, rows.split(site)[0]
        texts = any(site.columns[name].dtype.kind != "f" for name in formula.response.columns)
        if not texts and not chosen.kind.counted:
            x: Any = np.ones((site.rows, 1))
            response = chosen.kind.agreed(formula, _AS_THEY_ARE, self.declared)
            chosen.model(response).check(Table(x, response.numbers(site.columns)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that sites read."""
        formula = parsed(self.formula)
        weights = (self.weights,) if self.weights else ()
        beside = (*self.declared.columns, *weights)
        return tuple(dict.fromkeys((*formula.response.columns, *formula.columns, *beside)))

    @property
    def predictors(self) -> frozenset[str]:
        """The columns without which a row could be used, by some policy on missing values."""
        formula = parsed(self.formula)
        needed = {name for factor in (formula.response, *formula.offsets) for name in factor.columns}
        needed |= {group.text for group in formula.groups}
        return frozenset(formula.columns) - needed - {self.weights, *self.declared.columns}

    @property
    def optional(self) -> frozenset[str]:
        """The columns that may be missing in a row that is used."""
        return self.predictors if policy(self.missing).keeps else frozenset()

    @property
    def begun(self) -> Agreement:
        """What sites begin to agree on."""
        chosen = self.likelihood
        rows = chosen.rows(parsed(self.formula), self.declared)
        return Agreement.of(rows, policy(self.missing).marks, chosen.kind.counted)


class _Inputs(NamedTuple):
    """Rows as the numbers from which their response is predicted."""

    x: Float[np.ndarray, "k d"]
    offset: Float[np.ndarray, " k"]
    whose: Int[np.ndarray, " k"]
    """For each row of the design, the row of the table."""
    rows: Site
    """The rows of the design."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Settings, with the design and the response that sites have agreed on."""

    settings: Settings
    agreement: Agreement

    def __post_init__(self) -> None:
        if not (self.agreement.complete and self.agreement.follows(self.settings.begun)):
            raise DataError("Sites have not agreed on a design of this formula: go through round 0 with it.")
        _ = self.response  # which refuses what does not fit the likelihood

    @functools.cached_property
    def response(self) -> Response:
        """How every site turns its response into numbers."""
        formula = self.design.formula
        about = self.agreement.response.columns[formula.response.text]
        return self.settings.likelihood.kind.agreed(formula, about, self.settings.declared)

    @functools.cached_property
    def units(self) -> Units:
        """From θ to the table's own units."""
        return Units.of(self.design, self.response, self.likelihood, self.laws.scales)

    @functools.cached_property
    def likelihood(self) -> Likelihood:
        """The likelihood, with effects of groups if the formula has some."""
        own, terms = self.settings.likelihood, self.design.formula.grouped
        return with_groups(own, terms, self.design) if terms else own

    @property
    def design(self) -> Design:
        """How every site makes its design matrix."""
        return self.agreement.design

    @property
    def formula(self) -> Formula:
        """The formula as it was given."""
        return self.agreement.rows.asked

    @property
    def covariance(self) -> str:
        """The form of the covariance."""
        if self.settings.covariance != _AUTOMATIC:
            return self.settings.covariance
        return "full" if len(self.units.parameters) <= _MOST_FULL else "block"

    def table(self, site: Site) -> Table | OffsetTable | GroupedTable:
        """A site's rows as numbers."""
        return self.design_table(self.agreement.rows.split(site)[0])

    def design_table(self, split: Site) -> Table | OffsetTable | GroupedTable:
        """Rows of the design, which a site's rows were split into, as numbers."""
        x = jax_array(self._standardised(split))
        y = jax.tree.map(jax_array, self.response.numbers(split.columns))
        if self.design.formula.grouped:
            return self.with_groups(OffsetTable(x, y, jax_array(self._offset(split))), split)
        return OffsetTable(x, y, jax_array(self._offset(split))) if self.design.formula.offsets else Table(x, y)

    def with_groups(self, table: OffsetTable, split: Site) -> GroupedTable:
        """Rows of the design as numbers, with what effects of groups are multiplied by, and whose they are."""
        terms = self.design.formula.grouped
        z, group = columns_of_groups(terms, self.design, split), numbers_of_groups(terms, split)
        return GroupedTable(table.x, table.y, jax_array(z), jax_array(group), table.offset)

    def inputs(self, site: Site) -> _Inputs:
        """A site's rows as the numbers from which their response is predicted."""
        split, whose = self.agreement.rows.split(site, observed=False)
        return _Inputs(self._standardised(split), self._offset(split), whose, split)

    def _standardised(self, split: Site) -> Float[np.ndarray, "n d"]:
        """Columns of the design, then a column of zeros for each scale of the prior, on which no row depends."""
        x = self.design.standardised(split)
        return np.column_stack([x, np.zeros((len(x), len(self.laws.scales)))])

    @functools.cached_property
    def laws(self) -> Laws:
        """The priors of the coefficients."""
        return Laws.of(self.settings.prior, self.design.names)

    def _offset(self, split: Site) -> Float[np.ndarray, " n"]:
        """The sum of the formula's offsets, in units of the coefficients of the response as it is fitted."""
        return self.design.offset(split) / self.response.slope if self.design.formula.offsets else np.zeros(split.rows)

    def weights(self, site: Site) -> Float[np.ndarray, " n"]:
        """The weight of each row of the design."""
        return self.settings.row_weights(self.agreement.rows.split(site)[0])

    def partition(self, sites: Sequence[Site]) -> Partition:
        """The rows of sites as numbers; none where none are at hand."""
        if not sites:
            return Partition((), (), ())
        if self.formula.grouped:
            check_sites(self.formula.grouped[0], sites)
        tables, weights = [self.table(site) for site in sites], [self.weights(site) for site in sites]
        lengths = 1 if sum(site.rows for site in sites) < _MANY_ROWS else 4
        return federate(tables, weights=weights, names=[site.name for site in sites], buckets=lengths)

    def model(self) -> Model:
        """The likelihood's model."""
        return self.likelihood.model(self.response)

    def method(self, name: str = "sequential", **settings: Any) -> Method:
        """By which it is fitted; what the likelihood has besides coefficients and constants is learned."""
        chosen = self.likelihood
        own: dict[str, Any] = {"learn": chosen.learned}
        if "solver" in methods.settings_of(name):
            own["solver"] = chosen.solver
        return methods.named(name, **own | settings)

    def prior(self) -> Family | OutsidePrior:
        """The prior of the coefficients of standardised columns, of each linear predictor, and of the constants."""
        chosen, response = self.likelihood, self.response
        classes, widths = len(chosen.classes(response)), (*self.design.widths, *(1 for _ in self.laws.scales))
        constants = chosen.constants(response)
        placed = [each for place in range(classes) for each in self.laws.placed(place)]
        first = classes * sum(widths)
        placed += [Placed(normal(each.mean, each.sd), (first + k,)) for k, each in enumerate(constants)]
        widths = widths * classes + (1,) * len(constants)
        return built(placed, first + len(constants), lambda mean, sd: _FAMILIES[self.covariance](mean, sd, widths))

    def to_dict(self) -> dict[str, Any]:
        """The spec as lists, texts and numbers, for JSON."""
        return {"settings": dataclasses.asdict(self.settings), **self.agreement.to_dict()}

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        if not isinstance(contents, Mapping) or not isinstance(contents.get("settings"), Mapping):
            raise DataError("This is not the spec of a fit: send what Spec.to_dict made.")
        rest = {key: value for key, value in contents.items() if key != "settings"}
        return cls(build(Settings, contents["settings"], "the spec"), Agreement.from_dict(rest))


def _cuts(values: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise SettingsError("Give the cuts as a list of numbers.") from None


def _number(text: str) -> str | float:
    """The number that a text is, or else the text."""
    try:
        return float(text)
    except ValueError:
        return text
