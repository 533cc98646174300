"""Clients in this process, on a simulated clock: deterministic, whatever the schedule."""

import contextlib
import heapq
import math
import os
import zlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Bool, Float, Key

from partita.data.shard import Partition, Shard
from partita.engines.base import Answer, Engine, Task
from partita.errors import DataError, InputError, SettingsError
from partita.expectations import Estimate
from partita.expectations.capabilities import CurvedInTable, LinearInTable
from partita.expectations.curvature import shard_curvature
from partita.families import Family
from partita.hyper.values import Hyper, model_given
from partita.inputs import check_kind, check_whole, described, real_array
from partita.local.batch import Common, Visits, ells, replies
from partita.local.client import Recipe, Reply, Visit, client_key, client_update, prepare_update
from partita.models import Model
from partita.numerics.arrays import jax_array
from partita.numerics.blas import one_thread
from partita.numerics.compiled import Compiled
from partita.numerics.stack import stacked

__all__ = ["LocalEngine", "cores", "prepare_reply", "reply", "shard_ell", "shard_estimate"]


class _Pending(NamedTuple):
    """A task in flight, ordered by due time and then by client."""

    due: float
    client: int
    task: str
    work: "Future[Reply]"


class _Group(NamedTuple):
    """Clients with equally many rows."""

    rows_of: Mapping[int, int]
    """Where the rows of a client are, by its place in the partition."""
    stacked: Shard
    """Their rows, along a leading axis."""

    def shards(self, places: Sequence[int]) -> Shard:
        """The rows of some of them."""
        chosen = [self.rows_of[place] for place in places]
        if chosen == list(range(len(self.rows_of))):
            return self.stacked
        return jax.tree.map(lambda leaf: leaf[chosen], self.stacked)


_MANY = 64
"""From how many clients on it is worth while to compile programs for batches."""
_FEW_NUMBERS = 4096
"""With more numbers than these in a client's rows, or in q, the time of an answer is that of its arithmetic."""


