"""A lower bound for rows with variables of their group, maximised over Gaussian conditionals of these."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.expectations.base import Density, Expectation
from partita.expectations.capabilities import Rows, offered
from partita.expectations.conditionals import (
    Branches,
    Conditionals,
    LocalProblem,
    LocalVariables,
    Nested,
    inverse,
    stepped,
)
from partita.families import Family
from partita.inputs import check_number, check_whole

__all__ = ["LocalEffects"]

_LONGEST = 0.3
"""The longest step of a power."""
_TRIED = 0.1
"""Its length where no curvature is known."""
_TELLING = 1e-8
"""A shorter step of a power does not tell a curvature."""
_MOST = 0.95
"""The largest power: at 1 a mean exp(f) need not have an expectation, which no quadrature tells."""
_SHORTEST = 1e-4
"""A step that was shortened to less than this hits rounding."""


class LocalEffects(Expectation):
    """For models with variables φ_g of each group: a lower bound, maximised over their conditionals q(φ_g | θ).

    It is Σ_g E_q[log p(y_g | θ, φ_g)] − E_q KL(q(φ_g | θ) ‖ p(φ_g | θ)) at the best Gaussian conditionals, linear in θ,
    and so a functional of q(θ) alone. Its gradient is that at the best conditionals held fixed (the envelope theorem),
    whose precision is θ's after φ is eliminated, the Schur complement. So fixed points are those of structured VI of
    all rows; the variables never leave the client, and nothing is kept between visits. Of groups within groups the
    conditional of an inner one is given the variables of those around it too, and elimination goes inside out.

    Conditionals are found by natural-gradient steps (Bonnet's and Price's formulas), of all that lies in an outermost
    group shortened while they would lower its term, together with secant steps of powers: φ = scale^α_g · u_g with u_g
    Gaussian, between centred and non-centred.
    """

    bounds = True
    max_steps: int = eqx.field(static=True, default=100)
    tolerance: float = eqx.field(static=True, default=1e-12)
    """Groups are done when a step moves each conditional by less than this, in nats; at least 8 times the precision."""

    def __check_init__(self) -> None:
        check_whole("number of steps, max_steps,", self.max_steps)
        check_number("tolerance", self.tolerance, lambda tolerance: tolerance > 0, "above 0")

    def rows(self, model: Density, q: Family, data: PyTree, key: Key[Array, ""]) -> Rows:
        """Each row's share: a group's divergence is shared out equally among its rows."""
        posed, best = self._best(model, q, data, jnp.ones(len(jax.tree.leaves(data)[0])))
        return posed.by_row(best)

    def total(self, model: Density, q: Family, data: PyTree, weights: Rows, key: Key[Array, ""]) -> Float[Array, ""]:
        posed, best = self._best(model, q, data, weights)
        return jnp.sum(_terms(posed, best))

    def conditionals(self, model: Density, q: Family, data: PyTree, weights: Rows) -> list[Branches]:
        """The best conditionals at q given θ, of each level's groups with those around them, the outermost first."""
        posed, best = self._best(model, q, data, weights)
        return Branches.every(best, posed.forest, posed.mean)

    def _best(self, model: Density, q: Family, data: PyTree, weights: Rows) -> tuple[LocalProblem, Nested]:
        """What groups say at q, and the best conditionals there, which are held fixed in derivatives."""
        local = offered(model, LocalVariables, "variables of groups", "use one such as GroupEffects")
        still = jax.lax.stop_gradient((local, q.plain(), data, weights))
        best = _maximised(still[0].posed(*still[1:]), self.max_steps, self.tolerance)
        return local.posed(q, data, weights), jax.lax.stop_gradient(best)


class _Climb(NamedTuple):
    """Where conditionals are; terms and steps are of all that lies in each outermost group."""

    best: Nested
    terms: Rows
    slopes: Nested
    """The gradient of the terms."""
    tried: Nested
    """Those to be tried next."""
    share: Rows
    """ρ, how much of a step this is."""
    left: Rows
    """How far the whole step moves a conditional at most, in nats."""
    bends: "tuple[_Bend, ...]"
    steps: Int[Array, ""]


class _Bend(NamedTuple):
    """What is known of the terms' curvatures in the powers of a level: by secants."""

    curvature: Float[Array, "g d"]
    """0 where none is known."""
    slope: Float[Array, "g d"]
    """The derivative before the last step."""
    change: Float[Array, "g d"]
    """The last step."""


def _maximised(posed: LocalProblem, max_steps: int, tolerance: float) -> Nested:
    """The best conditionals."""
    first, roots = posed.begin(), posed.forest.root
    eps = jnp.finfo(first[0].mean.dtype).eps
    enough = jnp.maximum(tolerance, 8 * eps)

    def busy(climb: _Climb) -> Bool[Array, " g"]:
        return posed.present[0] & (climb.left > enough) & (climb.share > _SHORTEST)

    def go_on(climb: _Climb) -> Bool[Array, ""]:
        return jnp.any(busy(climb)) & (climb.steps <= max_steps)

    def body(climb: _Climb) -> _Climb:
        terms, slopes = _evaluated(posed, climb.tried)
        rose = terms >= climb.terms - 8 * eps * (1 + jnp.abs(climb.terms))
        share = jnp.where(rose, jnp.minimum(1, 2 * climb.share), climb.share / 4)
        share = jnp.where(busy(climb), share, climb.share)
        best = _where(rose, roots, climb.tried, climb.best)
        changes = [new.power - old.power for new, old in zip(best, climb.best, strict=True)]
        slopes, terms = _where(rose, roots, slopes, climb.slopes), jnp.where(rose, terms, climb.terms)
        bends = [bend._replace(change=change) for bend, change in zip(climb.bends, changes, strict=True)]
        step, left, bent = _step(posed, best, slopes, bends, share)
        return _Climb(best, terms, slopes, _moved(posed, best, step), share, left, bent, climb.steps + 1)

    unknown = tuple(_Bend(*(jnp.zeros_like(level.power),) * 3) for level in first)
    far = jnp.full_like(first[0].power[:, 0], jnp.inf)
    still = jax.tree.map(jnp.zeros_like, first)
    climb = _Climb(first, -far, still, first, jnp.ones_like(far), far, unknown, jnp.asarray(0))
    climb = jax.lax.while_loop(go_on, body, climb)
    return _where(climb.left <= enough, roots, climb.tried, climb.best)


