"""The interface of aggregations."""

import abc
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.stack import Stack
from partita.server.refusal import Reason, Refusal

__all__ = [
    "Aggregated",
    "Aggregation",
    "FreeEnergy",
    "Iterate",
    "Report",
    "begin",
    "divergence",
    "log_mass",
    "multiplied",
    "refused",
]

T = TypeVar("T", Family, Factor)


class Iterate(NamedTuple):
    """Where the algorithm is: the posterior, every client's factor, and the aggregation's own memory."""

    posterior: Family
    factors: Stack[Factor]
    memory: PyTree = None


class Aggregated(NamedTuple):
    """The result of an aggregation step: the new iterate, and refusals with reasons."""

    iterate: Iterate
    damping: float
    """The damping ρ used; 0 if nothing was accepted."""
    trials: int
    """The number of free-energy evaluations; each costs one communication per client."""
    refusals: dict[int, Refusal]
    """The clients whose answers were refused, and why."""
    residual: float | None = None
    """The distance from a fixed point, for aggregations where the clients' residuals do not measure it."""
    returned: bool = False
    """Whether the answers were set aside, and the step was taken again from an earlier iterate."""


class Report(NamedTuple):
    """What a client expects of its rows."""

    ell: float
    """ell_k of the posterior that it was sent."""
    variance: float
    """The square of its standard error."""
    posterior: Family
    """The posterior that it was sent."""
    current: bool = True
    """Whether that is still the posterior."""


class FreeEnergy(NamedTuple):
    """What is climbed, F(q) = Σ_k ell_k(q) − τ · KL(q ‖ p), as far as the server can know it."""

    ask: Callable[[Family], float]
    """F of any q, at one communication per client."""
    prior: Family
    """p(θ | ε)."""
    temperature: float = 1.0
    reported: Mapping[int, Report] = {}
    """What the clients say that have answered."""
    inactive: Bool[np.ndarray, " m"] = np.zeros(1, bool)
    """Which clients take no part any more."""

    def __call__(self, q: Family) -> float:
        return self.ask(q)


class Aggregation(eqx.Module):
    """Combines clients' undamped changes into the posterior and the factors."""

    @property
    def keeps_product(self) -> bool:
        """Whether q = p · Π t_m holds after every step, with t_m computed only from client m's answers.

        Only then can a factor be judged by itself, and divided out of the posterior.
        """
        return False

    @property
    def shares_factor(self) -> bool:
        """Whether one factor stands for every client's."""
        return False

    @property
    def undamped(self) -> bool:
        """Whether changes are multiplied as they are, with ρ = 1."""
        return False

    @property
    def settles_evidence(self) -> bool:
        """Whether `log_evidence` has settled where q has, so that it may be told of a run that has converged."""
        return True

    @property
    def tuned(self) -> tuple[str, float] | None:
        """The setting that its steps are proportional to, by name and value; None where a user chooses none."""
        return None

    def init(self, prior: Family, clients: int) -> Iterate:
        """The iterate before the first answer: t_m = 1 for every client and q = p."""
        return Iterate(prior, Stack.repeated(Factor.one(prior), clients))

    @abc.abstractmethod
    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        """The iterate after the changes `deltas` of some clients. A refused change has no effect."""

    def check(self, clients: int, answers: int, power: float | None) -> None:
        """Raises an `InputError` if it does not support this number of answers per step, or this kind of answer.

        `power` is the α of the tilted densities whose moments answers represent; None for other answers.
        """

    def added(self, iterate: Iterate) -> Iterate:
        """The iterate with one more client, whose factor is 1."""
        if not self.keeps_product:
            raise SettingsError(f"{type(self).__name__} does not support new clients: start a new run with the client.")
        return iterate._replace(factors=iterate.factors.appended(Factor.one(iterate.posterior)))

    def divided(self, iterate: Iterate, client: int) -> Iterate:
        """The iterate with a client's factor divided out of the posterior."""
        if not self.keeps_product:
            raise SettingsError(
                f"{type(self).__name__} mixes the answers of all clients, so that none can be divided out: "
                "keep the client's factor instead."
            )
        rest = iterate.posterior / iterate.factors[client].natural
        return iterate._replace(posterior=rest, factors=iterate.factors.replaced({client: Factor.one(rest)}))

    def resumed(self, iterate: Iterate, heard: Bool[np.ndarray, " m"], absent: Bool[np.ndarray, " m"]) -> PyTree:
        """The memory with which it goes on from another aggregation's iterate; both keep the product.

        Some clients have answered, and some are absent, whether or not they have.
        """
        return None

    def continued(self, iterate: Iterate) -> PyTree:
        """The memory with which it goes on from its own iterate of another run, which may have had other rows."""
        return iterate.memory

    def without_estimate(self, iterate: Iterate, client: int) -> Iterate:
        """The iterate without what was only estimated of a client that has left, or whose answer was refused."""
        return iterate

    @property
    def guarded(self) -> bool:
        """Whether a step that lowers the free energy is undone in the next, so that a fall does not mean divergence."""
        return False

    def lost(self, iterate: Iterate, prior: Family) -> Aggregated:
        """The step where no client has a finite answer to the posterior; one that is `guarded` may go back."""
        return Aggregated(iterate, 0.0, 0, {})

    def final(self, iterate: Iterate, free_energy: FreeEnergy | None) -> Iterate:
        """The iterate that a run returns when it ends here; the free energy may be asked for unless it is None."""
        return iterate

    def with_prior(self, iterate: Iterate, change: Family) -> Iterate:
        """The iterate after the prior was multiplied by `change`: q moves with it, the factors are unchanged."""
        return iterate._replace(posterior=iterate.posterior * change, memory=self.remembered(iterate.memory, change))

    def remembered(self, memory: PyTree, change: Family) -> PyTree:
        """The memory after the prior was multiplied by `change`."""
        return memory

    def log_evidence(self, prior: Family, iterate: Iterate) -> float | None:
        """log ∫ p(θ) Π t_m(θ) dθ (`eq:approx`) if q is that product; None if it cannot be computed from the factors.

        With power EP's factors it is an estimate of log p(y).
        """
        gained = float(log_mass(iterate.posterior) - log_mass(prior))
        return gained + sum(np.asarray(iterate.factors.parts().log_scale).tolist())


def refused(iterate: Iterate, clients: Iterable[int], reason: Reason, sentence: str, trials: int = 0) -> Aggregated:
    """A step that changes nothing, since the answers of these clients are refused."""
    return Aggregated(iterate, 0.0, trials, dict.fromkeys(clients, Refusal(reason, sentence)))


def multiplied(members: Iterable[T]) -> T:
    """The product of all members."""
    return functools.reduce(operator.mul, members)


def begin(prior: Family, start: Family | None, clients: int) -> tuple[Family, Factor]:
    """The initial posterior (the prior without a start) and each client's initial factor, (start/prior)^(1/M)."""
    posterior = prior if start is None else start.fitting(prior, "start")
    return posterior, (Factor.of(posterior) / Factor.of(prior)) ** (1 / clients)


@eqx.filter_jit
def divergence(q: Family, prior: Family) -> Float[Array, ""]:
    """KL(q ‖ prior)."""
    return q.kl(prior)


@eqx.filter_jit
def log_mass(member: Family) -> Float[Array, ""]:
    """A(η)."""
    return member.log_normaliser()
