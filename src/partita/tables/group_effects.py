"""Groups' effects at a posterior: shrinkage, predictions for their rows, and their share of the variance."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Float, Int
from scipy import stats

from partita.data.shard import Partition, Shard
from partita.data.table import GroupedTable
from partita.errors import DataError, SettingsError
from partita.expectations import LocalEffects
from partita.expectations.capabilities import offered
from partita.expectations.conditionals import Conditionals
from partita.families import Family
from partita.families.gaussian import Standard, gaussian
from partita.models import GroupEffects, Model
from partita.numerics.arrays import jax_array
from partita.numerics.compiled import Compiled
from partita.tables.design import categories
from partita.tables.fitted import Fitted
from partita.tables.group_terms import effects, numbers_of_groups, units

__all__ = ["GroupEffect", "effects_of", "intraclass", "responses"]

_APART = 10.0
"""A standard deviation of effects so large that groups have nothing in common."""


class GroupEffect(NamedTuple):
    """One group's effect, in the table's units as coefficients are; an intercept is that at the columns' means."""

    site: str
    group: str
    effect: str
    mean: float
    sd: float
    alone: float
    """The same from its own rows alone, given the coefficients: as if groups had nothing in common."""
    alone_sd: float


def responses(model: Model, q: Family, partition: Partition, data: GroupedTable) -> Float[np.ndarray, " n"]:
    """The mean response of rows: with effects of their own group, or those of a new one where it has no rows."""
    return _Groups(_in_groups(model), q, partition).responses(data)


def _in_groups(model: Model) -> GroupEffects:
    """The model of a fit with effects of groups."""
    return offered(model, GroupEffects, "effects of groups", "add a term such as (1 | ward)")


class _Groups:
    """The groups whose rows are at hand, with their conditionals at a posterior."""

    def __init__(self, model: GroupEffects, q: Family, partition: Partition) -> None:
        """Finds the conditionals, at each site by itself."""
        self.model, self.q, self.places = model, q, dict[float, tuple[str, int]]()
        found, first = [], 0
        for site, shard in zip(partition.names, partition.shards, strict=True):
            own = np.unique(np.asarray(shard.data.group))
            self.places |= {float(number): (site, first + place) for place, number in enumerate(own)}
            size = len(own)
            found.append(jax.tree.map(lambda leaf, size=size: leaf[:size], _found(model, q, shard)))
            first += size
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found) if found else None
        self.conditionals: Conditionals | None = joined

    def responses(self, data: GroupedTable) -> Float[np.ndarray, " n"]:
        """The mean response of rows: with their own group's effects, or those of a new group where it is not known."""
        place = [self.places.get(float(number), ("", -1))[1] for number in np.asarray(data.group)]
        return np.asarray(_responses(self.model, self.q, data, jax_array(np.array(place)), self.conditionals))

    def moments(self, draws: int, seed: int) -> tuple[Float[np.ndarray, "g d"], Float[np.ndarray, "g d"]]:
        """Mean and sd of every group's effects, by draws."""
        first, second = jax.random.split(jax.random.key(seed))
        assert self.conditionals is not None
        drawn = self.model.effects_drawn(self.q, self.conditionals, self.q.sample(first, (draws,)), second)
        return np.asarray(drawn.mean(axis=0)), np.asarray(drawn.std(axis=0))


def effects_of(fit: Fitted, draws: int = 4000, seed: int = 0) -> list[GroupEffect]:
    """Every group's effects, partially pooled, and by its own rows alone."""
    term = fit.design.formula.grouped
    if term is None:
        raise SettingsError("The formula has no effects of groups: add a term such as (1 | ward).")
    if not fit.partition.names:
        raise DataError("The rows are not at hand, by which effects of groups are known: ask the fit of pt.fit.")
    with enable_x64(True):
        model, q = _in_groups(fit.result.posterior.model), fit.result.posterior.q
        mean, spread = gaussian(q).mean, gaussian(q).covariance
        scales = np.arange(len(mean)) >= len(mean) - len(fit.spec.likelihood.constants(fit.response))
        deviations = np.arange(len(mean)) < np.flatnonzero(scales)[0] + term.effects
        apart = jnp.where(scales, jnp.where(deviations, _APART, 0.0), mean)
        known = q.with_standard(Standard(apart, 1e-8 * jnp.eye(len(mean), dtype=spread.dtype)))
        pooled, alone = _Groups(model, q, fit.partition), _Groups(model, known, fit.partition)
        told = [*pooled.moments(draws, seed), *alone.moments(draws, seed)]
    names = {
        number: name
        for site in fit.sites
        for number, name in zip(numbers_of_groups(term, site), categories(term.group, site.columns), strict=True)
    }
    scale = fit.response.slope / units(term, fit.design)
    return [
        GroupEffect(site, names[number], effect, *(float(each[place, k] * scale[k]) for each in told))
        for number, (site, place) in pooled.places.items()
        for k, effect in enumerate(effects(term))
    ]


def intraclass(fit: Fitted, mass: float) -> tuple[float, float, float]:
    """The share of groups' intercepts in the variance of the predictor, at the median of their sd, and its interval."""
    term, latent = fit.design.formula.grouped, fit.likelihood.latent
    if term is None or not term.intercept or latent is None:
        raise SettingsError(
            "An intraclass correlation needs intercepts of groups and a binary or Gaussian response: "
            "write a term such as (1 | ward)."
        )
    with enable_x64(True):
        own = latent(_in_groups(fit.result.posterior.model).likelihood)
        mean, covariance = fit.vector(fit.q)
    place = len(mean) - len(fit.spec.likelihood.constants(fit.response))
    reach = float(stats.norm.ppf((1 + mass) / 2)) * np.sqrt(covariance[place, place])
    square = np.logaddexp(0, mean[place] + reach * np.array([0.0, -1.0, 1.0])) ** 2
    middle, low, high = (square / (square + own)).tolist()
    return middle, low, high


@Compiled
def _found(model: GroupEffects, q: Family, shard: Shard) -> Conditionals:
    expectation = model.expectation
    assert isinstance(expectation, LocalEffects)
    return expectation.conditionals(model, q, shard.data, shard.weights)


@Compiled
def _responses(
    model: GroupEffects, q: Family, data: GroupedTable, place: Int[Array, " n"], known: Conditionals | None
) -> Float[Array, " n"]:
    return model.response_within(q, data, place, known)