def _terms(posed: LocalProblem, at: Nested) -> Rows:
    """The bound's term of all that lies in each outermost group."""
    told = jnp.where(posed.present[0], posed.joint(at), 0)
    for level, present, root in zip(at, posed.present, posed.forest.root, strict=True):
        told = told.at[root].add(jnp.where(present, level.entropy(), 0))
    return told


def _moved(posed: LocalProblem, best: Nested, step: Nested) -> Nested:
    """The conditionals after a step."""
    return posed.recentred(stepped(best, posed.forest, step), [level.power for level in step])


def _evaluated(posed: LocalProblem, at: Nested) -> tuple[Rows, Nested]:
    """The terms, and their sum's gradient in steps; powers move where the conditionals of φ stay to first order."""

    def total(step: Nested) -> tuple[Float[Array, ""], Rows]:
        terms = _terms(posed, _moved(posed, at, step))
        return jnp.sum(terms), terms

    (_, terms), slopes = jax.value_and_grad(total, has_aux=True)(jax.tree.map(jnp.zeros_like, at))
    return terms, slopes


def _step(
    posed: LocalProblem, best: Nested, slopes: Nested, bends: "Sequence[_Bend]", share: Rows
) -> tuple[Nested, Rows, "tuple[_Bend, ...]"]:
    """The share of a natural-gradient step that is to be taken, how long the whole one is, and curvatures."""
    forest, left = posed.forest, jnp.zeros_like(share)
    outer = [Branches.none(len(share), posed.mean), *Branches.every(best, forest, posed.mean)]
    step, bent = list[Conditionals](), list[_Bend]()
    levels = zip(best, slopes, bends, outer, forest.above, forest.root, posed.present, strict=False)
    for own, slope, bend, around, above, root, present in levels:
        whole, length, new = _step_of_level(around.at(above), own, slope, bend, share[root], present, posed.precision)
        step.append(whole)
        bent.append(new)
        left = left.at[root].max(jnp.where(present, length, 0))
    return tuple(step), left, tuple(bent)


def _step_of_level(
    outer: Branches,
    best: Conditionals,
    slopes: Conditionals,
    old: _Bend,
    share: Rows,
    present: Bool[Array, " g"],
    precision: Float[Array, "p p"],
) -> tuple[Conditionals, Rows, _Bend]:
    """Of groups of one level, inside others; the covariance is mixed with the last one's by the share."""
    held, _ = inverse(best.covariance)
    target = held - slopes.covariance - jnp.swapaxes(slopes.covariance, -1, -2)
    target = jnp.where(present[:, None, None], target, held)
    mixed = (1 - share[:, None, None]) * held + share[:, None, None] * target
    new, _ = inverse(mixed)
    mean = jnp.einsum("gde,ge->gd", new, slopes.mean)
    slope = new @ outer.natural(slopes.slope, precision)
    rise = slopes.power
    secant = (rise - old.slope) / jnp.where(old.change == 0, 1, old.change)
    curvature = jnp.where((jnp.abs(old.change) > _TELLING) & (secant < 0), secant, old.curvature)
    power = jnp.where(curvature < 0, -rise / jnp.where(curvature < 0, curvature, 1), _TRIED * jnp.sign(rise))
    power = jnp.clip(best.power + jnp.clip(power, -_LONGEST, _LONGEST), 0, _MOST) - best.power
    power = jnp.where(present[:, None], power, 0)
    ratio = jnp.einsum("gde,gef->gdf", target, best.covariance)
    narrower = inverse(target)[1] - inverse(held)[1]
    spread = jnp.trace(ratio, axis1=-2, axis2=-1) - narrower - ratio.shape[-1]
    # a natural-gradient step is as long as its product with the gradient
    apart = jnp.sum(slopes.mean * mean, axis=-1) + jnp.sum(slopes.slope * slope, axis=(-2, -1))
    length = (spread + apart) / 2 + jnp.sum(jnp.abs(rise * power), axis=1)
    length = jnp.where(jnp.isnan(length), jnp.inf, length)
    taken = Conditionals(
        share[:, None] * mean, share[:, None, None] * slope, new - best.covariance, share[:, None] * power
    )
    return taken, length, _Bend(curvature, rise, old.change)


def _where(rose: Bool[Array, " g"], roots: Sequence[Int[Array, " g"]], new: Nested, old: Nested) -> Nested:
    """The new values of all that lies in some outermost groups, and the old ones of what lies in others."""

    def chosen(which: Bool[Array, " g"], new: Array, old: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    def of_level(root: Int[Array, " g"], new: Conditionals, old: Conditionals) -> Conditionals:
        return jax.tree.map(lambda *both: chosen(rose[root], *both), new, old)

    return tuple(map(of_level, roots, new, old))
