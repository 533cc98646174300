"""`fit`: a formula and a table in, a posterior in the table's own units out."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita import methods
from partita.data.shard import Partition, federate
from partita.data.table import OffsetTable, Table
from partita.errors import DataError, SettingsError, unknown
from partita.expectations.capabilities import CurvedInTable, ShiftedResponse, offered
from partita.families import Family, FullGaussian, MeanFieldGaussian
from partita.inputs import check_choice, check_kind, check_texts, check_whole, described
from partita.models import Model
from partita.results.mean_field import MeanFieldCheck
from partita.server.membership import retire
from partita.server.method import Method
from partita.server.monitor import Monitor
from partita.server.run import Result, run
from partita.server.stopping import Status
from partita.tables.coefficients import Coefficient, printed
from partita.tables.constants import Constant, Told
from partita.tables.design import INTERCEPT, Design, agree
from partita.tables.episodes import Rows
from partita.tables.formula import parsed
from partita.tables.likelihoods import Likelihood, likelihood
from partita.tables.reading import Site, columns_of, complete, frame_of, sites_of
from partita.tables.response import Declared, Response
from partita.tables.units import Units

__all__ = ["Fit", "fit"]

_Covariance = Literal["full", "mean-field"]
_FAMILIES: Mapping[str, type[FullGaussian] | type[MeanFieldGaussian]] = {
    "full": FullGaussian,
    "mean-field": MeanFieldGaussian,
}
_MOST_FULL = 500
"""The largest number of columns for which a full covariance is the default."""
_INTERCEPT_SD = 10.0
"""The least sd of the intercept's prior."""
_UNINFORMED = 0.3
"""A coefficient whose sd is at least so much of its prior's is said to depend on the prior."""
_MANY_ROWS = 50_000
"""Above so many rows padding sites to one length would take longer than compiling for several lengths."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted formula."""

    formula: str
    """As it was given."""
    design: Design
    response: Response
    family: str
    """The name of the likelihood."""
    sites: tuple[Site, ...]
    prior: Family
    model: Model
    method: Method
    partition: Partition
    result: Result
    likelihood: Likelihood
    rows: Rows
    """Which rows of the design a row of the table becomes."""

    @functools.cached_property
    def units(self) -> Units:
        """From θ to the table's own units."""
        return Units.of(self.design, self.response, self.likelihood)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coefficients."""
        return self.units.names

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """The posterior mean of the coefficients, in the columns' own units."""
        return self._coefficients(self.result.posterior.q)[0]

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Their posterior covariance."""
        return self._coefficients(self.result.posterior.q)[1]

    def joint(self) -> tuple[tuple[str, ...], Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
        """Names, mean and covariance of the coefficients, then of constants on the scale on which they are Gaussian."""
        names = (*self.names, *(constant.name for constant in self.units.constants))
        return names, *self._own(self.result.posterior.q)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know: rows dropped, reference levels, labels, and what the data hardly tell."""
        rows, dropped = (sum(getattr(site, field) for site in self.sites) for field in ("rows", "dropped"))
        said = [f"{rows} rows of {len(self.sites)} sites"] + (
            [f"{dropped} rows with missing values dropped"] if dropped else []
        )
        notes = [", ".join(said) + "."]
        notes += [f"Reference of {name}: {level}." for name, level in self.design.references.items()]
        notes += [*self.rows.notes, *self.response.notes]
        if self.result.status is not Status.CONVERGED:
            notes.append(f"The run has not converged ({self.result.message})")
        if vague := self._vague():
            few = ", ".join(vague[:5]) + (", …" if len(vague) > 5 else "")
            notes.append(f"The prior shapes {few}: the data tell little, as with separation or few rows.")
        remedy = 'use covariance="full"'
        caveat = self.result.posterior.caveat(self.names, remedy)
        if not isinstance(self.model, CurvedInTable) and not isinstance(self.prior, FullGaussian):
            caveat = MeanFieldCheck().sentence(self.names, remedy)
        if caveat:
            notes.append(caveat)
        return tuple(notes)

    def coefficients(self, mass: float = 0.95) -> list[Coefficient]:
        """A row per coefficient, then one per constant such as a dispersion, with central intervals of this mass."""
        if not 0 < mass < 1:
            raise SettingsError(f"The mass of an interval must be between 0 and 1, not {mass}.")
        mean, covariance = self._coefficients(self.result.posterior.q)
        scaled = dict(zip(self.units.parameters, self._vector(self.result.posterior.q)[0], strict=True))
        standardised = [scaled[name] for name in self.names]
        sd = np.sqrt(np.diag(covariance))
        reach = float(stats.norm.ppf((1 + mass) / 2)) * sd
        rows = zip(self.names, mean, sd, mean - reach, mean + reach, standardised, strict=True)
        return [
            Coefficient(
                name, float(own), float(wide), float(low), float(high), float(plain), self._ratio(own, low, high)
            )
            for name, own, wide, low, high, plain in rows
        ] + [Coefficient(*told, None, None) for told in self._constants(mass)]

    def _constants(self, mass: float) -> Sequence[Told]:
        mean, covariance = self._own(self.result.posterior.q)
        first = len(self.names)
        return self.likelihood.tell(self.units.constants, mean[first:], covariance[first:, first:], mass)

    def _ratio(self, *numbers: float) -> tuple[float, ...] | None:
        return tuple(np.exp(numbers).tolist()) if self.likelihood.ratio else None

    def by_site(self, name: str) -> dict[str, dict[str, tuple[float, float]]]:
        """Mean and sd of one coefficient from each site alone, from all, and from all without that site.

        All three follow from the factors that the server holds, without another message: a site alone is its factor
        times the prior.
        """
        if name not in self.names:
            raise unknown("coefficient", name, self.names)
        place, found = self.names.index(name), {}
        with enable_x64(True):
            q, state = self.result.posterior.q, self.result.state
            for site, factor in zip(state.names, state.factors, strict=True):
                alone, without = state.current_prior * factor.natural, q / factor.natural
                found[site] = {
                    label: self._one(member, place)
                    for label, member in (("alone", alone), ("without", without))
                    if bool(member.is_proper())
                } | {"all": self._one(q, place)}
        return found

    def predict(self, frame: Any) -> Float[np.ndarray, "n ..."]:
        """The posterior mean of the response for the rows of a table, NaN where a value is missing.

        For ordinal and multinomial responses the probability of each label, in the order of `response.labels`; for
        piecewise exponential ones the expected number of events by the row's time.
        """
        frame = frame_of(frame)
        (site,) = sites_of(frame, self.rows.columns, None)
        split, whose = self.rows.split(site, observed=False)
        with enable_x64(True):
            x, offset = self.design.standardised(split), _offset(self.design, split, self.response.slope)
            model = offered(
                self.result.posterior.model, ShiftedResponse, "closed-form prediction", "use another family"
            )
            known = 0.0 if offset is None else jnp.asarray(offset)
            each = np.asarray(model.expected_response(self.result.posterior.q, jnp.asarray(x), known))
        found = np.zeros((site.rows, *each.shape[1:]))
        np.add.at(found, whose, each)
        told = np.full((len(frame), *each.shape[1:]), np.nan)
        told[complete(columns_of(frame, self.rows.columns), len(frame))] = self.response.restored(found)
        return told

    def without(self, site: str) -> Self:
        """The fit without one site: its factor is divided out, and the others settle."""
        parts = self.partition.without(site)
        with enable_x64(True):
            state = retire(self.result.state, site, self.method.aggregation)
            result = run(self.method, self.model, self.prior, parts, state=state, monitor=_QUIET)
        sites = tuple(each for each in self.sites if each.name != site)
        return dataclasses.replace(self, partition=parts, result=result, sites=sites)

    def __repr__(self) -> str:
        return self.table()

    def table(self, mass: float = 0.95) -> str:
        """The coefficients as a text, with central intervals of this mass."""
        title = f"{self.formula}   ({self.family}, {self.result.status.value})"
        return printed(title, self.coefficients(mass), self.likelihood.ratio, self.notes, mass)

    def _own(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = self._vector(q)
        turn = self.units.turn
        return turn @ mean + self.units.shift, turn @ covariance @ turn.T

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        """Without the constants."""
        mean, covariance = self._own(q)
        size = len(self.names)
        return mean[:size], covariance[:size, :size]

    def _vector(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        with enable_x64(True):
            covariance = q.covariance if isinstance(q, FullGaussian) else np.diag(np.asarray(q.moments()[1]) ** 2)
            return np.asarray(q.moments()[0]), np.asarray(covariance)

    def _one(self, q: Family, place: int) -> tuple[float, float]:
        mean, covariance = self._own(q)
        return float(mean[place]), float(np.sqrt(covariance[place, place]))

    def _vague(self) -> list[str]:
        with enable_x64(True):
            sds = np.asarray(self.result.posterior.sd) / np.asarray(self.prior.moments()[1])
        return [name for name, share in zip(self.units.parameters, sds, strict=True) if share >= _UNINFORMED]


_QUIET = Monitor(progress=False)


def fit(
    formula: str,
    data: Any,
    *,
    family: str = "gaussian",
    sites: str | None = None,
    prior: str = "normal(0, 2.5)",
    covariance: _Covariance | None = None,
    weights: str | None = None,
    positive: str | None = None,
    trials: str | None = None,
    event: str | None = None,
    link: str | None = None,
    noise: str | float | None = None,
    cuts: Sequence[float] | None = None,
    levels: Sequence[str] | None = None,
    rounds: int = 100,
    tolerance: float = 1e-6,
) -> Fit:
    """Fits a formula to a table, the rows of each site kept apart.

    Args:
        formula: such as "died ~ age + C(ward) + bs(bmi, df=4) + offset(log(days))".
        data: a data frame (pandas, polars, pyarrow, DuckDB), a mapping of columns, or the path of a file.
        family: the likelihood, one of `LIKELIHOODS`.
        sites: the column that says whose each row is; without it all rows are one site.
        prior: of the coefficients of standardised columns, "normal(mean, sd)"; the intercept's is normal(0, 10), or
            wider if this one is. For a Gaussian response in units of its sd.
        covariance: "full", the default up to 500 columns, or "mean-field", whose sds are too small where columns are
            correlated.
        weights: a column of row weights.
        positive: the label of a binary response that counts as 1.
        trials: of a binomial response, the column of the number of trials.
        event: of a time, the column that says whether the event was then (1) or had not been by then (0).
        link: of a binomial response, "logit", the default, "probit" or "cloglog".
        noise: of a Gaussian response, "learned", the default, "inferred" with the coefficients, or its known sd.
        cuts: where the intervals of a piecewise exponential end; quartiles of time by default.
        levels: the labels of an ordinal response in their order, or of a multinomial one with the reference first.
        rounds: how many visits of each site at most.
        tolerance: how many nats of KL every site's last answer may lie from the posterior when a fit has converged.

    Returns:
        The fit: print it, or ask for `coefficients`, `by_site`, `predict`, `without`.

    """
    check_choice("covariance", "full" if covariance is None else covariance, _FAMILIES)
    check_whole("number of rounds", rounds)
    named = {"column of sites": sites, "column of weights": weights, "positive label": positive}
    named |= {"column of trials": trials, "column of events": event, "link": link}
    for what, text in named.items():
        if text is not None:
            check_kind(what, text, str, "give a name", name="a text")
    if levels is not None:
        check_texts("levels", levels)
    declared = Declared(positive, trials, event, link, noise, cuts, levels)
    asked, chosen = parsed(formula), likelihood(family, declared)
    frame = frame_of(data)
    beside = (*declared.columns, *((weights,) if weights else ()))
    owners = tuple(sites_of(frame, tuple(dict.fromkeys((*asked.response.columns, *asked.columns, *beside))), sites))
    rows = chosen.rows(asked, owners, declared)
    split = [rows.split(site)[0] for site in owners]
    design = agree(rows.formula, split)
    response = chosen.kind(rows.formula, [site.columns for site in split], declared)
    units = Units.of(design, response, chosen)
    if covariance is None:
        covariance = "full" if len(units.parameters) <= _MOST_FULL else "mean-field"
    with enable_x64(True):
        tables = [_table(design, response, site) for site in split]
        weighted = [_weights(site, weights) for site in split]
        lengths = 1 if sum(site.rows for site in split) < _MANY_ROWS else 4
        partition = federate(tables, weights=weighted, names=[site.name for site in split], buckets=lengths)
        model = chosen.model(response)
        start = _prior(
            prior, _FAMILIES[covariance], design.names, len(chosen.classes(response)), chosen.constants(response)
        )
        method = methods.sequential(chosen.solver, learn=chosen.learned)
        result = run(method, model, start, partition, rounds=rounds, tolerance=tolerance, monitor=_QUIET)
    return Fit(asked.text, design, response, family, owners, start, model, method, partition, result, chosen, rows)


def _table(design: Design, response: Response, site: Site) -> Table | OffsetTable:
    """A site's rows as numbers."""
    x, y = jnp.asarray(design.standardised(site)), jax.tree.map(jnp.asarray, response.numbers(site.columns))
    offset = _offset(design, site, response.slope)
    return Table(x, y) if offset is None else OffsetTable(x, y, jnp.asarray(offset))


def _offset(design: Design, site: Site, unit: float) -> np.ndarray | None:
    """The formula's offset, if it has one, in units of the coefficients of the response as it is fitted."""
    return design.offset(site) / unit if design.formula.offsets else None


def _weights(site: Site, name: str | None) -> np.ndarray:
    if name is None:
        return np.ones(site.rows)
    found = site.columns[name]
    if found.dtype.kind != "f" or not (np.isfinite(found).all() and (found >= 0).all()):
        raise DataError(f"Column {name!r} holds weights: give finite numbers from 0 up.")
    return found


def _prior(
    text: str,
    family: type[FullGaussian] | type[MeanFieldGaussian],
    names: Sequence[str],
    predictors: int,
    constants: Sequence[Constant],
) -> Family:
    """The prior of the coefficients of standardised columns, of each linear predictor, and of the constants.

    The intercept's is wide, as a base rate may be small.
    """
    number = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*"
    found = re.fullmatch(rf"\s*normal\({number},{number}\)\s*", text) if isinstance(text, str) else None
    if not found or not float(found[2]) > 0:
        raise SettingsError(f'Write the prior as "normal(mean, sd)" with a positive sd, not {described(text)}.')
    mean, sd = map(float, found.groups())
    own = np.array([name == INTERCEPT for name in names] * predictors)
    means = np.append(np.where(own, 0.0, mean), [constant.mean for constant in constants])
    sds = np.append(np.where(own, max(sd, _INTERCEPT_SD), sd), [constant.sd for constant in constants])
    if family is FullGaussian:
        return FullGaussian.from_mean_covariance(means, np.diag(sds**2))
    return MeanFieldGaussian.from_mean_sd(means, sds)
