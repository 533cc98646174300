"""Clients in this process, on a simulated clock: deterministic, whatever the schedule."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from partita.client import Recipe, Reply, client_update
from partita.compiled import Compiled
from partita.errors import InputError
from partita.families import Family
from partita.models import Model
from partita.partition.shard import Partition, Shard

if TYPE_CHECKING:
    from partita.pvi import State


class Task(NamedTuple):
    """A posterior under way to a client and back."""

    client: int
    posterior: Family
    version: int
    """The number of updates the posterior had seen when it was sent."""
    due: float
    """When the answer arrives, on the simulated clock."""


class LocalEngine:
    """Runs client updates here. Client k takes 1/`speeds[k]` units of simulated time for each.

    Clients that answer together run in parallel threads; their numbers do not depend on that.
    """

    def __init__(self, partition: Partition, speeds: Sequence[float] | None = None, threads: int | None = None) -> None:
        self.partition = partition
        self.speeds = np.ones(len(partition)) if speeds is None else np.asarray(speeds, float)
        self.threads = threads or cores()
        usable = np.isfinite(self.speeds) & (self.speeds > 0)
        if self.speeds.shape != (len(partition),) or not usable.all():
            raise InputError(f"{len(partition)} clients need as many positive speeds, not {self.speeds.tolist()}.")

    def at_work(self) -> AbstractContextManager[Any]:
        """While clients run, keeps LAPACK to one thread: its threads wait actively and fight with the clients' own."""
        return threadpool_limits(limits=1, user_api="blas")

    def send(self, client: int, posterior: Family, version: int, clock: float) -> Task:
        """Sends a client the posterior; its answer is due later."""
        return Task(client, posterior, version, clock + 1 / float(self.speeds[client]))

    def collect(
        self, tasks: Sequence[Task], count: int, recipe: Recipe, state: "State"
    ) -> tuple[list[tuple[Task, Reply]], list[Task]]:
        """The next `count` answers in order of arrival, ties by client, and the tasks still under way."""
        ordered = sorted(tasks, key=lambda task: (task.due, task.client))
        arrived = ordered[:count]

        def answer(task: Task) -> Reply:
            k = task.client
            share = self.partition.sizes[k] / self.partition.rows
            key = client_key(state.seed, k, state.versions[k])
            return client_update(
                recipe, state.prior, task.posterior, state.factors[k], self.partition.shards[k], share, key
            )

        return list(zip(arrived, self._map(answer, arrived), strict=True)), ordered[count:]

    def ell(self, model: Model, q: Family, key: jax.Array) -> float:
        """Σ_k ell_k(q) over all clients."""
        parts = self._map(lambda shard: shard_ell(model, q, shard, key), self.partition.shards)
        return float(np.sum([float(part) for part in parts]))

    def _map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) < 2 or self.threads < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(self.threads, len(items))) as pool:
            return list(pool.map(function, items))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@jax.jit
def client_key(seed: int, client: int, version: int) -> jax.Array:
    """A client's random key: a function of seed, client and version of its factor, so that a retry repeats it."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), client), version)


def _shard_ell(model: Model, q: Family, shard: Shard, key: jax.Array) -> jax.Array:
    return model.ell(q, shard.data, shard.weights, key)


shard_ell = Compiled(_shard_ell)