class LocalEngine(Engine):
    """Runs client updates in this process. Each update of client k takes 1/`speeds[k]` units of simulated time.

    Concurrent clients run in parallel threads; results do not depend on the number of threads. Where many clients with
    few rows are asked at once, one program answers batches of them, to the same numbers up to rounding: what then takes
    time is not their rows, but the way to and from each program. Use one engine per run.

    Args:
        partition: the clients' rows.
        speeds: how fast they are; all alike by default.
        threads: how many work at a time; as many as there are cores by default.
        together: from how many clients that are asked at once, with equally many rows, they are answered in batches;
            None for 64 if what a client's rows and the posterior hold are few numbers, and else, or with 0, never.

    """

    def __init__(
        self,
        partition: Partition,
        speeds: Sequence[float] | None = None,
        threads: int | None = None,
        together: int | None = None,
    ) -> None:
        check_kind("partition", partition, Partition, "make one with partita.federate([…])", DataError)
        if threads is not None:
            check_whole("number of threads", threads, most=10_000)
        self.partition = partition
        self.speeds = np.ones(len(partition)) if speeds is None else real_array("speeds", speeds).astype(float)
        usable = np.isfinite(self.speeds) & (self.speeds > 0)
        if self.speeds.shape != (len(partition),) or not usable.all():
            raise SettingsError(f"Give {len(partition)} positive speeds, one per client, not {self.speeds.tolist()}.")
        if together is not None:
            check_whole("number of clients to answer together", together, 0)
        self.together = together
        self._shapes = [tuple(leaf.shape for leaf in jax.tree.leaves(shard)) for shard in partition.shards]
        """Clients of one shape can be answered together."""
        self._groups: dict[Hashable, _Group] = {}
        """Clients of one length, by their shapes, where they are answered together."""
        self._places = {name: place for place, name in enumerate(partition.names)}
        """By name: a run may know the clients in another order."""
        self._digests = partition.digests()
        # a thread has JAX's own precision, not that of a `jax.enable_x64` around its creator
        self._pool = ThreadPoolExecutor(
            threads or cores(),
            initializer=lambda double: enable_x64(double).__enter__(),
            initargs=(bool(jax.config.read("jax_enable_x64")),),
        )
        self._pending: list[_Pending] = []
        self._known = set[str]()
        """The ids of pending tasks."""
        self._waiting: list[tuple[Task, Future[Reply]]] = []
        """Those that nobody has begun to answer."""
        self._now = 0.0

    def check(self, recipe: Recipe, prior: Family) -> None:
        _check_rows(recipe.model, prior, self.partition)

    def bind(self, recipe: Recipe, prior: Family) -> None:
        self.recipe = recipe

    def submit(self, task: Task) -> None:
        if task.id in self._known:
            return
        due, work = task.sent + 1 / float(self.speeds[self._places[task.name]]), Future[Reply]()
        heapq.heappush(self._pending, _Pending(due, task.client, task.id, work))
        self._known.add(task.id)
        self._waiting.append((task, work))

    def next(self, timeout: float = np.inf) -> Answer | None:
        self._begin()
        if not self._pending or self._pending[0].due > self._now + timeout:
            self._now += timeout
            return None
        due, _, task, work = heapq.heappop(self._pending)
        self._known.discard(task)
        self._now = max(self._now, due)
        return Answer(task, work.result(), due)

    @property
    def ready(self) -> bool:
        return bool(self._pending) and self._pending[0].due <= self._now

    def _begin(self) -> None:
        """Begins to answer what waits: many small clients with one question together, others each by itself."""
        waiting, self._waiting = self._waiting, []
        alike = dict[tuple[int, int, int, Any], list[tuple[Task, Future[Reply]]]]()
        for task, work in waiting:
            if work.set_running_or_notify_cancel():
                question = (id(task.posterior), id(task.prior), id(task.hyper), self._shapes[self._places[task.name]])
                alike.setdefault(question, []).append((task, work))
        for (*_, shape), asked in alike.items():
            if self._are_answered_together(shape, len(asked), asked[0][0].posterior):
                self._answer_all(shape, asked)
            else:
                for task, work in asked:
                    self._pool.submit(self._complete, task, work)

    def _complete(self, task: Task, work: "Future[Reply]") -> None:
        """Answers a task, in a thread; in NumPy, since small arrays of JAX take kilobytes each while they wait."""
        try:
            work.set_result(jax.device_get(self.answer(task)))
        except BaseException as error:
            work.set_exception(error)

    def _answer_all(self, shape: Hashable, asked: Sequence[tuple[Task, "Future[Reply]"]]) -> None:
        """Answers tasks with one question, in batches."""
        places = [self._places[task.name] for task, _ in asked]
        first, sizes = asked[0][0], np.array([self.partition.sizes[place] for place in places])
        visits = Visits(
            stacked(task.factor for task, _ in asked),
            self._group(shape).shards(places),
            sizes / self.partition.rows,
            np.array([task.client for task, _ in asked]),
            np.array([task.version for task, _ in asked]),
        )
        common = Common(self.recipe, first.prior, first.posterior, first.seed, first.hyper)
        for (_, work), reply in zip(asked, replies(common, visits), strict=True):
            work.set_result(reply)

    def _are_answered_together(self, shape: Any, clients: int, q: Family) -> bool:
        """Whether so many clients of this shape are answered in batches."""
        if self.together is not None:
            return 0 < self.together <= clients
        return clients >= _MANY and sum(map(math.prod, shape)) <= _FEW_NUMBERS and q.size() <= _FEW_NUMBERS

    def _group(self, shape: Hashable) -> "_Group":
        """All clients of a shape, whose rows are put together once."""
        if shape not in self._groups:
            places = [place for place in range(len(self.partition)) if self._shapes[place] == shape]
            rows = stacked(self.partition.shards[place] for place in places)
            self._groups[shape] = _Group(dict(zip(places, range(len(places)), strict=True)), rows)
        return self._groups[shape]

    def ell(self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None) -> float:
        model = model_given(self.recipe.model, hyper or {})
        return float(np.sum(self._ells(model, q, key, without)))

    def estimate(
        self, q: Family, key: Key[Array, ""], without: Collection[str] = (), hyper: Hyper | None = None
    ) -> Estimate:
        model = model_given(self.recipe.model, hyper or {})
        if model.expectation.deterministic:
            return Estimate.computed(np.asarray(np.sum(self._ells(model, q, key, without))))
        pairs = self._asked(without)
        return Estimate.sum(list(self._pool.map(lambda pair: shard_estimate(model, q, pair[0], pair[1], key), pairs)))

    def _ells(self, model: Model, q: Family, key: Key[Array, ""], without: Collection[str]) -> list[float]:
        """ell_k(q) of all clients but these, in their order."""
        alike = dict[Hashable, list[int]]()
        for place, name in enumerate(self.partition.names):
            if name not in without:
                alike.setdefault(self._shapes[place], []).append(place)
        found = dict[int, float]()
        single = list[int]()
        for shape, places in alike.items():
            if self._are_answered_together(shape, len(places), q):
                own = ells(model, q, self._group(shape).shards(places), key)
                found |= zip(places, own.tolist(), strict=True)
            else:
                single += places
        rows = self.partition.shards
        parts = self._pool.map(lambda place: float(shard_ell(model, q, rows[place], key)), single)
        found |= zip(single, parts, strict=True)
        return [found[place] for place in sorted(found)]

    def _asked(self, without: Collection[str]) -> list[tuple[str, Shard]]:
        """The names and rows of all clients but these."""
        named = zip(self.partition.names, self.partition.shards, strict=True)
        return [(name, shard) for name, shard in named if name not in without]

    def curvature(
        self, model: CurvedInTable, q: Family, without: Collection[str] = ()
    ) -> Float[np.ndarray, "d d"] | None:
        parts = [shard_curvature(model, q, shard) for _, shard in self._asked(without)]
        return np.sum([np.asarray(part, float) for part in parts], axis=0) if parts else None

    def now(self) -> float:
        return self._now

    def notify(self, task: Task, refusal: str) -> None:
        """Does nothing: the refusal is in the history."""

    def cancel(self, task: str) -> None:
        if task not in self._known:
            return
        for pending in [pending for pending in self._pending if pending.task == task]:
            pending.work.cancel()
            self._pending.remove(pending)
        self._known.discard(task)
        heapq.heapify(self._pending)

    def digests(self) -> Mapping[str, int]:
        return self._digests

    @property
    def simulated(self) -> bool:
        return True

    @property
    def names(self) -> tuple[str, ...]:
        return self.partition.names

    def away(self, names: Sequence[str]) -> Bool[np.ndarray, " m"]:
        return np.zeros(len(names), bool)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Limits BLAS to one thread: its busy-waiting threads would compete with the clients' threads."""
        try:
            with one_thread():
                yield
        finally:
            for pending in self._pending:
                pending.work.cancel()
            self._pending.clear()
            self._known.clear()
            self._waiting.clear()
            self.submit_again()

    def answer(self, task: Task) -> Reply:
        """Computes the client's reply to a task."""
        place = self._places[task.name]
        return reply(self.recipe, task, self.partition.shards[place], self.share(place))

    def share(self, place: int) -> float:
        """The part of all rows that the client at a place of the partition has."""
        return self.partition.sizes[place] / self.partition.rows


