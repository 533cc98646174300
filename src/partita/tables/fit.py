"""`fit`: a formula and a table in, a posterior in the table's own units out."""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita.data.shard import Partition, federate
from partita.errors import SettingsError, unknown
from partita.families import Family
from partita.families.gaussian import gaussian
from partita.inputs import check_choice, check_kind, check_whole
from partita.models.glm import GeneralisedLinear
from partita.server.membership import retire
from partita.server.monitor import Monitor
from partita.server.run import Result, run
from partita.server.stopping import Status
from partita.tables.agreement import agreed
from partita.tables.coefficients import Coefficient, printed
from partita.tables.design import INTERCEPT
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site, columns_of, complete, frame_of, sites_of
from partita.tables.spec import POLICIES, Settings, Spec

__all__ = ["Fit", "fit", "fitted"]

_OPTIONAL = ("covariance", "weights", "positive")
_UNINFORMED = 0.3
"""A coefficient whose sd is at least so much of its prior's is said to depend on the prior."""
_MANY_ROWS = 50_000
"""Above so many rows padding sites to one length would take longer than compiling for several lengths."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted formula."""

    spec: Spec
    sites: tuple[Site, ...]
    partition: Partition
    result: Result

    @property
    def prior(self) -> Family:
        """The prior of the coefficients of standardised columns."""
        with enable_x64(True):
            return self.spec.prior()

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood."""
        return self.spec.settings.likelihood

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coefficients."""
        return self.spec.design.names

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """The posterior mean of the coefficients, in the columns' own units."""
        return self._own(self.result.posterior.q)[0]

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Their posterior covariance."""
        return self._own(self.result.posterior.q)[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know: rows dropped, reference levels, labels, and what the data hardly tell."""
        rows, dropped = (sum(getattr(site, field) for site in self.sites) for field in ("rows", "dropped"))
        said = [f"{rows} rows of {len(self.sites)} sites"] + (
            [f"{dropped} rows with missing values dropped"] if dropped else []
        )
        notes = [", ".join(said) + "."]
        notes += self.spec.design.notes + self.spec.response.notes
        if self.result.status is not Status.CONVERGED:
            notes.append(f"The run has not converged ({self.result.message})")
        if vague := self._vague():
            few = ", ".join(vague[:5]) + (", …" if len(vague) > 5 else "")
            notes.append(f"The prior shapes {few}: the data tell little, as with separation or few rows.")
        if caveat := self.result.posterior.caveat(self.names, 'use covariance="full"'):
            notes.append(caveat)
        return tuple(notes)

    def coefficients(self, mass: float = 0.95) -> list[Coefficient]:
        """A row per coefficient, with central intervals of this mass."""
        if not 0 < mass < 1:
            raise SettingsError(f"The mass of an interval must be between 0 and 1, not {mass}.")
        mean, covariance = self._own(self.result.posterior.q)
        standardised = self._vector(self.result.posterior.q)[0]
        sd = np.sqrt(np.diag(covariance))
        reach = float(stats.norm.ppf((1 + mass) / 2)) * sd
        rows = zip(self.names, mean, sd, mean - reach, mean + reach, standardised, strict=True)
        return [
            Coefficient(
                name, float(own), float(wide), float(low), float(high), float(scaled), self._ratio(own, low, high)
            )
            for name, own, wide, low, high, scaled in rows
        ]

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

    def predict(self, frame: Any) -> Float[np.ndarray, " n"]:
        """The posterior mean of the response for the rows of a table, NaN where a value that is needed is missing."""
        columns, optional, frame = self.spec.formula.columns, self.spec.settings.optional, frame_of(frame)
        (site,) = sites_of(frame, columns, None, optional)
        with enable_x64(True):
            x, offset = self.spec.design.standardised(site), self.spec.offset(site)
            model, q = self.result.posterior.model, self.result.posterior.q
            assert isinstance(model, GeneralisedLinear)
            found = np.asarray(model.expected_response(q, jnp.asarray(x), jnp.asarray(offset)))
        told = np.full(len(frame), np.nan)
        needed = [name for name in columns if name not in optional]
        told[complete(columns_of(frame, needed), len(frame))] = self.spec.response.restored(found)
        return told

    def without(self, site: str) -> Self:
        """The fit without one site: its factor is divided out, and the others settle."""
        parts = self.partition.without(site)
        with enable_x64(True):
            method, state = self.spec.method(), self.result.state
            state = retire(state, site, method.aggregation)
            result = run(method, self.spec.model(), self.prior, parts, state=state, monitor=_QUIET)
        sites = tuple(each for each in self.sites if each.name != site)
        return dataclasses.replace(self, partition=parts, result=result, sites=sites)

    def __repr__(self) -> str:
        return self.table()

    def table(self, mass: float = 0.95) -> str:
        """The coefficients as a text, with central intervals of this mass."""
        title = f"{self.spec.formula.text}   ({self.spec.settings.family}, {self.result.status.value})"
        return printed(title, self.coefficients(mass), self.likelihood.ratio, self.notes, mass)

    def _own(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = self._vector(q)
        turn = self.spec.design.in_own_units()
        shift = np.zeros(len(mean))
        scale = self.spec.response.sd
        if INTERCEPT in self.names:
            shift[self.names.index(INTERCEPT)] = self.spec.response.mean
        return scale * turn @ mean + shift, scale**2 * turn @ covariance @ turn.T

    def _vector(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        with enable_x64(True):
            return np.asarray(q.moments()[0]), np.asarray(gaussian(q).covariance)

    def _one(self, q: Family, place: int) -> tuple[float, float]:
        mean, covariance = self._own(q)
        return float(mean[place]), float(np.sqrt(covariance[place, place]))

    def _vague(self) -> list[str]:
        with enable_x64(True):
            sds = np.asarray(self.result.posterior.sd) / np.asarray(self.prior.moments()[1])
        return [name for name, share in zip(self.names, sds, strict=True) if share >= _UNINFORMED]


_QUIET = Monitor(progress=False)


def fit(
    formula: str,
    data: Any,
    *,
    family: str = "gaussian",
    sites: str | None = None,
    prior: str = "normal(0, 2.5)",
    covariance: str | None = None,
    weights: str | None = None,
    positive: str | None = None,
    missing: str = "drop",
    rounds: int = 100,
) -> Fit:
    """Fits a formula to a table, the rows of each site kept apart.

    Args:
        formula: such as "died ~ age + C(ward) + bs(bmi, df=4) + offset(log(days))".
        data: a data frame (pandas, polars, pyarrow, DuckDB), a mapping of columns, or the path of a file.
        family: the likelihood, one of `LIKELIHOODS`.
        sites: the column that says whose each row is; without it all rows are one site.
        prior: of the coefficients of standardised columns, "normal(mean, sd)"; the intercept's is normal(0, 10), or
            wider if this one is. For a Gaussian response in units of its sd.
        covariance: "full", the default up to 500 columns, "block", the default beyond, which ignores correlation
            across blocks of about 200 columns, or "mean-field", whose sds are too small where columns are correlated.
        weights: a column of row weights.
        positive: the label of a binary response that counts as 1.
        missing: what is done about missing predictors, one of `POLICIES`; a row without response, offset or weight is
            dropped in any case.
        rounds: how many visits of each site at most.

    Returns:
        The fit: print it, or ask for `coefficients`, `by_site`, `predict`, `without`.

    """
    check_whole("number of rounds", rounds)
    check_choice("policy on missing values", missing, POLICIES)
    texts = (("covariance", covariance), ("column of weights", weights), ("positive label", positive))
    for what, text in (*texts, ("column of sites", sites)):
        if text is not None:
            check_kind(what, text, str, "give a name", name="a text")
    given = {what: text for what, text in zip(_OPTIONAL, (covariance, weights, positive), strict=True) if text}
    settings = Settings(formula, family, prior, missing=missing, **given)
    rows = tuple(sites_of(frame_of(data), settings.columns, sites, settings.optional))
    return fitted(Spec(settings, agreed(settings.begun, rows)), rows, rounds)


def fitted(spec: Spec, rows: tuple[Site, ...], rounds: int) -> Fit:
    """The fit of a spec to the rows of sites."""
    with enable_x64(True):
        tables, weights = [spec.table(site) for site in rows], [spec.weights(site) for site in rows]
        lengths = 1 if sum(site.rows for site in rows) < _MANY_ROWS else 4
        partition = federate(tables, weights=weights, names=[site.name for site in rows], buckets=lengths)
        result = run(spec.method(), spec.model(), spec.prior(), partition, rounds=rounds, monitor=_QUIET)
        return Fit(spec, rows, partition, result)
