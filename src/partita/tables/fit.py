"""`Fit`: what can be asked of a fitted formula, and how it goes on as rows come and go."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from jax import enable_x64

from partita.data.shard import Partition
from partita.inputs import check_choice, check_flag, check_kind
from partita.stream import Batch, Stream
from partita.tables.check import Check, check_of
from partita.tables.contrast import Effect, contrast_of
from partita.tables.drift import Drift, drift_of
from partita.tables.estimates import Estimates
from partita.tables.export import fit_to_arviz, fit_to_csv, fit_to_json
from partita.tables.forest import draw_forest, saved
from partita.tables.group_effects import GroupEffect, effects_of, intraclass
from partita.tables.heterogeneity import Heterogeneity, heterogeneity_of
from partita.tables.loo import Loo, loo_of
from partita.tables.marginal import marginal_effects
from partita.tables.reading import Site
from partita.tables.report import write_report
from partita.tables.shrinkage import draw_shrinkage
from partita.tables.sources import Source, read_again, read_batch, source_of
from partita.tables.study import Study, load_study, save_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

__all__ = ["Fit"]

_AWAY = "ask the fit that pt.fit has returned; a federation's rows stay with its clients"
_SETTLED = 1e-10
"""How many nats an answer may lie from the posterior after an update: so few that what came before leaves no trace."""


@dataclasses.dataclass(frozen=True, repr=False)
class Fit(Estimates):
    """A fitted formula."""

    batches: tuple[Batch, ...] = ()
    """What is kept of sites and batches besides their factors; empty where all have come together."""
    sources: tuple[Source, ...] = ()
    """The files that rows came from."""

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

    def group_effects(self, draws: int = 4000, seed: int = 0) -> list[GroupEffect]:
        """Every group's effects: partially pooled, and from its own rows alone, as if groups had nothing in common.

        They are known where the groups' rows are: of a fit in this process. Of groups within groups those of the
        outermost level come first; effects of an inner one are beside those of the groups around it.

        Args:
            draws: by which means and sds are computed.
            seed: of the draws.

        """
        return effects_of(self, draws, seed)

    def intraclass(self, mass: float = 0.95) -> dict[str, tuple[float, float, float]]:
        """By grouping the share τ² / (Σ τ² + σ²) of its groups' intercepts in the variance: median and interval.

        The sum is over all groupings; of a single one this is the intraclass correlation. Two rows of one inner group
        are correlated by the shares of its level and of those around it together. σ² is the variance of the noise; of
        a binary response that of the latent variable, π²/3 with logit and 1 with probit.
        """
        return intraclass(self, mass)

    def shrinkage(self, path: str | os.PathLike[str] | None = None, draws: int = 4000) -> "Figure":
        """A picture of every group's effects: from its own rows alone, partially pooled, and pooled (none).

        Args:
            path: a file for the picture, .png, .svg or .pdf.
            draws: by which means and sds are computed.

        Returns:
            The figure of matplotlib.

        """
        return saved(draw_shrinkage(self, draws), path)

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
        other responses it reports how often central predictive intervals hold them, and in which tenth of its
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
        """Draws of coefficients and constants, on their own scales, as ArviZ's DataTree; needs the extra `arviz`.

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
        """Writes the posterior and everything reported about it as one JSON file for other programs."""
        fit_to_json(self, path, mass)

    def report(self, path: str | os.PathLike[str], mass: float = 0.95) -> None:
        """Writes everything reported about the fit as one self-contained HTML file, with its pictures."""
        write_report(self, path, mass)

    @property
    def stream(self) -> Stream:
        """The fit as a stream: a factor for each site, and for each batch since."""
        with enable_x64(True):
            method, model, prior = self.spec.method(), self.spec.model(), self.spec.prior()
            if self.batches:
                return Stream(method, model, prior, state=self.result.state, batches=self.batches, result=self.result)
            if self.partition.names:
                return Stream.of(method, model, prior, self.result, self.partition)
            return Stream.reported(method, model, prior, self.result, {site.name: site.rows for site in self.sites})

    @property
    def free_energy(self) -> float:
        """The free energy of all rows; the factors speak for those that were not visited since others came.

        Of a federation's fit it is what clients have reported with their last answers.
        """
        if self.partition.names and not self.batches:
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
            stream = self.stream.revisit(self.spec.partition(sites), tolerance=_SETTLED)
        return self._of(stream, sites, self.sources)

    def without(self, site: str) -> Self:
        """The fit without one site or batch: its factor is divided out, and the others settle."""
        check_choice("site or batch", site, [each.name for each in self.sites])
        left = [each for each in self.sites if each.name != site]
        rest = read_again(self.spec.settings, left, self.sources)
        with enable_x64(True):
            stream = self.stream.without(site, self.spec.partition(rest) if rest else None, tolerance=_SETTLED)
        return self._of(stream, rest, tuple(source for source in self.sources if source.name != site))

    def drift(self) -> Drift:
        """How far each batch lies from all before it, in order of arrival; sites that came together, from the others.

        `ratio` is about 1 where nothing has changed, and `probability` that of what was seen, or more, in that case.
        """
        return drift_of(self.result.state, self.stream.batches)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes spec, factors and where rows came from, but no rows, to a folder from which `load` goes on."""
        save_study(folder, Study(self.spec, self.stream, self.sites, self.sources, self.result))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """The fit that `save` wrote; its rows are read from their files again where they are needed."""
        study = load_study(folder)
        batches = study.stream.batches
        return cls(study.spec, study.sites, Partition((), (), ()), study.result, batches, study.sources)

    def with_rows(self) -> Self:
        """The fit with the rows of all sites, which are read from their files again where they are not at hand."""
        if all(site.columns for site in self.sites):
            return self
        sites = read_again(self.spec.settings, self.sites, self.sources, _AWAY)
        return dataclasses.replace(self, sites=sites)

    def _of(self, stream: Stream, sites: Sequence[Site], sources: tuple[Source, ...]) -> Self:
        """The fit after its stream has gone on."""
        assert stream.result is not None
        with enable_x64(True):
            partition = self.spec.partition([site for site in sites if site.columns])
        return type(self)(self.spec, tuple(sites), partition, stream.result, stream.batches, sources)
