"""How are answers taken in? Step ③ of `alg:vmp`; the only place that damps."""

import abc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.compiled import Compiled
from partita.errors import InputError
from partita.families import Family
from partita.objective import Factor


class Taken(NamedTuple):
    """What became of some answers: the posterior and the factors after them, or why they were refused."""

    posterior: Family
    factors: dict[int, Factor]
    damping: float
    """The damping ρ taken; 0 when nothing was taken in."""
    trials: int
    """How many times the free energy was asked for, at one communication a client each."""
    refusals: dict[int, str]
    """The clients whose answers were refused, with the reason."""


FreeEnergy = Callable[[Family], float]


class Aggregation(eqx.Module):
    """Takes clients' undamped changes into the posterior and their factors."""

    @abc.abstractmethod
    def update(
        self,
        posterior: Family,
        factors: Mapping[int, Factor],
        deltas: Mapping[int, Factor],
        clients: int,
        free_energy: FreeEnergy,
    ) -> Taken:
        """The state after the changes `deltas` of some of the `clients`. A refusal leaves everything as it was."""


class Damped(Aggregation):
    """q ← q · Π Δ_k^ρ and t_k ← t_k · Δ_k^ρ with a fixed ρ; `Damped(None)` is ρ = 1/M."""

    damping: float | None = 1.0

    def __check_init__(self) -> None:
        check_damping(self.damping)

    def update(
        self,
        posterior: Family,
        factors: Mapping[int, Factor],
        deltas: Mapping[int, Factor],
        clients: int,
        free_energy: FreeEnergy,
    ) -> Taken:
        damping = 1 / clients if self.damping is None else self.damping
        return attempt(posterior, factors, deltas, damping)


class Backtracking(Aggregation):
    """Halves ρ until the posterior is proper and, if asked, until the free energy does not fall, to rounding.

    One client's change need not raise the free energy at any ρ: after `halvings` it is refused, which is recorded.
    """

    damping: float | None = 1.0
    watch_free_energy: bool = eqx.field(static=True, default=False)
    halvings: int = eqx.field(static=True, default=10)

    def __check_init__(self) -> None:
        check_damping(self.damping)

    def update(
        self,
        posterior: Family,
        factors: Mapping[int, Factor],
        deltas: Mapping[int, Factor],
        clients: int,
        free_energy: FreeEnergy,
    ) -> Taken:
        damping = 1 / clients if self.damping is None else self.damping
        before = free_energy(posterior) if self.watch_free_energy else 0.0
        rounding = 8 * float(jnp.finfo(jax.tree.leaves(posterior)[0].dtype).eps) * (1 + abs(before))
        trials = int(self.watch_free_energy)
        reason = ""
        for _ in range(self.halvings + 1):
            taken = attempt(posterior, factors, deltas, damping)
            if taken.damping == 0:
                reason = "would make the posterior improper"
            elif not self.watch_free_energy:
                return taken
            else:
                trials += 1
                if free_energy(taken.posterior) >= before - rounding:
                    return taken._replace(trials=trials)
                reason = "would lower the free energy"
            damping /= 2
        reason = f"{reason} even with damping {2 * damping:.2g}"
        return Taken(posterior, dict(factors), 0.0, trials, dict.fromkeys(deltas, reason))


def attempt(posterior: Family, factors: Mapping[int, Factor], deltas: Mapping[int, Factor], damping: float) -> Taken:
    """The product with one damping, without those whose change alone makes the posterior improper; they are refused."""
    new, changed = posterior, dict(factors)
    for client, delta in deltas.items():
        new, changed[client] = take(new, factors[client], delta, damping)
    if new.is_proper():
        return Taken(new, changed, damping, 0, {})
    alone = [k for k, delta in deltas.items() if not take(posterior, factors[k], delta, damping)[0].is_proper()]
    reason = f"would make the posterior improper with damping {damping:.2g}"
    others = {k: delta for k, delta in deltas.items() if k not in alone}
    if alone and others:
        rest = attempt(posterior, factors, others, damping)
        return rest._replace(refusals=rest.refusals | dict.fromkeys(alone, reason))
    if not alone:
        reason = f"{reason} together with the others"
    return Taken(posterior, dict(factors), 0.0, 0, dict.fromkeys(deltas, reason))


def _take(posterior: Family, factor: Factor, delta: Factor, damping: float) -> tuple[Family, Factor]:
    """One answer taken in: q · Δ^ρ and t · Δ^ρ."""
    change = delta**damping
    return posterior * change.natural, factor * change


take = Compiled(_take)


def check_damping(damping: float | None) -> None:
    """Raises an `InputError` unless ρ is in (0, 1]."""
    if damping is not None and not 0 < damping <= 1:
        raise InputError(f"The damping is a number above 0 and at most 1, not {damping}.")
