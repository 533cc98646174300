"""A fitted formula's coefficients, in the table's own units."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita.data.shard import Partition
from partita.data.table import OffsetTable
from partita.errors import SettingsError, unknown
from partita.expectations.capabilities import CurvedInTable, ShiftedResponse, offered
from partita.families import Family
from partita.families.gaussian import gaussian
from partita.models.prior import base_of
from partita.numerics.arrays import jax_array
from partita.results.mean_field import MeanFieldCheck, independence
from partita.server.run import Result
from partita.tables.coefficients import Coefficient, coefficient_grid, text_table
from partita.tables.constants import ConstantSummary
from partita.tables.design import Design
from partita.tables.group_effects import responses as responses_in_groups
from partita.tables.likelihoods import Likelihood
from partita.tables.reading import Site, columns_of, complete, frame_of, sites_of
from partita.tables.response import Response
from partita.tables.spec import Spec
from partita.tables.units import Units

__all__ = ["Estimates"]

_UNINFORMED = 0.3
"""A coefficient whose sd is at least so much of its prior's is said to depend on the prior."""


@dataclasses.dataclass(frozen=True, repr=False)
class Estimates:
    """Coefficients of a formula, with what a reader should know of them."""

    spec: Spec
    sites: tuple[Site, ...]
    partition: Partition
    """The rows at hand: of all sites, but none of a fit that was loaded, or made by a federation."""
    result: Result

    @property
    def q(self) -> Family:
        """The posterior of θ, that is, of standardised columns' coefficients and of constants."""
        return self.result.posterior.q

    @property
    def free_energy(self) -> float:
        """The free energy of all rows."""
        return self.result.free_energy

    @property
    def prior(self) -> Family:
        """The prior of the coefficients of standardised columns; of one outside q's family, a member as wide."""
        with enable_x64(True):
            return base_of(self.spec.prior())

    @property
    def formula(self) -> str:
        """The formula as it was given."""
        return self.spec.formula.text

    @property
    def design(self) -> Design:
        """How rows become a design matrix."""
        return self.spec.design

    @property
    def response(self) -> Response:
        """How the response becomes numbers."""
        return self.spec.response

    @property
    def family(self) -> str:
        """The name of the likelihood."""
        return self.spec.settings.family

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood."""
        return self.spec.likelihood

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coefficients."""
        return self.units.names

    @property
    def units(self) -> Units:
        """From θ to the table's own units."""
        return self.spec.units

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """The posterior mean of the coefficients, in the columns' own units."""
        return self._coefficients(self.q)[0]

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Their posterior covariance."""
        return self._coefficients(self.q)[1]

    def joint(self) -> tuple[tuple[str, ...], Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
        """Names, mean and covariance of the coefficients, then of constants on the scale on which they are Gaussian."""
        names = (*self.names, *(constant.name for constant in self.units.constants))
        return names, *self._own(self.q)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know: rows dropped, reference levels, labels, and what the data hardly tell."""
        rows, dropped = (sum(getattr(site, field) for site in self.sites) for field in ("rows", "dropped"))
        said = [f"{rows} rows of {len(self.sites)} sites"] + (
            [f"{dropped} rows with missing values dropped"] if dropped else []
        )
        notes = [", ".join(said) + "."]
        notes += [f"The prior is {self.spec.settings.prior}, with {self._scales()}."] if self.spec.laws.scales else []
        notes += self.design.notes + self.spec.agreement.rows.notes + self.response.notes
        if not self.result.status.arrived:
            notes.append(f"The run has not converged ({self.result.message})")
        if (gap := self.result.state.posterior.gap) is not None:
            notes.append(
                f"Nearest to a posterior with full covariance, {float(gap):.3g} nats from it, of all with independent "
                'coefficients; covariance="mean-field-optimum" has the highest free energy of those.'
            )
        if vague := self._vague():
            few = ", ".join(vague[:5]) + (", …" if len(vague) > 5 else "")
            notes.append(f"The prior shapes {few}: the data tell little, as with separation or few rows.")
        if caveat := self.caveat('use covariance="full"'):
            notes.append(caveat)
        return tuple(notes)

    def caveat(self, remedy: str) -> str:
        """What a reader of standard deviations without all correlations has to know, with what to do, or nothing."""
        blocks = gaussian(self.prior.returned).independent_groups
        if not isinstance(self.result.posterior.model, CurvedInTable) and blocks > 1:
            return MeanFieldCheck().sentence(self.names, remedy, independence(blocks, len(self.units.parameters)))
        with enable_x64(True):
            return self.result.posterior.caveat(self.names, remedy)

    def coefficients(self, mass: float = 0.95) -> list[Coefficient]:
        """A row per coefficient, then one per constant such as a dispersion, with central intervals of this mass."""
        if not 0 < mass < 1:
            raise SettingsError(f"The mass of an interval must be between 0 and 1, not {mass}.")
        mean, covariance = self._coefficients(self.q)
        scaled = dict(zip(self.units.parameters, self.vector(self.q)[0], strict=True))
        standardised = [scaled[name] for name in self.names]
        sd = np.sqrt(np.diag(covariance))
        reach = float(stats.norm.ppf((1 + mass) / 2)) * sd
        rows = zip(self.names, mean, sd, mean - reach, mean + reach, standardised, strict=True)
        return [
            Coefficient(
                name, float(own), float(wide), float(low), float(high), float(plain), self._ratio(own, low, high)
            )
            for name, own, wide, low, high, plain in rows
        ] + [Coefficient(*constant, None, None) for constant in self._constants(mass)]

    def _constants(self, mass: float) -> Sequence[ConstantSummary]:
        mean, covariance = self._own(self.q)
        first = len(self.names)
        return self.likelihood.reporting.moments(self.units.constants, mean[first:], covariance[first:, first:], mass)

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
            q, state = self.q, self.result.state
            without = self.leaving_out()
            for site in without:
                alone = state.prior_in_family * state.factors[state.names.index(site)].natural
                found[site] = {
                    label: self._one(member.returned, place)
                    for label, member in (("alone", alone), ("without", without[site]))
                    if bool(member.is_proper())
                } | {"all": self._one(q, place)}
        return found

    def leaving_out(self) -> dict[str, Family]:
        """The posterior of all sites but one, by the name of that one: its factor is divided out."""
        state = self.result.state
        return {
            site: state.posterior / factor.natural
            for site, factor, hosted in zip(state.names, state.factors, state.hosted, strict=True)
            if not hosted
        }

    def predict(self, frame: Any) -> Float[np.ndarray, "n ..."]:
        """The posterior mean of the response for the rows of a table, NaN where a value that is needed is missing.

        With effects of groups, rows of a group that the fit has rows of have its effects, others those of a new group.
        For ordinal and multinomial responses the probability of each label, in the order of `response.labels`; for
        exponential ones the expected number of events by the row's time.
        """
        columns, optional, frame = self.spec.agreement.rows.columns, self.spec.settings.optional, frame_of(frame)
        (site,) = sites_of(frame, columns, None, optional)
        x, offset, whose, rows = self.spec.inputs(site)
        with enable_x64(True):
            posterior = self.result.posterior
            if self.design.formula.grouped:
                plain = OffsetTable(jax_array(x), jax_array(np.zeros(len(x))), jax_array(offset))
                table = self.spec.with_groups(plain, rows)
                each = responses_in_groups(posterior.model, self.q, self.partition, table)
            else:
                model = offered(posterior.model, ShiftedResponse, "closed-form prediction", "use another family")
                each = np.asarray(model.expected_response(self.q, jax_array(x), jax_array(offset)))
        found = np.zeros((site.rows, *each.shape[1:]))
        np.add.at(found, whose, each)
        responses = np.full((len(frame), *each.shape[1:]), np.nan)
        needed = [name for name in columns if name not in optional]
        responses[complete(columns_of(frame, needed), len(frame))] = self.response.restored(found)
        return responses

    def __repr__(self) -> str:
        return self.table()

    def table(self, mass: float = 0.95) -> str:
        """The coefficients as a text, with central intervals of this mass."""
        title = f"{self.formula}   ({self.family}, {self.result.status.value})"
        return text_table(title, *coefficient_grid(self.coefficients(mass), self.likelihood.ratio, mass), self.notes)

    def in_own_units(
        self, draws: Float[np.ndarray, "s d"]
    ) -> tuple[Float[np.ndarray, "s k"], Float[np.ndarray, "s c"]]:
        """Draws of θ as coefficients of the columns as they are, and as constants on their own scale."""
        own, size = draws @ self.units.turn.T + self.units.shift, len(self.names)
        constants = self.units.constants
        return own[:, :size], self.likelihood.reporting.draws(constants, own[:, size:]) if constants else own[:, size:]

    def with_rows(self) -> Self:
        """The same with the rows of all sites."""
        return self

    def _own(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and constants."""
        mean, covariance = self.vector(q)
        turn = self.units.turn
        return turn @ mean + self.units.shift, turn @ covariance @ turn.T

    def _coefficients(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        """Without the constants."""
        mean, covariance = self._own(q)
        size = len(self.names)
        return mean[:size], covariance[:size, :size]

    def vector(self, q: Family) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the standardised columns' coefficients."""
        with enable_x64(True):
            return np.asarray(q.moments()[0]), np.asarray(gaussian(q).covariance)

    def _one(self, q: Family, place: int) -> tuple[float, float]:
        mean, covariance = self._own(q)
        return float(mean[place]), float(np.sqrt(covariance[place, place]))

    def _scales(self) -> str:
        """The scales of the prior, with intervals."""
        names, (mean, covariance) = self.units.parameters, self.vector(self.q)
        places = [place for place, name in enumerate(names) if any(name.endswith(own) for own in self.spec.laws.scales)]
        reach = 1.96 * np.sqrt(np.diag(covariance))
        low, middle, high = np.exp([mean - reach, mean, mean + reach])
        return ", ".join(f"{names[k]} {middle[k]:.3g} ({low[k]:.2g} to {high[k]:.2g})" for k in places)

    def _vague(self) -> list[str]:
        with enable_x64(True):
            sds = np.asarray(self.q.moments()[1]) / np.asarray(self.prior.moments()[1])
        reported = set(self.units.parameters) - set(self.spec.laws.scales)
        pairs = zip(self.units.parameters, sds, strict=True)
        return [name for name, share in pairs if share >= _UNINFORMED and name in reported]
