"""Generalised linear models with effects of groups, each of which lies within one client."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from partita.data.table import GroupedTable, Table
from partita.errors import DataError
from partita.expectations import Expectation, LocalEffects
from partita.expectations.blocks import BLOCK
from partita.expectations.capabilities import Rows, Simulated, offered
from partita.expectations.conditionals import Conditionals
from partita.expectations.predictors import normal_nodes, square_root
from partita.families import Family
from partita.families.gaussian import check_vector, gaussian
from partita.inputs import check_kind, check_whole
from partita.models.base import Model, check_table
from partita.models.glm import GeneralisedLinear, softplus

__all__ = ["GroupEffects"]

_START = 0.5
"""The power at which a group's conditional starts."""


def _scale_size(effects: int) -> int:
    """How many elements of θ say how d effects of a group vary: a scale for each, and their correlations."""
    return effects * (effects + 1) // 2


class GroupEffects(Model):
    """p(y | f) with f = xᵀβ + zᵀφ_g for a row of group g, and φ_g ~ N(0, Σ); θ = (β, s), where s says what Σ is.

    With d effects of a group, s has d numbers whose softplus is the standard deviation of an effect, and then for every
    pair, row by row of a triangle, the inverse hyperbolic tangent of its partial correlation. Scales are by softplus,
    since with exp and a Gaussian s the expectation of exp(f) is infinite. A group belongs to one client: its effects
    are no part of θ, and never leave it.

    In q they are φ_g = scale^α_g · u_g, with u_g Gaussian given θ.
    """

    independent_rows = False
    likelihood: GeneralisedLinear
    effects: int = eqx.field(static=True, default=1)
    """d, how many effects a group has: the columns of z."""
    nodes: int = eqx.field(static=True, default=12)
    """How many nodes the expectation over s has if d = 1; at most their square beyond."""
    expectation: Expectation = eqx.field(default=LocalEffects(), kw_only=True)

    def __check_init__(self) -> None:
        check_kind("likelihood of groups", self.likelihood, GeneralisedLinear, "use one such as LogisticRegression()")
        check_kind("expectation of groups", self.expectation, LocalEffects, "use LocalEffects()")
        check_whole("number of effects", self.effects)
        check_whole("number of nodes", self.nodes, 3)

    @property
    def positive(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the likelihood."""
        return tuple(f"likelihood.{name}" for name in self.likelihood.positive)

    def check(self, data: GroupedTable) -> None:
        if not isinstance(data, GroupedTable):
            raise DataError("the data are not a GroupedTable: pass partita.data.GroupedTable(x, y, z, group, offset)")
        check_table(data, GroupedTable)
        z, group = np.asarray(data.z), np.asarray(data.group)
        if z.ndim != 2 or z.shape != (len(data.y), self.effects):
            raise DataError(f"z has shape {z.shape}: give a matrix of {self.effects} columns, one for each effect")
        if group.shape != (len(data.y),):
            raise DataError(f"group has shape {group.shape}: give a number for each row")
        self.likelihood.check(Table(data.x, data.y))

    def log_density(self, theta: Float[Array, " p"], datum: GroupedTable) -> Float[Array, ""]:
        """Of a row that is alone in its group, whose effects are summed out."""
        coefficients, effects, masses = self._of_new_groups(theta, 20)
        f = datum.shifted(datum.x @ coefficients) + effects @ datum.z
        return jax.nn.logsumexp(self.likelihood.log_link_density(f, datum.y) + jnp.log(masses))

    def response_of(self, theta: Float[Array, " p"], data: GroupedTable) -> Rows:
        """Of rows of a new group, whose effects are averaged."""
        coefficients, effects, masses = self._of_new_groups(theta, 20)
        f = data.shifted(data.x @ coefficients)[:, None] + data.z @ effects.T
        return self.likelihood.mean_response(f) @ masses

    def simulated(self, theta: Float[Array, " p"], data: GroupedTable, key: Key[Array, ""]) -> Rows:
        """Of new groups: rows with one number have the same effects."""
        first, second = jax.random.split(key)
        split = data.x.shape[1]
        deviation, root = self.scales(theta[split:])
        drawn = jax.random.normal(first, (len(data.y), self.effects), theta.dtype) @ (deviation[:, None] * root).T
        offset = jnp.sum(data.z * drawn[_places(data.group)], axis=-1)
        table = GroupedTable(data.x, data.y, data.z, data.group, data.offset + offset)
        own = offered(self.likelihood, Simulated, "draws of its response", "give it the method simulated")
        return own.simulated(theta[:split], table, second)

    def scales(self, s: Float[Array, "... h"]) -> tuple[Float[Array, "... d"], Float[Array, "... d d"]]:
        """Standard deviations of a group's effects, and the lower triangular square root of their correlations."""
        size = self.effects
        partial, rows, at = jnp.tanh(s[..., size:]), [], 0
        for place in range(size):
            left, row = jnp.ones(s.shape[:-1], s.dtype), []
            for _ in range(place):
                row.append(partial[..., at] * jnp.sqrt(left))
                left, at = left * (1 - partial[..., at] ** 2), at + 1
            zeros = [jnp.zeros_like(left)] * (size - place - 1)
            rows.append(jnp.stack([*row, jnp.sqrt(left), *zeros], axis=-1))
        return softplus(s[..., :size]), jnp.stack(rows, axis=-2)

    def effects_drawn(
        self, q: Family, conditionals: Conditionals, theta: Float[Array, "s p"], key: Key[Array, ""]
    ) -> Float[Array, "s g d"]:
        """Draws of every group's effects φ_g that belong to draws of θ from q, by the conditionals at q."""
        mean, slope, covariance, power = conditionals
        noise = jax.random.normal(key, (len(theta), *mean.shape), mean.dtype)
        root = jax.vmap(square_root)(covariance)
        away = theta - gaussian(q).mean
        u = mean + jnp.einsum("gdp,sp->sgd", slope, away) + jnp.einsum("gde,sge->sgd", root, noise)
        deviation, _ = self.scales(theta[:, theta.shape[1] - _scale_size(self.effects) :])
        return u * deviation[:, None, :] ** power

    def response_within(
        self, q: Family, data: GroupedTable, place: Int[Array, " n"], known: Conditionals | None
    ) -> Rows:
        """E_q[y] of rows, by the conditionals at q of those groups whose places are given; −1 is a new group."""
        posed = self.posed(q, data, jnp.ones(len(data.y), data.x.dtype))
        mean, variance = posed.of_new_groups()
        if known is not None:
            of_known = dataclasses.replace(posed, place=jnp.maximum(place, 0)).predictors(known)
            new = place[:, None] < 0
            mean, variance = jnp.where(new, mean, of_known[0]), jnp.where(new, variance, of_known[1])
        average = jax.vmap(self.likelihood.averaged_response, in_axes=1, out_axes=1)
        return average(mean, variance) @ posed.rule[1]

    def posed(self, q: Family, data: GroupedTable, weights: Rows) -> "_Groups":
        member = gaussian(q, "A model with effects of groups", "use a FullGaussian")
        check_vector(member.mean)
        mean, covariance = member.mean, member.covariance
        split = data.x.shape[1]
        if len(mean) != split + _scale_size(self.effects):
            raise DataError(
                f"θ has {len(mean)} elements: give one for each of {split} columns, and {_scale_size(self.effects)} "
                f"for how {self.effects} effects of a group vary."
            )
        root = square_root(covariance[split:, split:])
        along = jsp.linalg.solve_triangular(root, covariance[split:], lower=True).T
        within = covariance - along @ along.T
        each = self.nodes if self.effects == 1 else self.nodes**2
        nodes, masses = (jnp.asarray(node, mean.dtype) for node in normal_nodes(_scale_size(self.effects), each))
        deviation, triangle = self.scales((mean[split:, None] + root @ nodes).T)
        inverse = jsp.linalg.solve_triangular(
            triangle, jnp.broadcast_to(jnp.eye(self.effects, dtype=mean.dtype), triangle.shape), lower=True
        )
        logs = jnp.log(deviation), jnp.sum(jnp.log(jnp.diagonal(triangle, axis1=-2, axis2=-1)), axis=-1)
        precision = jnp.swapaxes(inverse, -1, -2) @ inverse
        place = _places(data.group)
        count = jnp.zeros(len(place), weights.dtype).at[place]
        spread = data.x @ within[:split]
        rows = _Rows(
            data.x @ mean[:split] + data.offset,
            data.x @ along[:split],
            jnp.sum(spread[:, :split] * data.x, axis=-1),
            spread,
            data.y,
            data.z,
        )
        middle = self.scales(mean[split:])[0], jax.nn.sigmoid(mean[split : split + self.effects])
        return _Groups(
            self.likelihood, rows, weights, place, count.add(weights), mean, covariance, member.matrix(), along, within,
            (nodes, masses), logs, triangle, precision, middle,
        )  # fmt: skip

    def _of_new_groups(
        self, theta: Float[Array, " p"], points: int
    ) -> tuple[Float[Array, " c"], Float[Array, "s d"], Float[Array, " s"]]:
        """The coefficients, and effects of a new group with their masses."""
        split = len(theta) - _scale_size(self.effects)
        deviation, root = self.scales(theta[split:])
        nodes, masses = (jnp.asarray(node, theta.dtype) for node in normal_nodes(self.effects, points**2))
        return theta[:split], ((deviation[:, None] * root) @ nodes).T, masses


class _Rows(NamedTuple):
    """What does not depend on conditionals, of one row or of all."""

    mean: Float[Array, "..."]
    """The mean of the predictor without effects of groups."""
    along: Float[Array, "... h"]
    """Its slope in the standardised s."""
    variance: Float[Array, "..."]
    """Its variance given s."""
    spread: Float[Array, "... p"]
    """Its covariance with θ given s."""
    y: Float[Array, "..."]
    z: Float[Array, "... d"]


class _Groups(eqx.Module):
    """What groups say at one q: given each of some nodes of s, predictors are Gaussian."""

    likelihood: GeneralisedLinear
    rows: _Rows
    weights: Rows
    place: Int[Array, " n"]
    """Which group a row is in."""
    count: Rows
    """The sum of weights of each group."""
    mean: Float[Array, " p"]
    covariance: Float[Array, "p p"]
    precision: Float[Array, "p p"]
    along: Float[Array, "p h"]
    """The slope of θ in the standardised s."""
    within: Float[Array, "p p"]
    """The covariance of θ given s."""
    rule: tuple[Float[Array, "h j"], Float[Array, " j"]]
    """Nodes of the standardised s, and their masses."""
    logs: tuple[Float[Array, "j d"], Float[Array, " j"]]
    """At each node the log standard deviations of effects, and half of the log determinant of their correlations."""
    triangle: Float[Array, "j d d"]
    """The square root of their correlations at each node."""
    inverse: Float[Array, "j d d"]
    """The inverse of their correlations at each node."""
    middle: tuple[Float[Array, " d"], Float[Array, " d"]]
    """At the mean of s the standard deviations, and their derivatives in s."""

    @property
    def present(self) -> Bool[Array, " g"]:
        return self.count > 0

    def begin(self) -> Conditionals:
        groups, size, dtype = len(self.place), len(self.middle[0]), self.mean.dtype
        return Conditionals(
            jnp.zeros((groups, size), dtype),
            jnp.zeros((groups, size, len(self.mean)), dtype),
            jnp.broadcast_to(jnp.eye(size, dtype=dtype), (groups, size, size)),
            jnp.full((groups, size), _START, dtype),
        )

    def recentred(self, conditionals: Conditionals, change: Float[Array, "g d"]) -> Conditionals:
        mean, slope, covariance, power = conditionals
        deviation, by_s = self.middle
        factor = deviation ** (-change)
        mean = factor * mean
        own = mean * -change * by_s / deviation
        size = len(deviation)
        split = len(self.mean) - len(self.rule[0])
        slope = (factor[:, :, None] * slope).at[:, jnp.arange(size), split + jnp.arange(size)].add(own)
        return Conditionals(mean, slope, factor[:, :, None] * covariance * factor[:, None, :], power + change)

    def joint(self, conditionals: Conditionals) -> Rows:
        own = jnp.zeros_like(self.count).at[self.place].add(self.weights * self._own(conditionals))
        return own + self._effects(conditionals)

    def by_row(self, conditionals: Conditionals) -> Rows:
        beside = (self._effects(conditionals) + conditionals.entropy()) / jnp.where(self.present, self.count, 1)
        return self._own(conditionals) + beside[self.place]

    def _at(self, conditionals: Conditionals) -> tuple[Array, Array, Array]:
        """Every group's mean of u, its slope in the standardised s, and its covariance given s."""
        mean, slope, covariance, _ = conditionals
        moved = mean + slope @ (self.mean - jax.lax.stop_gradient(self.mean))
        return moved, slope @ self.along, covariance + slope @ self.within @ jnp.swapaxes(slope, -1, -2)

    def _effects(self, conditionals: Conditionals) -> Rows:
        """Every group's E[log p(u_g | s)]."""
        (mean, along, covariance), power = self._at(conditionals), conditionals.power
        (nodes, masses), (deviations, triangle) = self.rule, self.logs

        def group(mean: Array, along: Array, covariance: Array, power: Array) -> Float[Array, ""]:
            scaled = jnp.exp((power - 1) * deviations)
            at = scaled * (mean + (along @ nodes).T)
            square = jnp.einsum("jk,jkl,jl->j", at, self.inverse, at)
            spread = jnp.einsum("jk,jl,jkl,kl->j", scaled, scaled, self.inverse, covariance)
            logs = deviations @ (1 - power) + triangle
            return -masses @ ((square + spread) / 2 + logs) - len(mean) * jnp.log(2 * jnp.pi) / 2

        return jax.vmap(group)(mean, along, covariance, power)

    def _own(self, conditionals: Conditionals) -> Rows:
        """Every row's E[log p(y_n | θ, φ_g)]."""
        model, masses, groups = self.likelihood, self.rule[1], self._at(conditionals)

        def row(own: _Rows, place: Int[Array, ""]) -> Float[Array, ""]:
            mean, variance = self._predictor(conditionals, groups, own, place)
            table = Table(jnp.zeros((len(masses), 0)), jnp.broadcast_to(own.y, masses.shape))
            return masses @ model.expectation.at_predictor(model, mean, variance, table)

        def one(pair: tuple[_Rows, Int[Array, ""]]) -> Float[Array, ""]:
            return row(*pair)

        pairs = self.rows, self.place
        if len(self.place) <= BLOCK:
            return jax.vmap(row)(*pairs)
        return jax.lax.map(jax.checkpoint(one), pairs, batch_size=BLOCK)

    def predictors(self, conditionals: Conditionals) -> tuple[Float[Array, "n j"], Float[Array, "n j"]]:
        """Mean and variance of every row's predictor at each node of s."""
        groups = self._at(conditionals)
        each = jax.vmap(lambda own, place: self._predictor(conditionals, groups, own, place))
        return each(self.rows, self.place)

    def of_new_groups(self) -> tuple[Float[Array, "n j"], Float[Array, "n j"]]:
        """The same, if every row were in a group that nobody has seen."""
        scaled = self.rows.z[:, None, :] * jnp.exp(self.logs[0])
        spread = jnp.sum(jnp.einsum("njk,jkl->njl", scaled, self.triangle) ** 2, axis=-1)
        return self.rows.mean[:, None] + self.rows.along @ self.rule[0], self.rows.variance[:, None] + spread

    def _predictor(
        self, conditionals: Conditionals, groups: tuple[Array, Array, Array], own: _Rows, place: Int[Array, ""]
    ) -> tuple[Float[Array, " j"], Float[Array, " j"]]:
        """Mean and variance of a row's predictor at each node of s."""
        mean, along, covariance = groups
        scaled = own.z * jnp.exp(conditionals.power[place] * self.logs[0])
        effects = jnp.sum(scaled * (mean[place] + (along[place] @ self.rule[0]).T), axis=-1)
        across = scaled @ (conditionals.slope[place] @ own.spread)
        variance = own.variance + 2 * across + jnp.sum((scaled @ covariance[place]) * scaled, axis=-1)
        return own.mean + own.along @ self.rule[0] + effects, variance


def _places(group: Float[Array, " n"]) -> Int[Array, " n"]:
    """Every row's group by a number from 0 up, below the number of rows."""
    order = jnp.argsort(group)
    ordered = group[order]
    new = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(ordered[1:] != ordered[:-1])])
    return jnp.zeros_like(new).at[order].set(new)
