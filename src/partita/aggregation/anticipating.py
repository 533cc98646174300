"""Estimates of factors that nobody has sent yet, around any other aggregation."""

import functools
import operator
from collections.abc import Mapping

import numpy as np

from partita.aggregation.base import Aggregation, FreeEnergy, Holdings, Taken
from partita.aggregation.product import Damped
from partita.families import Family
from partita.objective import Factor


class Anticipating(Aggregation):
    """Another aggregation, in whose first pass the factors of clients not yet heard are estimated from the others'.

    Each is the geometric mean of the factors of those who have answered (`sec:stochastic-approx`, its last paragraph),
    so that the posterior is about as concentrated as it will be once everybody has. A client's first answer then
    replaces its estimate as any answer replaces a factor.
    """

    aggregation: Aggregation = Damped()

    def init(self, prior: Family, clients: int) -> Holdings:
        holdings = self.aggregation.init(prior, clients)
        return holdings._replace(memory=(holdings.memory, np.zeros(clients, bool)))

    def update(self, holdings: Holdings, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        memory, heard = holdings.memory
        taken = self.aggregation.update(holdings._replace(memory=memory), deltas, free_energy)
        heard = heard.copy()
        heard[[k for k in deltas if k not in taken.refusals]] = True
        posterior, factors = taken.holdings.posterior, dict(taken.holdings.factors)
        unheard = np.flatnonzero(~heard).tolist()
        if heard.any() and unheard:
            known = [factors[k] for k in np.flatnonzero(heard).tolist()]
            estimate = functools.reduce(operator.mul, known) ** (1 / len(known))
            moved = posterior * (estimate.natural / factors[unheard[0]].natural) ** float(len(unheard))
            if moved.is_proper():
                posterior = moved
                factors |= dict.fromkeys(unheard, estimate)
        return taken._replace(holdings=Holdings(posterior, factors, (taken.holdings.memory, heard)))

    def check(self, clients: int, answers: int, power: float | None) -> None:
        self.aggregation.check(clients, answers, power)

    def log_evidence(self, prior: Family, holdings: Holdings) -> float | None:
        return self.aggregation.log_evidence(prior, holdings._replace(memory=holdings.memory[0]))

    def with_prior(self, holdings: Holdings, change: Family) -> Holdings:
        memory, heard = holdings.memory
        moved = self.aggregation.with_prior(holdings._replace(memory=memory), change)
        return moved._replace(memory=(moved.memory, heard))
