"""The free energy F(q) that all clients climb together: a lower bound on log p(y)."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from partita.data.shard import Partition
from partita.engines.base import Engine
from partita.engines.local import shard_estimate
from partita.expectations import Estimate
from partita.families import Family
from partita.hyper.values import Hyper
from partita.models import Model
from partita.models.prior import OutsidePrior, base_of
from partita.server.aggregation.base import divergence
from partita.server.method import Method
from partita.server.state import State

__all__ = ["Evaluation", "evaluated", "free_energy", "global_free_energy", "outside_ell", "partition_free_energy"]

_EVALUATION = 2**31
"""What the key of evaluations is made with: no client has this number, so that no solver has these draws."""


class Evaluation(NamedTuple):
    """A free energy as it is reported."""

    value: float
    error: float
    """Its standard error where the expectation is sampled, else 0."""


def evaluated(engine: Engine, state: State, prior: Family, q: Family, hyper: Hyper | None = None) -> Evaluation:
    """F(q) for a report, on the rows of all active clients; hyperparameters default to the model's own.

    By draws of its own where the expectation is sampled: those on which solvers and searches climbed would bias it
    upwards. They are the same at every step, so that differences between steps are more precise than each.
    """
    ell = engine.estimate(q, _evaluation_key(state.seed), state.inactive_names, hyper)
    return Evaluation(float(ell.value) - float(divergence(q, prior)), ell.error)


def free_energy(method: Method, engine: Engine, state: State, q: Family) -> float:
    """What is climbed: the global free energy with the state's hyperparameters and the method's temperature.

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


def partition_free_energy(
    model: Model, partition: Partition, prior: Family | OutsidePrior, q: Family, seed: int
) -> float:
    """F(q) on the rows of a partition in this process: the value of `evaluated`."""
    named, key = zip(partition.names, partition.shards, strict=True), _evaluation_key(seed)
    ell = Estimate.sum([shard_estimate(model, q, name, shard, key) for name, shard in named])
    return float(ell.value) + outside_ell(prior, q, seed) - float(divergence(q, base_of(prior)))


def outside_ell(prior: Family | OutsidePrior, q: Family, seed: int) -> float:
    """E_q[log p − log b] of a prior p outside q's family with the base b; 0 for a prior in the family."""
    if not isinstance(prior, OutsidePrior):
        return 0.0
    return float(shard_estimate(prior.row, q, "", prior.shard(1.0), _evaluation_key(seed)).value)


def _evaluation_key(seed: int) -> Key[Array, ""]:
    return jax.random.fold_in(jax.random.key(seed), _EVALUATION)
