"""A lower bound for rows with variables of their group, maximised over Gaussian conditionals of these."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.expectations.base import Density, Expectation
from partita.expectations.capabilities import Rows, offered
from partita.expectations.conditionals import Conditionals, LocalProblem, LocalVariables, inverse
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
    all rows; the variables never leave the client, and nothing is kept between visits.

    Conditionals are found by natural-gradient steps (Bonnet's and Price's formulas), of each group shortened while they
    would lower its term, together with secant steps of its power: φ = scale^α_g · u_g with u_g Gaussian, between
    centred and non-centred.
    """

    bounds = True
    max_steps: int = eqx.field(static=True, default=100)
    tolerance: float = eqx.field(static=True, default=1e-12)
    """A group is done when a step moves its conditional by less than this, in nats; at least 8 times the precision."""

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

    def conditionals(self, model: Density, q: Family, data: PyTree, weights: Rows) -> Conditionals:
        """The best conditionals at q."""
        return self._best(model, q, data, weights)[1]

    def _best(self, model: Density, q: Family, data: PyTree, weights: Rows) -> tuple[LocalProblem, Conditionals]:
        """What groups say at q, and the best conditionals there, which are held fixed in derivatives."""
        local = offered(model, LocalVariables, "variables of groups", "use one such as GroupEffects")
        still = jax.lax.stop_gradient((local, q.plain(), data, weights))
        best = _maximised(still[0].posed(*still[1:]), self.max_steps, self.tolerance)
        return local.posed(q, data, weights), jax.lax.stop_gradient(best)


class _Climb(NamedTuple):
    """Where every group's conditional is."""

    best: Conditionals
    terms: Rows
    slopes: Conditionals
    """The gradient of the terms without entropies."""
    share: Rows
    """ρ, how much of the next step is taken."""
    left: Rows
    """How far the last whole step goes, in nats."""
    bend: "_Bend"
    steps: Int[Array, ""]


class _Bend(NamedTuple):
    """What is known of the terms' curvatures in powers: by secants."""

    curvature: Float[Array, "g d"]
    """0 where none is known."""
    slope: Float[Array, "g d"]
    """The derivative before the last step."""
    change: Float[Array, "g d"]
    """The last step."""


class _Step(NamedTuple):
    """A natural-gradient step of every group's conditional."""

    mean: Float[Array, "g d"]
    slope: Float[Array, "g d p"]
    covariance: Float[Array, "g d d"]
    power: Float[Array, "g d"]
    length: Rows
    """In nats."""
    bend: _Bend


def _maximised(posed: LocalProblem, max_steps: int, tolerance: float) -> Conditionals:
    """The best conditionals."""
    first = posed.begin()
    eps = jnp.finfo(first.mean.dtype).eps
    enough = jnp.maximum(tolerance, 8 * eps)

    def busy(climb: _Climb) -> Bool[Array, " g"]:
        return posed.present & (climb.left > enough) & (climb.share > _SHORTEST)

    def go_on(climb: _Climb) -> Bool[Array, ""]:
        return jnp.any(busy(climb)) & (climb.steps < max_steps)

    def body(climb: _Climb) -> _Climb:
        step = _step(posed, climb)
        new = _moved(posed, climb.best, step, climb.share)
        terms, slopes = _evaluated(posed, new)
        rose = terms >= climb.terms - 8 * eps * (1 + jnp.abs(climb.terms))
        share = jnp.where(rose, jnp.minimum(1, 2 * climb.share), climb.share / 4)
        best, terms, slopes = _where(rose, (new, terms, slopes), (climb.best, climb.terms, climb.slopes))
        share = jnp.where(busy(climb), share, climb.share)
        bend = step.bend._replace(change=best.power - climb.best.power)
        return _Climb(best, terms, slopes, share, step.length, bend, climb.steps + 1)

    terms, slopes = _evaluated(posed, first)
    none, far = jnp.zeros_like(first.power), jnp.full_like(terms, jnp.inf)
    climb = _Climb(first, terms, slopes, jnp.ones_like(terms), far, _Bend(none, none, none), jnp.asarray(0))
    return jax.lax.while_loop(go_on, body, climb).best


