"""Groups' effects at a posterior: shrinkage, predictions for their rows, and their share of the variance."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Bool, Float, Int
from scipy import stats

from partita.data.shard import Partition, Shard
from partita.data.table import GroupedTable
from partita.errors import DataError, SettingsError
from partita.expectations import LocalEffects
from partita.expectations.capabilities import offered
from partita.expectations.conditionals import Branches
from partita.families import Family, FullGaussian
from partita.families.gaussian import gaussian
from partita.models import GroupEffects, Model
from partita.numerics.arrays import jax_array
from partita.numerics.compiled import Compiled
from partita.tables.fitted import Fitted
from partita.tables.group_terms import names_of_groups, numbers_of_groups, units

__all__ = ["GroupEffect", "effects_of", "intraclass", "responses"]

_APART = 10.0
"""A standard deviation of effects so large that groups have nothing in common."""
_DRAWS = 20_000
"""By which the share of one of several levels in the variance is computed."""


class GroupEffect(NamedTuple):
    """One group's effect, in the table's units as coefficients are; an intercept is that at the columns' means."""

    site: str
    by: str
    """The grouping, such as `ward` or `hospital:ward`: of groups within groups effects are those beside the outer's."""
    group: str
    effect: str
    mean: float
    sd: float
    alone: float
    """The same from its own rows alone, given coefficients and effects of groups around it: as if groups had nothing
    in common."""
    alone_sd: float


class _Group(NamedTuple):
    """Where a group is."""

    site: str
    level: int
    place: int
    seen: bool
    """Whether any of its rows has a weight."""


def responses(model: Model, q: Family, partition: Partition, data: GroupedTable) -> Float[np.ndarray, " n"]:
    """The mean response of rows: with effects of their own groups, or those of new ones where these have no rows."""
    return _Groups(_in_groups(model), q, partition).responses(data)


def _in_groups(model: Model) -> GroupEffects:
    """The model of a fit with effects of groups."""
    return offered(model, GroupEffects, "effects of groups", "add a term such as (1 | ward)")


class _Groups:
    """The groups whose rows are at hand, with what their effects are given θ, at a posterior."""

    def __init__(self, model: GroupEffects, q: Family, partition: Partition) -> None:
        """Finds it, at each site by itself."""
        self.model, self.q, self.groups = model, q, dict[tuple[float, ...], _Group]()
        levels, size, dimensions = range(len(model.effects)), sum(model.effects), len(gaussian(q).mean)
        found, first = [_nothing(size, dimensions)], 1
        for site, shard in zip(partition.names, partition.shards, strict=True):
            branches = _found(model, q, shard)
            numbers = _by_level(model, shard.data)
            for level in levels:
                own, whose = np.unique(numbers[:, : level + 1], axis=0, return_inverse=True)
                seen = np.bincount(whose.ravel(), np.asarray(shard.weights)) > 0
                for place, key in enumerate(map(tuple, own.tolist())):
                    self.groups[key] = _Group(site, level, first + place, bool(seen[place]))
                found.append(_padded(jax.tree.map(lambda leaf, own=own: leaf[: len(own)], branches[level]), size))
                first += len(own)
        self.branches = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)

    def responses(self, data: GroupedTable) -> Float[np.ndarray, " n"]:
        """The mean response of rows, with effects of those of their groups that have rows with a weight."""
        levels, seen = range(len(self.model.effects)), {key: each for key, each in self.groups.items() if each.seen}
        paths = [
            [seen.get(tuple(row[: level + 1].tolist())) for level in levels] for row in _by_level(self.model, data)
        ]
        known = np.array([[each is not None for each in path] for path in paths])
        place = np.array([max((each.place for each in path if each), default=0) for path in paths])
        given = (jax_array(place), jax_array(known))
        return np.asarray(_responses(self.model, self.q, data, *given, self.branches))

    def moments(self, draws: int, seed: int) -> tuple[Float[np.ndarray, "g e"], Float[np.ndarray, "g e"]]:
        """Mean and sd of effects by draws: of every group, behind those of the groups around it."""
        first, second = jax.random.split(jax.random.key(seed))
        drawn = self.model.effects_drawn(self.q, self.branches, self.q.sample(first, (draws,)), second)
        return np.asarray(drawn.mean(axis=0)), np.asarray(drawn.std(axis=0))


def _by_level(model: GroupEffects, data: GroupedTable) -> Float[np.ndarray, "n l"]:
    return np.asarray(data.group).reshape(len(data.y), len(model.effects))


def _nothing(size: int, dimensions: int) -> Branches:
    """Of a row whose groups are all new."""
    return _padded(Branches.none(1, jnp.zeros(dimensions)), size)


def _padded(branches: Branches, size: int) -> Branches:
    """With zeros for effects of levels within."""
    more = (0, size - branches.mean.shape[1])
    along = ((0, 0), more)
    return Branches(
        jnp.pad(branches.mean, along),
        jnp.pad(branches.slope, (*along, (0, 0))),
        jnp.pad(branches.covariance, (*along, more)),
        jnp.pad(branches.power, along),
    )