def reply(recipe: Recipe, task: Task, shard: Shard, share: float) -> Reply:
    """What a client with these rows, a share of all, replies to a task."""
    return client_update(recipe, _visit(task, shard, share))


def prepare_reply(recipe: Recipe, task: Task, shard: Shard, share: float) -> None:
    """Compiles what a reply to tasks of this one's shapes takes."""
    prepare_update(recipe, _visit(task, shard, share))


def _visit(task: Task, shard: Shard, share: float) -> Visit:
    key = client_key(task.seed, task.client, task.version)
    return Visit(task.prior, task.posterior, task.factor, shard, share, key, task.hyper)


def _check_rows(model: Model, prior: Family, partition: Partition) -> None:
    """Raises an `InputError` that names the client whose data cannot be used."""
    for shard, name, size in zip(partition.shards, partition.names, partition.sizes, strict=True):
        try:
            model.check(jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], shard.data))
        except InputError as error:
            raise SettingsError(f"{name}: {error}.") from None
    shard, key = partition.shards[0], jax.random.key(0)
    row = jax.tree.map(lambda leaf: jax_array(np.asarray(leaf)[0]), shard.data)
    failures = [
        *_failures(lambda q: model.ell(q, shard.data, shard.weights, key), prior),
        *_failures(lambda q: _check_density(model.log_density(q.sample(key), row)), prior),
    ]
    for failure in sorted(failures, key=lambda failure: not isinstance(failure, InputError)):
        if isinstance(failure, InputError):
            raise failure
        parameters = sum(leaf.size for leaf in jax.tree.leaves(prior.moments()[0]))
        if isinstance(model, LinearInTable) and shard.data.x.shape[1] != parameters:
            given = f"x has {shard.data.x.shape[1]} columns and the prior {parameters} parameters"
            raise SettingsError(f"{given}: give one parameter a column, the intercept's included.") from failure
        why = (str(failure) or repr(failure)).splitlines()[0]
        raise SettingsError(f"The prior does not fit the data, or the log density fails: {why:.200}") from failure


def _failures(function: Callable[[Family], Any], prior: Family) -> list[Exception]:
    """What is raised where a function of q is traced: a user's log density may raise anything."""
    try:
        jax.eval_shape(function, prior)
    except Exception as error:
        return [error]
    return []


def _check_density(value: Any) -> None:
    """Raises a `SettingsError` unless a log density is one floating-point number."""
    numeric = isinstance(value, float | np.generic | np.ndarray | jax.Array)
    if not numeric or np.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        what = f"an array of {value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else described(value)
        raise SettingsError(
            f"The log density must be one number a row, log p(y_n | θ), not {what}: sum what it returns."
        )


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@Compiled
def shard_ell(model: Model, q: Family, shard: Shard, key: Key[Array, ""]) -> Float[Array, ""]:
    """E_q[log p(y | θ)] of a client's rows."""
    return model.ell(q, shard.data, shard.weights, key)


def shard_estimate(model: Model, q: Family, name: str, shard: Shard, key: Key[Array, ""]) -> Estimate:
    """The same with its standard error; draws of θ are the same for all clients, and those of rows a client's own."""
    if model.expectation.deterministic:
        return Estimate.computed(np.asarray(shard_ell(model, q, shard, key)))
    if model.expectation.draws_predictors:
        key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return Estimate(*jax.device_get(_estimated(model, q, shard, key)))


@Compiled
def _estimated(model: Model, q: Family, shard: Shard, key: Key[Array, ""]) -> Estimate:
    return model.expectation.estimate(model, q, shard.data, shard.weights, key)
