"""A wrapper around any aggregation that imputes the factors of clients that have not answered yet."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, PyTree

from partita.families import Family
from partita.families.factor import Factor
from partita.inputs import check_kind
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate
from partita.server.aggregation.estimates import FactorEstimate, GeometricMean
from partita.server.aggregation.product import Damped

__all__ = ["Anticipating"]


class _Estimates(NamedTuple):
    """The memory of `Anticipating`: that of the wrapped aggregation, and who has answered."""

    memory: PyTree
    heard: Bool[np.ndarray, " m"]
    """The clients whose factors are their own answers."""
    absent: Bool[np.ndarray, " m"]
    """The clients whose factors are neither their answers nor estimates, since they left or were divided out."""

    def marked(self, clients: list[int], heard: bool) -> "_Estimates":
        """The same after these clients have been heard, or else have become absent."""
        marked = self._replace(heard=self.heard.copy(), absent=self.absent.copy())
        marked.heard[clients], marked.absent[clients] = heard, not heard
        return marked


class Anticipating(Aggregation):
    """Wraps an aggregation and, during the first pass, imputes missing factors from those already received.

    A missing factor is by default set to the geometric mean of the received ones (`sec:stochastic-approx`, last
    paragraph), so that the posterior is about as concentrated as after the first pass. A client's first answer replaces
    its estimate.
    """

    aggregation: Aggregation = Damped()
    estimate: FactorEstimate = GeometricMean()
    """What stands in for missing factors."""

    def __check_init__(self) -> None:
        check_kind("aggregation", self.aggregation, Aggregation, "use one such as Damped()")
        check_kind("estimate", self.estimate, FactorEstimate, "use one such as GeometricMean()")

    @property
    def keeps_product(self) -> bool:
        return self.aggregation.keeps_product

    @property
    def settles_evidence(self) -> bool:
        return self.aggregation.settles_evidence

    def init(self, prior: Family, clients: int) -> Iterate:
        iterate = self.aggregation.init(prior, clients)
        return iterate._replace(memory=_Estimates(iterate.memory, np.zeros(clients, bool), np.zeros(clients, bool)))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        taken = self.aggregation.update(self._inner(iterate), deltas, free_energy)
        estimates = iterate.memory.marked([k for k in deltas if k not in taken.refusals], heard=True)
        posterior, factors = taken.iterate.posterior, taken.iterate.factors
        unheard = np.flatnonzero(~estimates.heard & ~estimates.absent).tolist()
        if unheard and estimates.heard.any():
            known = {k: factors[k] for k in np.flatnonzero(estimates.heard).tolist()}
            latest = max((k for k in deltas if k in known), default=next(iter(known)))
            estimated = self.estimate(known, latest, unheard)
            moved = math.prod((new.natural / factors[k].natural for k, new in estimated.items()), start=posterior)
            if moved.is_proper():
                posterior = moved
                factors = factors.replaced(estimated)
        after = Iterate(posterior, factors, taken.iterate.memory)
        return taken._replace(iterate=self._outer(after, estimates))

    def added(self, iterate: Iterate) -> Iterate:
        memory, *flags = iterate.memory
        estimates = _Estimates(memory, *(np.append(flag, False) for flag in flags))
        return self._outer(self.aggregation.added(self._inner(iterate)), estimates)

    def divided(self, iterate: Iterate, client: int) -> Iterate:
        rest = self.aggregation.divided(self._inner(iterate), client)
        return self._outer(rest, iterate.memory.marked([client], heard=False))

    def resumed(self, iterate: Iterate, heard: Bool[np.ndarray, " m"], absent: Bool[np.ndarray, " m"]) -> _Estimates:
        return _Estimates(self.aggregation.resumed(iterate, heard, absent), heard & ~absent, absent)

    def without_estimate(self, iterate: Iterate, client: int) -> Iterate:
        if iterate.memory.heard[client] or iterate.memory.absent[client]:
            return iterate
        rest = iterate.posterior / iterate.factors[client].natural
        if not rest.is_proper():
            return iterate
        factors = iterate.factors.replaced({client: Factor.one(rest)})
        return Iterate(rest, factors, iterate.memory.marked([client], heard=False))

    def check(self, clients: int, answers: int, power: float | None) -> None:
        self.aggregation.check(clients, answers, power)
        self.estimate.check(clients)

    def log_evidence(self, prior: Family, iterate: Iterate) -> float | None:
        return self.aggregation.log_evidence(prior, self._inner(iterate))

    def with_prior(self, iterate: Iterate, change: Family) -> Iterate:
        return self._outer(self.aggregation.with_prior(self._inner(iterate), change), iterate.memory)

    def _inner(self, iterate: Iterate) -> Iterate:
        """The iterate as the aggregation inside knows it."""
        return iterate._replace(memory=iterate.memory.memory)

    def _outer(self, iterate: Iterate, estimates: _Estimates) -> Iterate:
        return iterate._replace(memory=estimates._replace(memory=iterate.memory))