def effects_of(fit: Fitted, draws: int = 4000, seed: int = 0) -> list[GroupEffect]:
    """Every group's effects, partially pooled, and by its own rows alone."""
    terms = fit.design.formula.grouped
    if not terms:
        raise SettingsError("The formula has no effects of groups: add a term such as (1 | ward).")
    if not fit.partition.names:
        raise DataError("The rows are not at hand, by which effects of groups are known: ask the fit of pt.fit.")
    with enable_x64(True):
        model, q = _in_groups(fit.result.posterior.model), fit.result.posterior.q
        pooled = _Groups(model, q, fit.partition)
        told = pooled.moments(draws, seed)
        apart = [
            _Groups(*_apart(model, q, pooled, told[0], level, fit.partition)) for level in range(len(model.effects))
        ]
        alone = [groups.moments(draws, seed) for groups in apart]
    names = dict[tuple[float, ...], str]()
    for site in fit.sites:
        numbers = numbers_of_groups(terms, site)
        for level, term in enumerate(terms):
            keys = map(tuple, numbers[:, : level + 1].tolist())
            names |= {key: ":".join(name) for key, name in zip(keys, names_of_groups(term, site), strict=True)}
    found = []
    for key, (site_name, level, place, _) in pooled.groups.items():
        term, first = terms[level], sum(model.effects[:level])
        other = apart[level].groups[key[level:][:1]].place
        scale = fit.response.slope / units(term, fit.design)
        for k, effect in enumerate(term.names):
            own = [float(each[place, first + k] * scale[k]) for each in told]
            by_itself = [float(each[other, k] * scale[k]) for each in alone[level]]
            found.append(GroupEffect(site_name, term.by, names[key], effect, *own, *by_itself))
    return sorted(found, key=lambda each: [term.by for term in terms].index(each.by))


def _apart(
    model: GroupEffects, q: Family, pooled: _Groups, means: Float[np.ndarray, "g e"], level: int, partition: Partition
) -> tuple[GroupEffects, FullGaussian, Partition]:
    """A model whose outermost groups are those of a level, which have nothing in common, at known coefficients.

    Effects of the groups around them are a known part of the predictor.
    """
    inner, first = GroupEffects(model.likelihood, model.effects[level:]), sum(model.effects[:level])
    mean = np.asarray(gaussian(q).mean)
    coefficients, s = np.split(mean, [len(mean) - model.scale_size])
    s = s[model.scale_size - inner.scale_size :].copy()
    size = model.effects[level]
    s[:size], s[size : size * (size + 1) // 2] = _APART, 0.0
    at = np.concatenate([coefficients, s])
    known = FullGaussian.from_mean_covariance(at, 1e-8 * np.eye(len(at)))
    shards = []
    for shard in partition.shards:
        data, keys = shard.data, map(tuple, _by_level(model, shard.data)[:, :level].tolist())
        around = np.array([means[pooled.groups[key].place] if level else means[0] for key in keys])
        offset = data.offset + np.sum(np.asarray(data.z)[:, :first] * around[:, :first], axis=1)
        group = jnp.asarray(_by_level(model, data)[:, level:])
        shards.append(Shard(GroupedTable(data.x, data.y, data.z[:, first:], group, offset), shard.weights, shard.rows))
    return inner, known, Partition(tuple(shards), partition.names, partition.sizes)


def intraclass(fit: Fitted, mass: float) -> dict[str, tuple[float, float, float]]:
    """The share of each level's intercepts in the variance of the predictor, at the median, and its interval."""
    terms, latent = fit.design.formula.grouped, fit.likelihood.latent
    with_intercepts = [level for level, term in enumerate(terms) if term.intercept]
    if not with_intercepts or latent is None:
        raise SettingsError(
            "An intraclass correlation needs intercepts of groups and a binary or Gaussian response: "
            "write a term such as (1 | ward)."
        )
    with enable_x64(True):
        model = _in_groups(fit.result.posterior.model)
        own = latent(model.likelihood)
        mean, covariance = fit.vector(fit.q)
    firsts = [sum(model.effects[:level]) for level in with_intercepts]
    places = np.array([len(mean) - model.scale_size + model.spots[first] for first in firsts])
    tails = np.array([0.5, (1 - mass) / 2, (1 + mass) / 2])
    spread = covariance[np.ix_(places, places)]
    if len(places) == 1:  # a share grows with the only scale
        s = mean[places] + np.sqrt(spread[0]) * stats.norm.ppf(tails)[:, None]
    else:
        s = np.random.default_rng(0).multivariate_normal(mean[places], spread, _DRAWS)
    squares = np.logaddexp(0, s) ** 2
    shares = squares / (squares.sum(axis=1, keepdims=True) + own)
    told = shares.T if len(places) == 1 else np.quantile(shares, tails, axis=0).T
    return {terms[level].by: tuple(share) for level, share in zip(with_intercepts, told.tolist(), strict=True)}


@Compiled
def _found(model: GroupEffects, q: Family, shard: Shard) -> Sequence[Branches]:
    expectation = model.expectation
    assert isinstance(expectation, LocalEffects)
    return expectation.conditionals(model, q, shard.data, shard.weights)


@Compiled
def _responses(
    model: GroupEffects,
    q: Family,
    data: GroupedTable,
    place: Int[Array, " n"],
    known: Bool[Array, "n l"],
    branches: Branches,
) -> Float[Array, " n"]:
    return model.response_within(q, data, place, known, branches)