def _terms(posed: LocalProblem, at: Conditionals) -> Rows:
    """Every group's term of the bound."""
    return jnp.where(posed.present, posed.joint(at) + at.entropy(), 0)


def _evaluated(posed: LocalProblem, at: Conditionals) -> tuple[Rows, Conditionals]:
    """Every group's term, and the gradient of their sum without entropies."""

    def joint(at: Conditionals) -> tuple[Float[Array, ""], Rows]:
        values = jnp.where(posed.present, posed.joint(at), 0)
        return jnp.sum(values), values

    (_, values), slopes = jax.value_and_grad(joint, has_aux=True)(at)
    return jnp.where(posed.present, values + at.entropy(), 0), slopes


def _step(posed: LocalProblem, climb: _Climb) -> _Step:
    """The step whose covariance is mixed with the last one's by the share that is taken."""
    best, slopes, share = climb.best, climb.slopes, climb.share[:, None, None]
    held, _ = inverse(best.covariance)
    target = -(slopes.covariance + jnp.swapaxes(slopes.covariance, -1, -2))
    target = jnp.where(posed.present[:, None, None], target, held)
    mixed = (1 - share) * held + share * target
    new, _ = inverse(mixed)
    mean = jnp.einsum("gde,ge->gd", new, slopes.mean)
    slope = jnp.einsum("gde,gep,pr->gdr", new, slopes.slope, posed.precision)
    rise, old = _power_slopes(posed, best, slopes, held), climb.bend
    secant = (rise - old.slope) / jnp.where(old.change == 0, 1, old.change)
    curvature = jnp.where((jnp.abs(old.change) > _TELLING) & (secant < 0), secant, old.curvature)
    power = jnp.where(curvature < 0, -rise / jnp.where(curvature < 0, curvature, 1), _TRIED * jnp.sign(rise))
    power = jnp.clip(best.power + jnp.clip(power, -_LONGEST, _LONGEST), 0, _MOST) - best.power
    ratio = jnp.einsum("gde,gef->gdf", target, best.covariance)
    narrower = inverse(target)[1] - inverse(held)[1]
    spread = jnp.trace(ratio, axis1=-2, axis2=-1) - narrower - ratio.shape[-1]
    shift = jnp.einsum("gd,gde,ge->g", mean, mixed, mean)
    turn = jnp.einsum("gdp,pr,gde,ger->g", slope, posed.covariance, mixed, slope)
    length = (spread + shift + turn) / 2 + jnp.sum(jnp.abs(rise * power), axis=1)
    length = jnp.where(jnp.isnan(length), jnp.inf, length)
    return _Step(mean, slope, new, power, length, _Bend(curvature, rise, old.change))


def _power_slopes(posed: LocalProblem, best: Conditionals, slopes: Conditionals, held: Array) -> Float[Array, "g d"]:
    """The derivatives of every group's term in its powers, where the conditionals of φ stay to first order."""
    whole = slopes._replace(covariance=slopes.covariance + held / 2)  # with those of entropies
    return jax.vjp(lambda change: posed.recentred(best, change), jnp.zeros_like(best.power))[1](whole)[0]


def _moved(posed: LocalProblem, best: Conditionals, step: _Step, share: Rows) -> Conditionals:
    """The conditionals after a share of a step."""
    mean = best.mean + share[:, None] * step.mean
    slope = best.slope + share[:, None, None] * step.slope
    new = best._replace(mean=mean, slope=slope, covariance=step.covariance)
    return posed.recentred(new, share[:, None] * step.power)


def _where(rose: Bool[Array, " g"], new: PyTree, old: PyTree) -> PyTree:
    """By group the new values or the old ones."""

    def chosen(new: Array, old: Array) -> Array:
        return jnp.where(rose.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, new, old)
