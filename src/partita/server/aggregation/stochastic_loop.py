"""Stochastic natural-gradient EP (SNEP; Hasenclever et al. 2017): the double loop in small steps."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.families import Family, inner
from partita.families.factor import Factor
from partita.inputs import check_fraction
from partita.numerics.compiled import Compiled
from partita.numerics.stack import Stack
from partita.server.aggregation import double_loop as loop
from partita.server.aggregation.base import Aggregated, FreeEnergy, Iterate
from partita.server.aggregation.double_loop import NO_MOMENTS, MomentLoop

__all__ = ["StochasticLoop", "follow"]


class StochasticLoop(MomentLoop):
    """Each round is one inner step of size `step` along the natural gradient; θ tracks q as θ^(1−outer) · q^outer.

    The step is linear in the clients' moments, hence unbiased if they are; the noise in the factors shrinks with
    `step`, and that in θ with `outer`. Steps are shortened to keep densities proper. The original algorithm uses mean
    parameters of the factors, which must then be proper; here they are those of q, for which power EP's own steps are
    natural gradients (So and Turner 2024).

    The memory is the prior. q = p · Π t_m holds only at a fixed point, which is that of `DoubleLoop`.
    """

    step: float = 0.1
    outer: float = 0.1

    def __check_init__(self) -> None:
        check_fraction("inner step", self.step)
        check_fraction("outer step", self.outer)

    def init(self, prior: Family, clients: int) -> Iterate:
        return super().init(prior, clients)._replace(memory=prior)

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        everybody = list(iterate.factors)
        posterior, factors, residual, proper = follow(
            self, iterate.posterior, everybody, list(deltas.values()), jnp.array(list(deltas)), iterate.memory
        )
        usable = dict(zip(deltas, proper.tolist(), strict=True))
        refusals = {k: NO_MOMENTS for k in deltas if not usable[k]}
        if len(refusals) == len(deltas):
            return Aggregated(iterate, 0.0, 0, refusals)
        after = Iterate(posterior, Stack.of(factors), iterate.memory)
        return Aggregated(after, float(self.step), 0, refusals, float(residual))

    def remembered(self, memory: Family, change: Family) -> Family:
        return memory * change


@Compiled
def follow(
    server: StochasticLoop,
    theta: Family,
    factors: list[Factor],
    deltas: list[Factor],
    answered: Int[Array, " b"],
    prior: Family,
) -> tuple[Family, list[Factor], Float[Array, ""], Bool[Array, " b"]]:
    """θ and all factors after a step, how far from a fixed point they were, and which answers are proper."""
    alpha, tilted = server.alpha, loop.matched(server.alpha, theta, deltas)
    proper = jax.vmap(lambda member: member.is_proper())(tilted)

    def usable(tree: PyTree) -> PyTree:
        return jax.vmap(lambda one, use: jax.tree.map(lambda leaf: jnp.where(use, leaf, 0), one))(tree, proper)

    before = loop.stacked([factor.natural for factor in factors])
    q = loop.product(prior, before)
    gradients = usable(loop.missed(q, tilted))
    steepest = jax.vmap(lambda gradient: loop.natural(q, gradient))(gradients)
    direction = usable(loop.newton(alpha, steepest, jnp.sum(proper)))
    residual = jnp.maximum(jnp.max(jax.vmap(inner)(steepest, gradients)) / 2, q.distance(theta))

    def moved(length: Float[Array, ""]) -> Family:
        return jax.tree.map(lambda leaf, change: leaf.at[answered].add(length * change), before, direction)

    def possible(length: Float[Array, ""]) -> Bool[Array, ""]:
        return loop.cavities_proper(alpha, theta, moved(length)) & loop.product(prior, moved(length)).is_proper()

    after = moved(loop.shortened(jnp.asarray(server.step, residual.dtype), possible))
    towards = loop.product(prior, after) / theta
    far = loop.shortened(
        jnp.asarray(server.outer, residual.dtype),
        lambda length: loop.cavities_proper(alpha, theta * towards**length, after),
    )
    changes = usable(loop.stacked([delta**server.step for delta in deltas]))
    told = jax.tree.map(lambda leaf, change: leaf.at[answered].add(change), loop.stacked(factors), changes)
    held = jax.vmap(loop.rescaled, (0, 0, None))(told, after, q)
    return theta * towards**far, loop.apart(held, len(factors)), residual, proper
