"""What the server holds, and what becomes of answers."""

import abc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from partita.families import Family
from partita.objective import Factor


class Holdings(NamedTuple):
    """What the server holds: the posterior, every client's factor, and whatever the aggregation remembers."""

    posterior: Family
    factors: Mapping[int, Factor]
    memory: PyTree = None


class Taken(NamedTuple):
    """What became of some answers: the holdings after them, or why they were refused."""

    holdings: Holdings
    damping: float
    """The damping ρ taken; 0 when nothing was taken in."""
    trials: int
    """How many times the free energy was asked for, at one communication a client each."""
    refusals: dict[int, str]
    """The clients whose answers were refused, with the reason."""
    residual: float | None = None
    """How far from a fixed point the posterior was, where the clients' own residuals do not tell it."""


FreeEnergy = Callable[[Family], float]


class Aggregation(eqx.Module):
    """Takes clients' undamped changes into the posterior and their factors."""

    def init(self, prior: Family, clients: int) -> Holdings:
        """The holdings before the first answer: t_m = 1 for every client and q = p."""
        return Holdings(prior, dict.fromkeys(range(clients), Factor.one(prior)))

    @abc.abstractmethod
    def update(self, holdings: Holdings, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        """The holdings after the changes `deltas` of some clients. A refusal leaves everything as it was."""

    def check(self, clients: int, answers: int, power: float | None) -> None:
        """Raises an `InputError` if it cannot take in so many of the clients' answers at a time, or such answers.

        The power is the α of the tilted densities whose moments answers tell; None where they tell none.
        """

    def with_prior(self, holdings: Holdings, change: Family) -> Holdings:
        """The holdings once the prior has changed by a factor: the clients' factors stay, and q moves with it."""
        return holdings._replace(posterior=holdings.posterior * change)

    def log_evidence(self, prior: Family, holdings: Holdings) -> float | None:
        """log ∫ p(θ) Π t_m(θ) dθ (`eq:approx`) where q is that product; None where the factors' scales do not tell it.

        With power EP's factors it is an estimate of log p(y).
        """
        gained = float(log_mass(holdings.posterior) - log_mass(prior))
        return gained + sum(float(factor.log_scale) for factor in holdings.factors.values())


def begin(prior: Family, start: Family | None, clients: int) -> tuple[Family, Factor]:
    """A posterior to begin with, the prior when there is no start, and the equal part of it that each factor bears."""
    posterior = prior if start is None else start.fitting(prior, "start")
    return posterior, (Factor.of(posterior) / Factor.of(prior)) ** (1 / clients)


@eqx.filter_jit
def log_mass(member: Family) -> Float[Array, ""]:
    """A(η)."""
    return member.log_normaliser()
