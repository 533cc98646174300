"""`fit`: a formula and a table in, a posterior in the table's own units out."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita.data.shard import Partition, federate
from partita.engines import Engine, LocalEngine
from partita.errors import SettingsError, unknown
from partita.expectations.capabilities import CurvedInTable, ShiftedResponse, offered
from partita.families import Family, FullGaussian
from partita.inputs import check_choice, check_finite_number, check_flag, check_kind, check_texts, check_whole
from partita.results.mean_field import MeanFieldCheck
from partita.server.monitor import Monitor
from partita.server.run import Result, run
from partita.server.stopping import Status
from partita.stream import Batch, Stream
from partita.tables.agreement import agreed
from partita.tables.check import Check, check_of
from partita.tables.coefficients import Coefficient, coefficient_grid, text_table
from partita.tables.constants import Told
from partita.tables.contrast import Effect, contrast_of
from partita.tables.design import Design
from partita.tables.drift import Drift, drift_of
from partita.tables.export import fit_to_arviz, fit_to_csv, fit_to_json
from partita.tables.forest import draw_forest, saved
from partita.tables.heterogeneity import Heterogeneity, heterogeneity_of
from partita.tables.likelihoods import Likelihood
from partita.tables.loo import Loo, loo_of
from partita.tables.marginal import marginal_effects
from partita.tables.reading import Site, columns_of, complete, frame_of, sites_of
from partita.tables.report import write_report
from partita.tables.response import Response
from partita.tables.sources import Source, read_again, read_batch, source_of
from partita.tables.spec import Settings, Spec
from partita.tables.study import Study, load_study, save_study
from partita.tables.units import Units

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

__all__ = ["Fit", "fit"]

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
    """The rows at hand: of all sites, but none of a fit that was loaded, or made by a federation."""
    result: Result
    batches: tuple[Batch, ...] = ()
    """What is kept of sites and batches besides their factors; empty where all have come together."""
    sources: tuple[Source, ...] = ()
    """The files that rows came from."""

    @property
    def prior(self) -> Family:
        """The prior of the coefficients of standardised columns."""
        with enable_x64(True):
            return self.spec.prior()

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
        return self.spec.settings.likelihood

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
        notes += self.design.notes + self.spec.agreement.rows.notes + self.response.notes
        if self.result.status is not Status.CONVERGED:
            notes.append(f"The run has not converged ({self.result.message})")
        if vague := self._vague():
            few = ", ".join(vague[:5]) + (", …" if len(vague) > 5 else "")
            notes.append(f"The prior shapes {few}: the data tell little, as with separation or few rows.")
        remedy = 'use covariance="full"'
        caveat = self.result.posterior.caveat(self.names, remedy)
        if not isinstance(self.result.posterior.model, CurvedInTable) and not isinstance(self.prior, FullGaussian):
            caveat = MeanFieldCheck().sentence(self.names, remedy)
        if caveat:
            notes.append(caveat)
        return tuple(notes)

    def coefficients(self, mass: float = 0.95) -> list[Coefficient]:
        """A row per coefficient, then one per constant such as a dispersion, with central intervals of this mass."""
        if not 0 < mass < 1:
            raise SettingsError(f"The mass of an interval must be between 0 and 1, not {mass}.")
        mean, covariance = self._coefficients(self.result.posterior.q)
        scaled = dict(zip(self.units.parameters, self.vector(self.result.posterior.q)[0], strict=True))
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
            without = self.leaving_out()
            for site, factor in zip(state.names, state.factors, strict=True):
                alone = state.current_prior * factor.natural
                found[site] = {
                    label: self._one(member, place)
                    for label, member in (("alone", alone), ("without", without[site]))
                    if bool(member.is_proper())
                } | {"all": self._one(q, place)}
        return found

    def leaving_out(self) -> dict[str, Family]:
        """The posterior of all sites but one, by the name of that one: its factor is divided out."""
        state = self.result.state
        return {
            site: self.result.posterior.q / factor.natural
            for site, factor in zip(state.names, state.factors, strict=True)
        }

    def forest(self, name: str, path: str | os.PathLike[str] | None = None, mass: float = 0.95) -> "Figure":
        """A picture of one coefficient at every site: the site alone, all without it, and all.

        All follow from the factors that the server holds, without another message. A site whose factor with the prior
        is no distribution, such as one without information, is said to be improper.

        Args:
            name: a coefficient, or a category, of which all levels are drawn.
            path: a file for the picture, .png, .svg or .pdf.
            mass: of the intervals.

        Returns:
            The figure of matplotlib; with ratios on a logarithmic scale where the likelihood has them.

        """
        return saved(draw_forest(self, name, mass), path)

    def heterogeneity(self) -> Heterogeneity:
        """How far each site lies from the others, in nats, from the factors that the server holds.

        `nats` is half the squared distance between what a site says and what all others predict of it, in units of
        their joint uncertainty. Where sites agree twice of it has a chi-square distribution with as many degrees of
        freedom as the site tells directions of, d for d coefficients: d/2 nats are typical, and `p` is the probability
        of so many or more. That is exact for Gaussian factors, and approximate where the posterior is nearly Gaussian;
        with mean-field covariance correlations are missing, and `p` is not to be trusted.
        """
        return heterogeneity_of(self)

    def loo(self, draws: int = 1000, seed: int = 0) -> Loo:
        """Leave-one-out cross-validation, and how good q is, by Pareto smoothed importance sampling.

        Sites share draws of θ; each sends the sum of its rows' log densities at every draw, and then sums over rows
        that were left out one at a time. The weights correct for q not being the exact posterior; what was learned
        beside the coefficients, such as noise, stays as it is. A row with a weight is left out as a whole.

        Args:
            draws: how many draws of θ.
            seed: of the draws.

        Returns:
            `elpd`, its standard error `se`, `shape` (k of q against the joint density) and more; it can be printed.

        """
        return loo_of(self, draws, seed)

    def check(self, draws: int = 200, seed: int = 0) -> Check:
        """Whether responses that the fit simulates look like those observed, site by site.

        Test quantities are the mean, sd, share of zeros and maximum, or the share of a class, with the share of
        simulations above what was observed. Calibration compares expected with observed shares in groups of rows; of
        other responses it is told how often central predictive intervals hold them, and in which tenth of its
        predictive distribution each row lies. Rows were seen by the fit, so that it looks a little better than it
        would on others; see `loo`. Each site computes with its own rows; a number that would point at fewer than five
        of them does not leave it, nor does a maximum, which is one row's value.

        Args:
            draws: how many draws of θ, each with simulated responses.
            seed: of everything random.

        Returns:
            The check: print it, or call its `draw`.

        """
        return check_of(self, draws, seed)

    def contrast(self, what: Mapping[str, float] | str, mass: float = 0.95) -> Effect:
        """A weighted sum of coefficients, with its interval, and its ratio where the likelihood has one.

        Args:
            what: weights by name, as {"sex[T.m]": 1, "age": -10}, or a text, as "ward[T.b] - 2 * ward[T.c]"; a
                reference level may be named, and is 0.
            mass: of the interval.

        """
        return contrast_of(self, what, mass)

    def marginal_effect(self, name: str, mass: float = 0.95, draws: int = 1000, seed: int = 0) -> dict[str, Effect]:
        """How the expected response changes with a column, averaged over all rows, with intervals by draws of θ.

        Of numbers it is the derivative, through every term that holds the column; of a category the difference of
        predictions between each level and the reference, all other columns as they are. Each site sends a sum over
        its rows for each draw.
        """
        return marginal_effects(self, name, mass, draws, seed)

    def to_arviz(self, draws: int = 4000, rows: bool = False, seed: int = 0) -> "DataTree":
        """Draws of the coefficients, in their own units, as ArviZ's DataTree; needs the extra `arviz`.

        Args:
            draws: how many, in four chains of independent draws.
            rows: whether to add each row's log density and response, which are then no longer at the sites alone.
            seed: of the draws.

        """
        return fit_to_arviz(self, draws, rows, seed)

    def to_csv(self, path: str | os.PathLike[str], mass: float = 0.95) -> None:
        """Writes a row per coefficient."""
        fit_to_csv(self, path, mass)

    def to_json(self, path: str | os.PathLike[str], mass: float = 0.95) -> None:
        """Writes the posterior and all that is told of it as one JSON file, which another program reads by itself."""
        fit_to_json(self, path, mass)

    def report(self, path: str | os.PathLike[str], mass: float = 0.95) -> None:
        """Writes all that is told of the fit as one HTML file, with its pictures and nothing else to load."""
        write_report(self, path, mass)

    def predict(self, frame: Any) -> Float[np.ndarray, "n ..."]:
        """The posterior mean of the response for the rows of a table, NaN where a value that is needed is missing.

        For ordinal and multinomial responses the probability of each label, in the order of `response.labels`; for
        exponential ones the expected number of events by the row's time.
        """
        columns, optional, frame = self.spec.agreement.rows.columns, self.spec.settings.optional, frame_of(frame)
        (site,) = sites_of(frame, columns, None, optional)
        x, offset, whose = self.spec.inputs(site)
        with enable_x64(True):
            posterior = self.result.posterior
            model = offered(posterior.model, ShiftedResponse, "closed-form prediction", "use another family")
            each = np.asarray(model.expected_response(posterior.q, jnp.asarray(x), jnp.asarray(offset)))
        found = np.zeros((site.rows, *each.shape[1:]))
        np.add.at(found, whose, each)
        told = np.full((len(frame), *each.shape[1:]), np.nan)
        needed = [name for name in columns if name not in optional]
        told[complete(columns_of(frame, needed), len(frame))] = self.response.restored(found)
        return told

    @property
    def stream(self) -> Stream:
        """The fit as a stream: a factor for each site, and for each batch since."""
        with enable_x64(True):
            method, model, prior = self.spec.method(), self.spec.model(), self.prior
            if not self.batches:
                return Stream.of(method, model, prior, self.result, self.partition)
            return Stream(method, model, prior, state=self.result.state, batches=self.batches, result=self.result)

    @property
    def free_energy(self) -> float:
        """The free energy of all rows; the factors speak for those that were not visited since others came."""
        if not self.batches:
            return self.result.free_energy
        with enable_x64(True):
            return self.stream.free_energy

    def update(self, data: Any, name: str, revisit: bool = False) -> Self:
        """The fit with one more batch of rows, such as a month, which has a factor of its own.

        The design stays as it was agreed on at first; a level that is not in it is an error.

        Args:
            data: a table like that of the fit; a column of sites is not looked at.
            name: what the batch is called.
            revisit: whether all others are visited again until all have settled, which needs their rows; otherwise
                only the batch is visited, and learned parameters, such as the noise, stay.

        Returns:
            Another fit.

        """
        check_kind("name of a batch", name, str, "give one", name="a text")
        check_flag("setting revisit", revisit)
        stream, site = self.stream, read_batch(self.spec.settings, data, name)
        with enable_x64(True):
            weights = self.spec.weights(site)
            stream = stream.add(self.spec.table(site), name, weights=weights, tolerance=_SETTLED)
        sources = (*self.sources, *source_of(data, name=name))
        added = self._of(stream, (*self.sites, site), sources)
        return added.revisited() if revisit else added

    def revisited(self) -> Self:
        """The fit after every site and batch was visited again, until all have settled: that of all rows at once."""
        sites = read_again(self.spec.settings, self.sites, self.sources)
        with enable_x64(True):
            stream = self.stream.revisit(_partition(self.spec, sites), tolerance=_SETTLED)
        return self._of(stream, sites, self.sources)

    def without(self, site: str) -> Self:
        """The fit without one site or batch: its factor is divided out, and the others settle."""
        check_choice("site or batch", site, [each.name for each in self.sites])
        left = [each for each in self.sites if each.name != site]
        rest = read_again(self.spec.settings, left, self.sources)
        with enable_x64(True):
            stream = self.stream.without(site, _partition(self.spec, rest) if rest else None, tolerance=_SETTLED)
        return self._of(stream, rest, tuple(source for source in self.sources if source.name != site))

    def drift(self) -> list[Drift]:
        """How far each batch lies from all before it, in order of arrival; sites that came together, from the others.

        `ratio` is about 1 where nothing has changed, and `probability` that of what was seen, or more, in that case.
        """
        return drift_of(self.stream)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes spec, factors and where rows came from, but no rows, to a folder from which `load` goes on."""
        save_study(folder, Study(self.spec, self.stream, self.sites, self.sources, self.result))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """The fit that `save` wrote; its rows are read from their files again where they are needed."""
        study = load_study(folder)
        batches = study.stream.batches
        return cls(study.spec, study.sites, Partition((), (), ()), study.result, batches, study.sources)

    def _of(self, stream: Stream, sites: Sequence[Site], sources: tuple[Source, ...]) -> Self:
        """The fit after its stream has gone on."""
        assert stream.result is not None
        with enable_x64(True):
            partition = _partition(self.spec, [site for site in sites if site.columns])
        return type(self)(self.spec, tuple(sites), partition, stream.result, stream.batches, sources)

    def __repr__(self) -> str:
        return self.table()

    def table(self, mass: float = 0.95) -> str:
        """The coefficients as a text, with central intervals of this mass."""
        title = f"{self.formula}   ({self.family}, {self.result.status.value})"
        return text_table(title, *coefficient_grid(self.coefficients(mass), self.likelihood.ratio, mass), self.notes)

    def in_own_units(self, draws: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "s k"]:
        """Draws of θ as coefficients of the columns as they are."""
        return (draws @ self.units.turn.T + self.units.shift)[:, : len(self.names)]

    def with_rows(self) -> Self:
        """The fit with the rows of all sites, which are read from their files again where they are not at hand."""
        if all(site.columns for site in self.sites):
            return self
        sites = read_again(self.spec.settings, self.sites, self.sources, "ask the fit that pt.fit has returned")
        return dataclasses.replace(self, sites=sites)

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
_SETTLED = 1e-10
"""How many nats an answer may lie from the posterior after an update: so few that what came before leaves no trace."""


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
    trials: str | None = None,
    event: str | None = None,
    link: str | None = None,
    noise: str | float | None = None,
    cuts: Sequence[float] | None = None,
    levels: Sequence[str] | None = None,
    missing: str = "drop",
    rounds: int = 100,
    tolerance: float = 1e-6,
    engine: Callable[[Partition], Engine] | None = None,
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
        missing: what is done about missing predictors, one of `POLICIES`; a row without response, offset or weight is
            dropped in any case.
        rounds: how many visits of each site at most.
        tolerance: how many nats of KL every site's last answer may lie from the posterior when a fit has converged.
        engine: makes the engine that runs the sites, such as `lambda rows: DaskEngine(cluster, rows)`; without it they
            run in this process.

    Returns:
        The fit: print it, or ask for `coefficients`, `by_site`, `predict`, `without`.

    """
    check_whole("number of rounds", rounds)
    named = {"covariance": covariance, "weights": weights, "positive": positive, "trials": trials, "event": event}
    named |= {"link": link, "sites": sites}
    for what, text in named.items():
        if text is not None:
            check_kind(f"setting {what}", text, str, "give a name", name="a text")
    if levels is not None:
        check_texts("levels", levels)
    if noise is not None and not isinstance(noise, str):
        check_finite_number("noise", noise, above=0)
    listed = {"cuts": cuts, "levels": levels}
    given: dict[str, Any] = {name: text for name, text in named.items() if text is not None and name != "sites"}
    given |= {name: _listed(name, values) for name, values in listed.items() if values is not None}
    given |= {} if noise is None else {"noise": str(noise)}
    settings = Settings(formula, family, prior, missing=missing, **given)
    rows = tuple(sites_of(frame_of(data), settings.columns, sites, settings.optional))
    spec, there = Spec(settings, agreed(settings.begun, rows)), LocalEngine if engine is None else engine
    found = _fitted(spec, rows, rounds, tolerance, there)
    return dataclasses.replace(found, sources=source_of(data, sites or ""))


def _listed(name: str, values: Any) -> tuple[Any, ...]:
    try:
        return tuple(map(float, values)) if name == "cuts" else tuple(values)
    except (TypeError, ValueError):
        raise SettingsError(f"Give the {name} as a list, of numbers for cuts and of texts for levels.") from None


def _fitted(
    spec: Spec, rows: tuple[Site, ...], rounds: int, tolerance: float, engine: Callable[[Partition], Engine]
) -> Fit:
    """The fit of a spec to the rows of sites, which the engine runs."""
    with enable_x64(True):
        partition = _partition(spec, rows)
        result = run(
            spec.method(),
            spec.model(),
            spec.prior(),
            engine=_made(engine, partition),
            rounds=rounds,
            tolerance=tolerance,
            monitor=_QUIET,
        )
        return Fit(spec, rows, partition, result)


def _partition(spec: Spec, rows: Sequence[Site]) -> Partition:
    """The rows of sites as numbers; none where none are at hand."""
    if not rows:
        return Partition((), (), ())
    tables, weights = [spec.table(site) for site in rows], [spec.weights(site) for site in rows]
    lengths = 1 if sum(site.rows for site in rows) < _MANY_ROWS else 4
    return federate(tables, weights=weights, names=[site.name for site in rows], buckets=lengths)


def _made(engine: Callable[[Partition], Engine], partition: Partition) -> Engine:
    """The engine of these rows."""
    try:
        made: Any = engine(partition)
    except Exception as error:  # a user's function may raise anything
        made = error
    if not isinstance(made, Engine):
        why = f" ({made!r:.100})" if isinstance(made, Exception) else ""
        raise SettingsError(
            f"The engine must be a function that makes one of a partition{why}: give one such as LocalEngine."
        )
    return made
