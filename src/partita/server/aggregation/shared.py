"""Stochastic EP's tied factor (`alg:spep`): q = p · t^M, so that memory does not grow with the number of clients."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.rates import Damping, rate_at
from partita.numerics.stack import Stack
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, log_mass, multiplied
from partita.server.aggregation.product import attempt, check_damping

__all__ = ["Common", "Shared"]


class Shared(Aggregation):
    """q ← q · Π Δ_k^(ρ/B) over the B clients that answered, and t = (q/p)^(1/M); `Shared(None)` is ρ = 1/M.

    ρ may fall with every update. With one natural-gradient step a visit it is mini-batch global VI (`eq:stoch-global`).
    An answer represents all clients (`Prior(rescaled=True)`). The clients' own factors stay 1; t is in the memory.
    """

    damping: Damping | None = None

    def __check_init__(self) -> None:
        check_damping(self.damping)

    @property
    def shares_factor(self) -> bool:
        return True

    @property
    def settles_evidence(self) -> bool:
        """No: clients whose answers agree in q may differ in mass, and the mass of t is of those who answered last."""
        return False

    def init(self, prior: Family, clients: int) -> Iterate:
        return super().init(prior, clients)._replace(memory=Common(prior, Factor.one(prior), jnp.zeros((), int)))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        posterior, factors, (prior, factor, updates) = iterate
        damping = 1 / len(factors) if self.damping is None else float(rate_at(self.damping, int(updates)))
        # a client does not know the scale of t, so its answer contains all of log Z rather than the change
        known = Factor(posterior.one(), jnp.asarray(self.log_evidence(prior, iterate), factor.log_scale.dtype))
        before = Iterate(posterior, Stack.repeated(Factor.one(posterior), len(deltas)))
        told = {place: deltas[k] / known for place, k in enumerate(deltas)}
        taken = attempt(before, told, damping / len(deltas))
        change = multiplied(taken.iterate.factors)
        refusals = {k: taken.refusals[place] for place, k in enumerate(deltas) if place in taken.refusals}
        factor = factor * change ** (1 / len(factors))
        after = Iterate(taken.iterate.posterior, factors, Common(prior, factor, updates + (taken.damping > 0)))
        return taken._replace(iterate=after, damping=damping if taken.damping else 0.0, refusals=refusals)

    def log_evidence(self, prior: Family, iterate: Iterate) -> float:
        """log ∫ p(θ) t(θ)^M dθ: what power EP's estimate tends to with homogeneous clients.

        t is a geometric moving average of recent answers: the estimate lags behind q by (1 − ρ)ⁿ, is of the clients
        that answered last, and biased if clients' sizes differ, since all are visited equally often.
        """
        scale = len(iterate.factors) * float(iterate.memory.factor.log_scale)
        return float(log_mass(iterate.posterior) - log_mass(prior)) + scale

    def remembered(self, memory: "Common", change: Family) -> "Common":
        return memory._replace(prior=memory.prior * change)


class Common(NamedTuple):
    """The memory of `Shared`: the prior, t with its scale, and how many updates there were."""

    prior: Family
    factor: Factor
    updates: Int[Array, ""]
