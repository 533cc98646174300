"""A wrapper around any aggregation that imputes the factors of clients that have not answered yet."""

import functools
import operator
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, PyTree

from partita.families import Family
from partita.families.factor import Factor
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate
from partita.server.aggregation.product import Damped


class Estimates(NamedTuple):
    """The memory of `Anticipating`: that of the wrapped aggregation, and who has answered."""

    memory: PyTree
    heard: Bool[np.ndarray, " m"]
    """The clients whose factors are their own answers."""
    absent: Bool[np.ndarray, " m"]
    """The clients whose factors are neither their answers nor estimates, since they left or were divided out."""


class Anticipating(Aggregation):
    """Wraps an aggregation and, during the first pass, imputes missing factors from those already received.

    A missing factor is set to the geometric mean of the received ones (`sec:stochastic-approx`, last paragraph), so
    that the posterior is about as concentrated as after the first pass. A client's first answer replaces its estimate.
    """

    aggregation: Aggregation = Damped()

    @property
    def keeps_product(self) -> bool:
        return self.aggregation.keeps_product

    def init(self, prior: Family, clients: int) -> Iterate:
        iterate = self.aggregation.init(prior, clients)
        return iterate._replace(memory=Estimates(iterate.memory, np.zeros(clients, bool), np.zeros(clients, bool)))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        inner, (_, heard, absent) = self._inner(iterate), iterate.memory
        taken = self.aggregation.update(inner, deltas, free_energy)
        answered = [k for k in deltas if k not in taken.refusals]
        heard, absent = _marked(heard, answered, True), _marked(absent, answered, False)
        posterior, factors = taken.iterate.posterior, dict(taken.iterate.factors)
        unheard = np.flatnonzero(~heard & ~absent).tolist()
        if heard.any() and unheard:
            known = [factors[k] for k in np.flatnonzero(heard).tolist()]
            estimate = functools.reduce(operator.mul, known) ** (1 / len(known))
            moved = functools.reduce(operator.mul, (estimate.natural / factors[k].natural for k in unheard), posterior)
            if moved.is_proper():
                posterior = moved
                factors |= dict.fromkeys(unheard, estimate)
        memory = Estimates(taken.iterate.memory, heard, absent)
        return taken._replace(iterate=Iterate(posterior, factors, memory))

    def added(self, iterate: Iterate) -> Iterate:
        _, heard, absent = iterate.memory
        return self._outer(
            self.aggregation.added(self._inner(iterate)), np.append(heard, False), np.append(absent, False)
        )

    def divided(self, iterate: Iterate, client: int) -> Iterate:
        _, heard, absent = iterate.memory
        rest = self.aggregation.divided(self._inner(iterate), client)
        return self._outer(rest, _marked(heard, [client], False), _marked(absent, [client], True))

    def resumed(self, iterate: Iterate, heard: Bool[np.ndarray, " m"], absent: Bool[np.ndarray, " m"]) -> Estimates:
        return Estimates(self.aggregation.resumed(iterate, heard, absent), heard & ~absent, absent)

    def without_estimate(self, iterate: Iterate, client: int) -> Iterate:
        _, heard, absent = iterate.memory
        if heard[client] or absent[client]:
            return iterate
        rest = iterate.posterior / iterate.factors[client].natural
        if not rest.is_proper():
            return iterate
        factors = {**iterate.factors, client: Factor.one(rest)}
        return Iterate(rest, factors, Estimates(iterate.memory.memory, heard, _marked(absent, [client], True)))

    def check(self, clients: int, answers: int, power: float | None) -> None:
        self.aggregation.check(clients, answers, power)

    def log_evidence(self, prior: Family, iterate: Iterate) -> float | None:
        return self.aggregation.log_evidence(prior, self._inner(iterate))

    def with_prior(self, iterate: Iterate, change: Family) -> Iterate:
        _, heard, absent = iterate.memory
        return self._outer(self.aggregation.with_prior(self._inner(iterate), change), heard, absent)

    def _inner(self, iterate: Iterate) -> Iterate:
        """The iterate as the aggregation inside knows it."""
        return iterate._replace(memory=iterate.memory.memory)

    def _outer(self, iterate: Iterate, heard: np.ndarray, absent: np.ndarray) -> Iterate:
        return iterate._replace(memory=Estimates(iterate.memory, heard, absent))


def _marked(values: Bool[np.ndarray, " m"], clients: list[int], value: bool) -> Bool[np.ndarray, " m"]:
    marked = values.copy()
    marked[clients] = value
    return marked
