"""Clients on the workers of a Dask cluster. One trust domain: Dask itself sends pickled Python."""

import queue
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from partita.data.shard import Partition
from partita.engines.base import EventLog
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import Delivery, RemoteEngine, Transport
from partita.errors import MissingExtraError
from partita.families import Family
from partita.io.wire import Message, pack, unpack
from partita.local.client import Recipe

__all__ = ["DaskEngine", "Precision"]

try:
    from distributed import Client, Future, Worker, WorkerPlugin
except ImportError:
    raise MissingExtraError("Dask", "dask") from None

_FETCH_TIMEOUT_SECONDS = 300.0
"""Timeout in seconds for fetching an answer from a worker."""


class Precision(WorkerPlugin):
    """Sets a worker's floating-point precision to the server's before any array arrives."""

    name = "partita-precision"

    def __init__(self, double: bool) -> None:
        self.double = double

    def setup(self, worker: Worker) -> None:
        """Runs as the worker starts."""
        jax.config.update("jax_enable_x64", self.double)


class _DaskLink(Transport):
    """Every client's rows live on a worker; if the worker dies, the scheduler moves them to another."""

    def __init__(self, cluster: Client, sites: Mapping[str, ClientEndpoint]) -> None:
        self.cluster, self.sites = cluster, dict(sites)
        self._homes: dict[str, Future] = {}
        self._come: queue.SimpleQueue[tuple[str, Future]] = queue.SimpleQueue()
        cluster.register_plugin(Precision(jax.dtypes.canonicalize_dtype(float) == np.dtype(float)))

    def post(self, name: str, message: Message) -> None:
        if name not in self._homes:
            # a task and not `scatter`: scattered data is not restored after a crash, and tasks on it would hang
            self._homes[name] = self.cluster.submit(_settle, self.sites[name], pure=False)
        answer = self.cluster.submit(_handle, self._homes[name], pack(message), pure=False)
        answer.add_done_callback(lambda future: self._come.put((name, future)))

    def poll(self, timeout: float) -> Delivery | None:
        try:
            name, answer = self._come.get(timeout=timeout if np.isfinite(timeout) else None)
        except queue.Empty:
            return None
        try:
            return Delivery(name, unpack(answer.result(timeout=_FETCH_TIMEOUT_SECONDS)))
        except Exception as error:
            self._homes.pop(name, None)
            return Delivery(name, None, f"failed with its worker ({type(error).__name__}: {error})")

    def present(self) -> Sequence[str]:
        return list(self.sites)

    def now(self) -> float:
        return time.monotonic()


class DaskEngine(RemoteEngine):
    """Distributes clients over a cluster's workers; results equal those in one process."""

    def __init__(self, cluster: Client, partition: Partition, log: EventLog | None = None) -> None:
        self.cluster, self.partition = cluster, partition
        self._digests = partition.digests()
        rows = dict(zip(partition.names, partition.sizes, strict=True))
        super().__init__(_DaskLink(cluster, {}), rows, log)

    def digests(self) -> Mapping[str, int]:
        return self._digests

    def bind(self, recipe: Recipe, prior: Family) -> None:
        """Gives every client its rows with the method, the model and the prior."""
        shards = zip(self.partition.names, self.partition.shards, strict=True)
        self.link = _DaskLink(
            self.cluster, {name: ClientEndpoint(name, recipe, prior, shard) for name, shard in shards}
        )
        super().bind(recipe, prior)


def _settle(site: ClientEndpoint) -> ClientEndpoint:
    return site


def _handle(site: ClientEndpoint, message: bytes) -> bytes:
    """What a worker runs."""
    return pack(site.handle(unpack(message)))
