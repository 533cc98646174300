"""What the server holds, and what becomes of answers."""

import abc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.server.refusal import Refusal


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
    refusals: dict[int, Refusal]
    """The clients whose answers were refused, and why."""
    residual: float | None = None
    """How far from a fixed point the posterior was, where the clients' own residuals do not tell it."""


FreeEnergy = Callable[[Family], float]


class Aggregation(eqx.Module):
    """Takes clients' undamped changes into the posterior and their factors."""

    @property
    @abc.abstractmethod
    def keeps_product(self) -> bool:
        """Whether q = p · Π t_m after every step, where t_m is made of client m's own answers alone.

        Only then can a factor be judged by itself, and divided out of the posterior.
        """

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

    def added(self, holdings: Holdings) -> Holdings:
        """The holdings with one more client, whose factor changes nothing yet."""
        if not self.keeps_product:
            raise SettingsError(f"{type(self).__name__} has no place for another client: start a new run with it.")
        factors = {**holdings.factors, len(holdings.factors): Factor.one(holdings.posterior)}
        return holdings._replace(factors=factors)

    def divided(self, holdings: Holdings, client: int) -> Holdings:
        """The holdings in which a client's factor is divided out of the posterior."""
        if not self.keeps_product:
            raise SettingsError(
                f"{type(self).__name__} mixes the answers of all clients, so that none can be divided out: "
                "keep the client's factor instead."
            )
        rest = holdings.posterior / holdings.factors[client].natural
        return holdings._replace(posterior=rest, factors={**holdings.factors, client: Factor.one(rest)})

    def resumed(self, holdings: Holdings, heard: Bool[np.ndarray, " m"]) -> PyTree:
        """The memory with which it goes on from another aggregation's holdings; both keep the product."""
        return None

    def without_estimate(self, holdings: Holdings, client: int) -> Holdings:
        """The holdings without what was only estimated of a client that has left, or whose answer was refused."""
        return holdings

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
