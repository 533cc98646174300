"""An aggregation of one's own: damping that decays, ρ = 1 / (1 + decay · updates)."""

import jax.numpy as jnp

from partita import Aggregation
from partita.server.aggregation.product import attempt


class Decaying(Aggregation):
    """Its memory, the number of updates, is part of the state, and so of checkpoints."""

    decay: float = 0.1

    @property
    def keeps_product(self):
        return True

    def init(self, prior, clients):
        return super().init(prior, clients)._replace(memory=jnp.zeros(()))

    def resumed(self, holdings, heard):
        return jnp.zeros(())

    def update(self, holdings, deltas, free_energy):
        taken = attempt(holdings, deltas, 1 / (1 + self.decay * float(holdings.memory)))
        count = holdings.memory + (taken.damping > 0)
        return taken._replace(holdings=taken.holdings._replace(memory=count))
