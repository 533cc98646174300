"""The free energy F(q) that all clients climb together: a lower bound on log p(y)."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from partita.data.shard import Partition
from partita.engines.base import Engine
from partita.engines.local import total_ell
from partita.families import Family
from partita.hyper.values import Hyper
from partita.models import Model
from partita.server.method import Method
from partita.server.state import State

__all__ = ["divergence", "free_energy", "global_free_energy", "partition_free_energy"]


def free_energy(method: Method, engine: Engine, state: State, q: Family) -> float:
    """The global free energy with the state's hyperparameters and the method's temperature.

    An inactive client's rows are not available; its factor stands in for its likelihood.
    """
    said = sum(float(state.factors[k].expected_log(q)) for k in np.flatnonzero(state.inactive))
    temperature = method.temperature
    return global_free_energy(engine, state, state.current_prior, q, state.hyper, temperature) + temperature * said


def global_free_energy(
    engine: Engine, state: State, prior: Family, q: Family, hyper: Hyper | None = None, temperature: float = 1.0
) -> float:
    """F(q) = Σ_k ell_k(q) − KL(q ‖ p), which equals Σ F_m + log Z_q where q = p · Π t_m (`prop:local-fe-global-fe`).

    The KL term is multiplied by the temperature. Rows of inactive clients (`left`) are not counted. Hyperparameters
    default to the model's own.
    """
    ell = engine.ell(q, jax.random.key(state.seed), state.inactive_names, hyper)
    return ell - temperature * float(divergence(q, prior))


def partition_free_energy(model: Model, partition: Partition, prior: Family, q: Family, seed: int) -> float:
    """F(q) on the rows of a partition in this process."""
    return total_ell(model, q, partition, jax.random.key(seed)) - float(divergence(q, prior))


@eqx.filter_jit
def divergence(q: Family, prior: Family) -> Float[Array, ""]:
    """KL(q ‖ prior)."""
    return q.kl(prior)
