"""A custom aggregation: damping that decays, ρ = 1 / (1 + decay · updates)."""

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

    def resumed(self, iterate, heard):
        return jnp.zeros(())

    def update(self, iterate, deltas, free_energy):
        taken = attempt(iterate, deltas, 1 / (1 + self.decay * float(iterate.memory)))
        count = iterate.memory + (taken.damping > 0)
        return taken._replace(iterate=taken.iterate._replace(memory=count))
