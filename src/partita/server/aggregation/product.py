"""The product rule of `alg:vmp`, step ③: q · Π Δ_k^ρ, with damping ρ that is fixed, falls, or is found."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from partita.families import Family
from partita.families.factor import Factor
from partita.inputs import check_flag, check_fraction, check_whole
from partita.numerics.compiled import Compiled, Scalar
from partita.numerics.rates import Damping, Rate, rate_at
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, refused
from partita.server.refusal import Reason, Refusal

__all__ = ["Backtracking", "Damped", "ProductRule", "attempt", "check_damping", "take"]


def check_damping(damping: Damping | None) -> None:
    """Raises an `InputError` unless ρ, or the first ρ, is in (0, 1]."""
    if damping is not None:
        check_fraction("damping", rate_at(damping, 0))


class ProductRule(Aggregation):
    """q ← q · Π Δ_k^ρ and t_k ← t_k · Δ_k^ρ; a subclass says which ρ is taken."""

    damping: eqx.AbstractVar[Damping | None]

    def __check_init__(self) -> None:
        check_damping(self.damping)

    @property
    def keeps_product(self) -> bool:
        return True

    @property
    def tuned(self) -> tuple[str, float] | None:
        return None if self.damping is None else ("damping", float(rate_at(self.damping, 0)))


class Damped(ProductRule):
    """The product rule with a fixed ρ, or one that falls with every update; `Damped(None)` is ρ = 1/M.

    Where ρ falls, the memory is the number of updates.
    """

    damping: Damping | None = 1.0

    @property
    def undamped(self) -> bool:
        return not isinstance(self.damping, Rate) and self.damping == 1

    def init(self, prior: Family, clients: int) -> Iterate:
        return super().init(prior, clients)._replace(memory=self._none_yet())

    def resumed(self, iterate: Iterate, heard: Bool[np.ndarray, " m"], absent: Bool[np.ndarray, " m"]) -> PyTree:
        return self._none_yet()

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        if not isinstance(self.damping, Rate):
            return attempt(iterate, deltas, 1 / len(iterate.factors) if self.damping is None else self.damping)
        taken = attempt(iterate, deltas, float(self.damping(int(iterate.memory))))
        return taken._replace(iterate=taken.iterate._replace(memory=iterate.memory + (taken.damping > 0)))

    def _none_yet(self) -> PyTree:
        return jnp.zeros((), int) if isinstance(self.damping, Rate) else None


class Backtracking(ProductRule):
    """Halves ρ until the posterior is proper and, if `monitor_free_energy`, the free energy does not fall.

    A single client's change need not raise the free energy at any ρ: after `halvings` halvings it is refused.
    """

    damping: float | None = 1.0
    monitor_free_energy: bool = eqx.field(static=True, default=False)
    halvings: int = eqx.field(static=True, default=10)

    def __check_init__(self) -> None:
        check_flag("setting monitor_free_energy", self.monitor_free_energy)
        check_whole("number of halvings", self.halvings, 0, 1_000)

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        damping = 1 / len(iterate.factors) if self.damping is None else self.damping
        before = free_energy(iterate.posterior) if self.monitor_free_energy else 0.0
        rounding = 8 * float(jnp.finfo(jax.tree.leaves(iterate.posterior)[0].dtype).eps) * (1 + abs(before))
        trials = int(self.monitor_free_energy)
        for _ in range(self.halvings + 1):
            taken, reason, would = attempt(iterate, deltas, damping), Reason.IMPROPER, "make the posterior improper"
            if taken.damping > 0:
                if not self.monitor_free_energy:
                    return taken
                trials += 1
                if free_energy(taken.iterate.posterior) >= before - rounding:
                    return taken._replace(trials=trials)
                reason, would = Reason.LOWER_FREE_ENERGY, "lower the free energy"
            damping /= 2
        return refused(iterate, deltas, reason, f"would {would} even with damping {2 * damping:.2g}", trials)


def attempt(iterate: Iterate, deltas: Mapping[int, Factor], damping: float) -> Aggregated:
    """Applies the product rule with this damping; refuses changes that make the posterior improper on their own."""
    posterior, changed = iterate.posterior, dict[int, Factor]()
    for client, delta in deltas.items():
        posterior, changed[client], proper = take(posterior, iterate.factors[client], delta, damping)
    if proper:
        after = iterate._replace(posterior=posterior, factors=iterate.factors.replaced(changed))
        return Aggregated(after, damping, 0, {})
    alone = [k for k, delta in deltas.items() if not take(iterate.posterior, iterate.factors[k], delta, damping)[2]]
    sentence = f"would make the posterior improper with damping {damping:.2g}"
    others = {k: delta for k, delta in deltas.items() if k not in alone}
    if alone and others:
        rest = attempt(iterate, others, damping)
        return rest._replace(refusals=rest.refusals | dict.fromkeys(alone, Refusal(Reason.IMPROPER, sentence)))
    return refused(iterate, deltas, Reason.IMPROPER, sentence if alone else f"{sentence} together with the others")


@Compiled
def take(posterior: Family, factor: Factor, delta: Factor, damping: Scalar) -> tuple[Family, Factor, Bool[Array, ""]]:
    """Applies one change: q · Δ^ρ and t · Δ^ρ, and whether the former is proper."""
    change = delta**damping
    moved = posterior * change.natural
    return moved, factor * change, moved.is_proper()
