"""Generalised linear models with effects of groups, each of which lies within one client."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from partita.data.table import GroupedTable, Table
from partita.errors import DataError, SettingsError
from partita.expectations import Expectation, LocalEffects
from partita.expectations.capabilities import Rows, Simulated, offered
from partita.expectations.conditionals import Branches, Forest
from partita.expectations.predictors import normal_nodes, square_root
from partita.families import Family
from partita.families.gaussian import check_vector, gaussian
from partita.inputs import check_kind, check_whole
from partita.models.base import Model, check_table
from partita.models.glm import GeneralisedLinear, softplus
from partita.models.posed_groups import PosedGroups, RowsWithoutGroups, Scales

__all__ = ["GroupEffects"]


def _scale_size(effects: int) -> int:
    """How many elements of θ say how d effects of a group vary: a scale for each, and their correlations."""
    return effects * (effects + 1) // 2


def _sizes(effects: int | Sequence[int]) -> tuple[int, ...]:
    """The number of effects of each level."""
    return tuple(effects) if isinstance(effects, Sequence) and not isinstance(effects, str) else (effects,)


class GroupEffects(Model):
    """p(y | f) with f = xᵀβ + Σ_l z_lᵀφ_g(l) for a row in the groups g(l), and φ_g ~ N(0, Σ_l); θ = (β, s).

    There is one level of groups, or there are groups within groups, such as wards in hospitals; the outermost level is
    the first. Levels may have the same groups: their effects are then independent of one another. s says what each Σ_l
    is, level by level: with d effects of a group, d numbers whose softplus is the standard deviation of an effect, and
    then for every pair, row by row of a triangle, the inverse hyperbolic tangent of its partial correlation. Scales are
    by softplus, since with exp and a Gaussian s the expectation of exp(f) is infinite. An outermost group belongs to
    one client: its effects, and those of the groups in it, are no part of θ, and never leave it.

    In q they are φ_g = scale^α_g · u_g, with u_g Gaussian given θ and the effects of the groups around it.
    """

    independent_rows = False
    likelihood: GeneralisedLinear
    effects: tuple[int, ...] = eqx.field(static=True, default=1, converter=_sizes)
    """How many effects a group of each level has, a number for one level: the columns of z, the outermost's first."""
    nodes: int = eqx.field(static=True, default=12)
    """How many nodes the expectation over s has if that is one number; at most their square beyond."""
    expectation: Expectation = eqx.field(default=LocalEffects(), kw_only=True)

    def __check_init__(self) -> None:
        check_kind("likelihood of groups", self.likelihood, GeneralisedLinear, "use one such as LogisticRegression()")
        check_kind("expectation of groups", self.expectation, LocalEffects, "use LocalEffects()")
        if not self.effects:
            raise SettingsError("There are no effects of groups: give how many a group of each level has, such as 1.")
        for size in self.effects:
            check_whole("number of effects", size)
        check_whole("number of nodes", self.nodes, 3)

    @property
    def positive(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the likelihood."""
        return tuple(f"likelihood.{name}" for name in self.likelihood.positive)

    @property
    def scale_size(self) -> int:
        """How many elements of θ, its last, say how effects vary."""
        return sum(map(_scale_size, self.effects))

    @property
    def spots(self) -> tuple[int, ...]:
        """For each effect which of these says its standard deviation."""
        starts = [sum(map(_scale_size, self.effects[:level])) for level in range(len(self.effects))]
        return tuple(start + k for start, size in zip(starts, self.effects, strict=True) for k in range(size))

    def check(self, data: GroupedTable) -> None:
        if not isinstance(data, GroupedTable):
            raise DataError("the data are not a GroupedTable: pass partita.data.GroupedTable(x, y, z, group, offset)")
        check_table(data, GroupedTable)
        z, group, levels = np.asarray(data.z), np.asarray(data.group), len(self.effects)
        if z.ndim != 2 or z.shape != (len(data.y), sum(self.effects)):
            raise DataError(f"z has shape {z.shape}: give a matrix of {sum(self.effects)} columns, one for each effect")
        if group.shape != (len(data.y), levels) and not (levels == 1 and group.shape == (len(data.y),)):
            many = "a number" if levels == 1 else f"{levels} numbers, the outermost group's first,"
            raise DataError(f"group has shape {group.shape}: give {many} for each row")
        self.likelihood.check(Table(data.x, data.y))

    def log_density(self, theta: Float[Array, " p"], datum: GroupedTable) -> Float[Array, ""]:
        """Of a row that is alone in its groups, whose effects are summed out."""
        coefficients, effects, masses = self._of_new_groups(theta, 20)
        f = datum.shifted(datum.x @ coefficients) + effects @ datum.z
        return jax.nn.logsumexp(self.likelihood.log_link_density(f, datum.y) + jnp.log(masses))

    def response_of(self, theta: Float[Array, " p"], data: GroupedTable) -> Rows:
        """Of rows of new groups, whose effects are averaged."""
        coefficients, effects, masses = self._of_new_groups(theta, 20)
        f = data.shifted(data.x @ coefficients)[:, None] + data.z @ effects.T
        return self.likelihood.mean_response(f) @ masses

    def simulated(self, theta: Float[Array, " p"], data: GroupedTable, key: Key[Array, ""]) -> Rows:
        """Of new groups: rows with one number have the same effects."""
        first, second = jax.random.split(key)
        split = data.x.shape[1]
        deviation, root = self.scales(theta[split:])
        drawn = jax.random.normal(first, (len(data.y), sum(self.effects)), theta.dtype)
        whose = self._forest(data).place
        mine = jnp.repeat(jnp.stack(whose, axis=1), jnp.array(self.effects), 1, total_repeat_length=sum(self.effects))
        own = jnp.take_along_axis(drawn, mine, axis=0) @ (deviation[:, None] * root).T
        table = GroupedTable(data.x, data.y, data.z, data.group, data.offset + jnp.sum(data.z * own, axis=-1))
        likelihood = offered(self.likelihood, Simulated, "draws of its response", "give it the method simulated")
        return likelihood.simulated(theta[:split], table, second)

    def scales(self, s: Float[Array, "... h"]) -> tuple[Float[Array, "... e"], Float[Array, "... e e"]]:
        """Standard deviations of all levels' effects, and the lower triangular square root of their correlations."""
        deviations, roots, at, end = [], [], 0, 0
        for size in self.effects:
            own = s[..., at : at + _scale_size(size)]
            deviations.append(softplus(own[..., :size]))
            sides = [(0, 0)] * (s.ndim - 1) + [(0, 0), (end, sum(self.effects) - end - size)]
            roots.append(jnp.pad(_triangle(jnp.tanh(own[..., size:]), size), sides))
            at, end = at + _scale_size(size), end + size
        return jnp.concatenate(deviations, axis=-1), jnp.concatenate(roots, axis=-2)

    def effects_drawn(
        self, q: Family, branches: Branches, theta: Float[Array, "s p"], key: Key[Array, ""]
    ) -> Float[Array, "s g e"]:
        """Draws of every group's effects φ that belong to draws of θ from q, by what they are given θ.

        Behind those of the groups around it, as in `branches`, which `LocalEffects.conditionals` gives for each level.
        """
        mean, slope, covariance, power = branches
        noise = jax.random.normal(key, (len(theta), *mean.shape), mean.dtype)
        root = jax.vmap(square_root)(covariance)
        away = theta - gaussian(q).mean
        u = mean + jnp.einsum("gdp,sp->sgd", slope, away) + jnp.einsum("gde,sge->sgd", root, noise)
        deviation, _ = self.scales(theta[:, theta.shape[1] - self.scale_size :])
        return u * deviation[:, None, : mean.shape[1]] ** power

    def response_within(
        self, q: Family, data: GroupedTable, place: Int[Array, " n"], known: Bool[Array, "n l"], branches: Branches
    ) -> Rows:
        """E_q[y] of rows, where groups of some levels are known, by what their effects are given θ; others are new.

        Args:
            q: the posterior.
            data: the rows.
            place: for each row the place of its innermost known group in `branches`, any if none is known.
            known: for each row and level whether its group is known.
            branches: of the groups, with zeros for effects of levels within them.

        """
        posed = self.posed(q, data, jnp.ones(len(data.y), data.x.dtype))
        mean, variance = posed.predictors(branches, place, known)
        average = jax.vmap(self.likelihood.averaged_response, in_axes=1, out_axes=1)
        return average(mean, variance) @ posed.scales.masses

    def posed(self, q: Family, data: GroupedTable, weights: Rows) -> PosedGroups:
        member = gaussian(q, "A model with effects of groups", "use a FullGaussian")
        check_vector(member.mean)
        mean, covariance = member.mean, member.covariance
        split = data.x.shape[1]
        if len(mean) != split + self.scale_size:
            raise DataError(
                f"θ has {len(mean)} elements: give one for each of {split} columns, and {self.scale_size} "
                f"for how {sum(self.effects)} effects of groups vary."
            )
        root = square_root(covariance[split:, split:])
        along = jsp.linalg.solve_triangular(root, covariance[split:], lower=True).T
        within = covariance - along @ along.T
        each = self.nodes if self.scale_size == 1 else self.nodes**2
        nodes, masses = (jnp.asarray(node, mean.dtype) for node in normal_nodes(self.scale_size, each))
        deviation, triangle = self.scales((mean[split:, None] + root @ nodes).T)
        middle, spots = self.scales(mean[split:])[0], jnp.array(self.spots)
        scales = Scales(nodes, masses, jnp.log(deviation), triangle, middle, jax.nn.sigmoid(mean[split + spots]))
        forest, spread = self._forest(data), data.x @ within[:split]
        rows = RowsWithoutGroups(
            data.x @ mean[:split] + data.offset,
            data.x @ along[:split],
            jnp.sum(spread[:, :split] * data.x, axis=-1),
            spread,
            data.y,
            data.z,
        )
        counts = tuple(jnp.zeros_like(weights).at[place].add(weights) for place in forest.place)
        return PosedGroups(
            self.likelihood, self.effects, tuple(split + spot for spot in self.spots), rows, weights, forest, counts,
            mean, member.matrix(), along, within, scales,
        )  # fmt: skip

    def _forest(self, data: GroupedTable) -> Forest:
        return Forest.of(data.group.reshape(len(data.y), len(self.effects)))

    def _of_new_groups(
        self, theta: Float[Array, " p"], points: int
    ) -> tuple[Float[Array, " c"], Float[Array, "s e"], Float[Array, " s"]]:
        """The coefficients, and effects of new groups with their masses."""
        split = len(theta) - self.scale_size
        deviation, root = self.scales(theta[split:])
        nodes, masses = (jnp.asarray(node, theta.dtype) for node in normal_nodes(sum(self.effects), points**2))
        return theta[:split], ((deviation[:, None] * root) @ nodes).T, masses


def _triangle(partial: Float[Array, "... k"], size: int) -> Float[Array, "... d d"]:
    """The lower triangular square root of correlations, by partial ones."""
    rows, at = [], 0
    for place in range(size):
        left, row = jnp.ones(partial.shape[:-1], partial.dtype), []
        for _ in range(place):
            row.append(partial[..., at] * jnp.sqrt(left))
            left, at = left * (1 - partial[..., at] ** 2), at + 1
        zeros = [jnp.zeros_like(left)] * (size - place - 1)
        rows.append(jnp.stack([*row, jnp.sqrt(left), *zeros], axis=-1))
    return jnp.stack(rows, axis=-2)
