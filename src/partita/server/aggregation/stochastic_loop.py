"""Stochastic natural-gradient EP (SNEP; Hasenclever et al. 2017): the double loop in small steps."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.errors import SettingsError
from partita.families import Family, inner
from partita.families.factor import Factor
from partita.local.solvers.power import check_power
from partita.numerics.compiled import Compiled
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate
from partita.server.aggregation.double_loop import (
    apart,
    cavities_proper,
    check_moments,
    choose,
    evidence,
    matched,
    missed,
    natural,
    newton,
    product,
    rescaled,
    shortened,
    stacked,
)
from partita.server.refusal import Reason, Refusal


class StochasticLoop(Aggregation):
    """Each round is one inner step of size `step` along the natural gradient; θ tracks q as θ^(1−outer) · q^outer.

    The step is linear in the clients' moments, hence unbiased if they are; the noise in the factors shrinks with
    `step`, and that in θ with `outer`. Steps are shortened to keep densities proper. The original algorithm uses mean
    parameters of the factors, which must then be proper; here they are those of q, for which power EP's own steps are
    natural gradients (So and Turner 2024).

    The memory is the prior. q = p · Π t_m holds only at a fixed point, which is that of `DoubleLoop`.
    """

    alpha: float = 1.0
    step: float = 0.1
    outer: float = 0.1

    def __check_init__(self) -> None:
        check_power(self.alpha)
        if not (0 < self.step <= 1 and 0 < self.outer <= 1):
            raise SettingsError(
                f"Inner and outer step must be above 0 and at most 1, not {self.step} and {self.outer}."
            )

    @property
    def keeps_product(self) -> bool:
        return False

    def init(self, prior: Family, clients: int) -> Iterate:
        return super().init(prior, clients)._replace(memory=prior)

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        everybody = [iterate.factors[k] for k in sorted(iterate.factors)]
        posterior, factors, residual, proper = follow(
            self, iterate.posterior, everybody, list(deltas.values()), jnp.array(list(deltas)), iterate.memory
        )
        usable = dict(zip(deltas, proper.tolist(), strict=True))
        refusals = {k: Refusal(Reason.NO_MOMENTS, "has no moments: it is improper") for k in deltas if not usable[k]}
        if len(refusals) == len(deltas):
            return Aggregated(iterate, 0.0, 0, refusals)
        after = Iterate(posterior, dict(enumerate(factors)), iterate.memory)
        return Aggregated(after, float(self.step), 0, refusals, float(residual))

    def check(self, clients: int, answers: int, power: float | None) -> None:
        check_moments(self.alpha, power)

    def log_evidence(self, prior: Family, iterate: Iterate) -> float:
        """log ∫ p(θ) Π t_k(θ) dθ: power EP's estimate at a fixed point.

        With Monte Carlo moments it is as noisy as the factors, and biased low by about 1/samples per client.
        """
        return float(evidence(prior, list(iterate.factors.values())))

    def with_prior(self, iterate: Iterate, change: Family) -> Iterate:
        return super().with_prior(iterate._replace(memory=iterate.memory * change), change)


def _follow(
    server: StochasticLoop,
    theta: Family,
    factors: list[Factor],
    deltas: list[Factor],
    answered: Int[Array, " b"],
    prior: Family,
) -> tuple[Family, list[Factor], Float[Array, ""], Bool[Array, " b"]]:
    """θ and all factors after a step, how far from a fixed point they were, and which answers are proper."""
    alpha, tilted = server.alpha, matched(server.alpha, theta, deltas)
    proper = jax.vmap(lambda member: member.is_proper())(tilted)

    def usable(tree: PyTree) -> PyTree:
        return jax.vmap(lambda one, is_usable: choose(is_usable, one, jax.tree.map(jnp.zeros_like, one)))(tree, proper)

    before = stacked([factor.natural for factor in factors])
    q = product(prior, before)
    gradients = usable(missed(q, tilted))
    steepest = jax.vmap(lambda gradient: natural(q, gradient))(gradients)
    direction = usable(newton(alpha, steepest, jnp.sum(proper)))
    residual = jnp.maximum(jnp.max(jax.vmap(inner)(steepest, gradients)) / 2, q.distance(theta))

    def moved(length: Float[Array, ""]) -> Family:
        return jax.tree.map(lambda leaf, change: leaf.at[answered].add(length * change), before, direction)

    def possible(length: Float[Array, ""]) -> Bool[Array, ""]:
        return cavities_proper(alpha, theta, moved(length)) & product(prior, moved(length)).is_proper()

    after = moved(shortened(jnp.asarray(server.step, residual.dtype), possible))
    towards = product(prior, after) / theta
    far = shortened(
        jnp.asarray(server.outer, residual.dtype),
        lambda length: cavities_proper(alpha, theta * towards**length, after),
    )
    changes = usable(stacked(deltas)) ** server.step
    told = jax.tree.map(lambda leaf, change: leaf.at[answered].add(change), stacked(factors), changes)
    held = jax.vmap(rescaled, (0, 0, None))(told, after, q)
    return theta * towards**far, apart(held, len(factors)), residual, proper


follow = Compiled(_follow)
