"""One factor for everybody (`alg:spep`): q = p · t^M, so that what the server holds does not grow with its clients."""

import functools
import operator
from collections.abc import Mapping

from partita.aggregation.base import Aggregation, FreeEnergy, Holdings, Taken
from partita.aggregation.product import attempt, check_damping
from partita.families import Family
from partita.objective import Factor


class Shared(Aggregation):
    """q ← q · Π Δ_k^(ρ/B) over the B clients that answered, and t = (q/p)^(1/M); `Shared(None)` is ρ = 1/M.

    An answer speaks for everybody (`Prior(rescaled=True)`). The clients' own factors stay 1; the memory is t.
    """

    damping: float | None = None

    def __check_init__(self) -> None:
        check_damping(self.damping)

    def init(self, prior: Family, clients: int) -> Holdings:
        return super().init(prior, clients)._replace(memory=Factor.one(prior))

    def update(self, holdings: Holdings, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        posterior, factors, factor = holdings
        damping = 1 / len(factors) if self.damping is None else self.damping
        before = Holdings(posterior, dict.fromkeys(deltas, Factor.one(posterior)))
        taken = attempt(before, deltas, damping / len(deltas))
        change = functools.reduce(operator.mul, taken.holdings.factors.values())
        after = Holdings(taken.holdings.posterior, factors, factor * change ** (1 / len(factors)))
        return taken._replace(holdings=after, damping=damping if taken.damping else 0.0)
