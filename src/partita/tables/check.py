"""Posterior predictive checks, calibration and log scores: computed at each site, which sends summaries with counts."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Float, PyTree
from scipy.special import logsumexp

from partita.expectations.capabilities import ResponseOfRows, offered
from partita.families.base import Theta
from partita.inputs import check_seed, check_whole
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.tables.check_picture import draw_check
from partita.tables.checked import Group, Quantity, SiteCheck
from partita.tables.coefficients import Grid, short, text_table
from partita.tables.draws import blocks, draws_of, log_densities
from partita.tables.fitted import FEW, Fitted, SiteRows, few, rows_at
from partita.tables.forest import saved
from partita.tables.reading import Site
from partita.tables.response import Observed
from partita.tables.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Check", "check_of"]

_MOST_GROUPS = 10
_COVERED = (0.5, 0.9)
_BINS = np.linspace(0, 1, 11)


@dataclasses.dataclass(frozen=True)
class Check:
    """How well a fit describes the rows that it was made from; print it, draw it, or ask for its numbers."""

    sites: Mapping[str, SiteCheck]

    @property
    def score(self) -> float:
        """The mean log predictive density of all rows that were reported."""
        reported = [(site.rows, site.score) for site in self.sites.values() if site.score is not None]
        return (
            sum(rows * score for rows, score in reported) / sum(rows for rows, _ in reported)
            if reported
            else float("nan")
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        reported = [(name, each) for name, site in self.sites.items() for each in site.quantities if each.p is not None]
        odd = [f"{each.name} at {name}" for name, each in reported if each.p is not None and not 0.01 <= each.p <= 0.99]
        said = [f"Mean log predictive density of a row: {self.score:.4g} nats."]
        if odd:
            said.append(f"The fit does not explain: {', '.join(odd[:6])}{', …' if len(odd) > 6 else ''}.")
        if any(site.score is None for site in self.sites.values()):
            said.append(f"Sites with fewer than {FEW} rows tell nothing of them.")
        if censored := [name for name, site in self.sites.items() if site.censored]:
            named = f"{', '.join(censored[:6])}{', …' if len(censored) > 6 else ''}"
            said.append(
                f"Some times are censored ({named}), so that mean, sd and maximum cannot be compared; among simulated "
                "times such a row has a random place above its own."
            )
        return tuple(said)

    def grid(self) -> Grid:
        """Its numbers as a table."""
        rows: list[tuple[str, ...]] = []
        for name, site in self.sites.items():
            start = (name, str(site.rows) if site.rows >= FEW else f"< {FEW}", _cell(site.score))
            lines = [
                (each.name, _cell(each.observed), f"{short(each.low)} to {short(each.high)}", _cell(each.p))
                for each in site.quantities
            ] + [
                (f"in {each.expected:.0%} intervals", _cell(each.observed), short(each.expected), "")
                for each in site.coverage
            ]
            for place, line in enumerate(lines or [("", "", "", "")]):
                rows.append((*(("", "", "") if place else start), *line))
        return ("", "rows", "log score", "quantity", "observed", "simulated", "p"), rows

    def __repr__(self) -> str:
        return text_table("Checks of the fit, by site", *self.grid(), self.notes)

    def draw(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """A picture: calibration by site, or where rows lie in their predictive distributions."""
        return saved(draw_check(self.sites), path)


def check_of(fit: Fitted, draws: int = 200, seed: int = 0) -> Check:
    """Simulates responses and compares them; see `Fit.check`."""
    check_whole("number of draws", draws, least=20)
    check_seed(seed)
    sites = fit.with_rows().sites
    with enable_x64(True):
        posterior = fit.result.posterior
        theta = draws_of(posterior.q, draws, seed)
        return Check({site.name: _site(fit.spec, posterior.model, site, theta, seed) for site in sites})


def _site(spec: Spec, model: Model, site: Site, theta: Theta, seed: int) -> SiteCheck:
    """What a site sends of its rows that have a weight."""
    used = spec.settings.row_weights(site) > 0
    site = site._replace(columns={name: values[used] for name, values in site.columns.items()}, rows=int(used.sum()))
    if site.rows < FEW:
        return SiteCheck(site.rows)
    rows, own = rows_at(spec, site), spec.agreement.rows.observed(site, spec.response)
    scores = [logsumexp(found, axis=1) - np.log(found.shape[1]) for found, _ in log_densities(model, rows, theta)]
    score = float(np.concatenate(scores).mean())
    simulations = _simulations(spec, model, site, theta, seed)
    if model.predicts_classes:
        chances = _chances(model, rows, theta)
        observed = np.eye(chances.shape[1])[own.numbers.astype(int)]
        counts = [_counted(drawn, own.numbers[places], chances.shape[1]) for drawn, places in simulations]
        labels = spec.response.labels or [str(place) for place in range(chances.shape[1])]
        return SiteCheck(site.rows, score, _shares(np.sum(counts, axis=0), labels), _groups(chances, observed))
    ranks, totals, generator = [], _Totals(), np.random.default_rng(seed)
    for drawn, places in simulations:
        totals.add(drawn, own.numbers[places])
        ranks.append(_places(drawn, Observed(*(part[places] for part in own)), generator))
    rank, censored = np.concatenate(ranks), bool(own.censored.any())
    inside = [(mass, int((np.abs(rank - 0.5) <= mass / 2).sum())) for mass in _COVERED]
    covered = [Group(site.rows, mass, None if few(count, site.rows) else count / site.rows) for mass, count in inside]
    histogram = tuple(None if 0 < count < FEW else int(count) for count in np.histogram(rank, _BINS)[0])
    quantities = () if censored else totals.quantities()
    return SiteCheck(site.rows, score, quantities, (), tuple(covered), histogram, censored)


def _places(drawn: Float[np.ndarray, "n s"], own: Observed, generator: np.random.Generator) -> Float[np.ndarray, " n"]:
    """Where each response lies among those simulated, from 0 to 1; even where the model is true.

    Among simulations that equal it, or for a censored row all from its time on, its place is random.
    """
    numbers, hidden = own.numbers[:, None], own.censored[:, None]
    below, ties = (drawn < numbers).sum(axis=1), ((drawn == numbers) | (hidden & (drawn > numbers))).sum(axis=1)
    return (below + generator.uniform(size=len(drawn)) * (ties + 1)) / (drawn.shape[1] + 1)


class _Totals:
    """Sums over rows of responses, and of simulations of them, some rows at a time."""

    def __init__(self) -> None:
        self.rows, self.whole = 0, True
        self.sums: list[np.ndarray] = []
        self.most: list[np.ndarray] = []

    def add(self, drawn: Float[np.ndarray, "n s"], own: Float[np.ndarray, " n"]) -> None:
        """Adds rows; the first column is what was observed."""
        both = np.concatenate([own[:, None], drawn], axis=1)
        self.rows += len(own)
        self.whole &= bool((drawn == np.round(drawn)).all())
        self.sums.append(np.stack([both.sum(axis=0), (both**2).sum(axis=0), (both == 0).sum(axis=0)]))
        self.most.append(both.max(axis=0))

    def quantities(self) -> tuple[Quantity, ...]:
        """Mean, sd, the share of zeros of a count, and where the maximum lies among those simulated."""
        first, second, zeros = np.sum(self.sums, axis=0)
        mean = first / self.rows
        sd = np.sqrt(np.maximum(0.0, second / self.rows - mean**2) * self.rows / (self.rows - 1))
        found = [_quantity("mean", mean), _quantity("sd", sd)]
        if self.whole and not few(zeros[0], self.rows):
            found.append(_quantity("share of zeros", zeros / self.rows))
        return (*found, dataclasses.replace(_quantity("maximum", np.max(self.most, axis=0)), observed=None))


def _quantity(name: str, values: Float[np.ndarray, " s"]) -> Quantity:
    """From the observed value, which comes first, and those simulated."""
    observed, drawn = float(values[0]), values[1:]
    low, high = np.quantile(drawn, [0.025, 0.975])
    larger = np.mean(drawn > observed) + np.mean(drawn == observed) / 2
    return Quantity(name, observed, float(low), float(drawn.mean()), float(high), float(larger))


def _counted(drawn: Float[np.ndarray, "n s"], own: Float[np.ndarray, " n"], classes: int) -> np.ndarray:
    """How many rows have each class: as observed, which comes first, and in each simulation."""
    both = np.concatenate([own[:, None], drawn], axis=1)
    return np.stack([(both == label).sum(axis=0) for label in range(classes)])


def _shares(counts: np.ndarray, labels: Sequence[str]) -> tuple[Quantity, ...]:
    """The share of each class; of two, that of the second."""
    found, rows = [], counts[:, 0].sum()
    for place in range(1 if len(counts) == 2 else 0, len(counts)):
        share = _quantity(f"share of {labels[place]}", counts[place] / rows)
        found.append(dataclasses.replace(share, observed=None, p=None) if few(counts[place, 0], rows) else share)
    return tuple(found)


def _groups(chances: Float[np.ndarray, "n c"], observed: Float[np.ndarray, "n c"]) -> tuple[Group, ...]:
    """Rows in the order of their probability, in groups of one size; of each class but the first, of two, or of all.

    There are as many groups as the rarer kind of rows allows with ten in each, and at most ten.
    """
    first = 1 if chances.shape[1] == 2 else 0
    p, y = chances[:, first:].ravel(), observed[:, first:].ravel()
    rarer = min(y.sum(), len(y) - y.sum())
    count = int(np.clip(rarer // 10, 1, _MOST_GROUPS))
    return tuple(
        Group(
            len(places),
            float(p[places].mean()),
            None if few(y[places].sum(), len(places)) else float(y[places].mean()),
        )
        for places in np.array_split(np.argsort(p, kind="stable"), count)
    )


def _chances(model: Model, rows: SiteRows, theta: Theta) -> Float[np.ndarray, "n c"]:
    """The probability of each class, row by row."""
    able = offered(model, ResponseOfRows, "response to predict", "leave the check out")
    found = np.concatenate([np.asarray(_mean_response(able, theta, piece.data))[:real] for piece, real in blocks(rows)])
    return np.stack([1 - found, found], axis=1) if found.ndim == 1 else found


def _simulations(
    spec: Spec, model: Model, site: Site, theta: Theta, seed: int
) -> Iterator[tuple[Float[np.ndarray, "n s"], slice]]:
    """Simulated responses of a site's rows in their own units, piece by piece, and which rows these are."""
    split, whose = spec.agreement.rows.unfinished(site)
    data = jax.tree.map(np.asarray, spec.design_table(split))
    rows, start = SiteRows(data, np.ones(len(whose)), whose, np.zeros(len(whose))), 0
    for place, (piece, real) in enumerate(blocks(rows)):
        key = jax.random.fold_in(jax.random.key(seed), place)
        drawn = spec.response.restored(spec.agreement.rows.drawn(model, theta, piece.data, real, key))
        yield drawn, slice(start, start + len(drawn))
        start += len(drawn)


@Compiled
def _mean_response(model: ResponseOfRows, theta: Theta, data: PyTree) -> Float[Array, "n ..."]:
    return jax.vmap(lambda each: model.response_of(each, data))(theta).mean(axis=0)


def _cell(number: float | None) -> str:
    return "not reported" if number is None else short(number)
