"""A local engine that caches long first visits in files.

An answer is a function of its task. In the first visits of synchronous methods everybody is sent the prior, so that
runs that differ in damping, and the committee machine with the whole prior, ask for the same answers; with a network
these take longer than all later ones. An interrupted first round is resumed.
"""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from partita.data.shard import Partition
from partita.engines.base import Task
from partita.engines.endpoint import read_reply, reply_message
from partita.engines.local import LocalEngine
from partita.errors import InputError
from partita.io.atomic import write_bytes
from partita.io.wire import pack, unpack
from partita.local.client import Reply, assign

MIN_CACHED_SECONDS = 1.0
"""Minimum duration of a visit, in seconds, for its answer to be cached."""


class FirstVisits(LocalEngine):
    """A `LocalEngine` with a cache of answers to first visits in a folder.

    `about` identifies what the arrays of a task do not contain: all clients' rows, and settings of model and solver.
    """

    def __init__(self, partition: Partition, speeds: Sequence[float] | None, folder: Path, about: str) -> None:
        super().__init__(partition, speeds)
        self.folder, self.about = folder, about

    def answer(self, task: Task) -> Reply:
        if task.version > 0:
            return super().answer(task)
        path = self.folder / f"{self._digest(task)}.reply"
        try:
            return read_reply(unpack(path.read_bytes()), task.factor, task.hyper)
        except (FileNotFoundError, InputError):
            began = time.perf_counter()
            reply = jax.block_until_ready(super().answer(task))
            if time.perf_counter() - began >= MIN_CACHED_SECONDS:
                write_bytes(path, pack(reply_message({}, reply)))
            return reply

    def _digest(self, task: Task) -> str:
        recipe, share = self.recipe, self.share(task.client)
        assignment = assign(recipe, task.prior, task.posterior, task.factor, share, task.hyper)
        solver = type(recipe.solver).__name__
        digest = hashlib.sha256(f"{self.about} {solver} {task.client} {task.seed}".encode())
        for leaf in jax.tree.leaves((recipe.model, recipe.solver, assignment, task.posterior, task.hyper)):
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()[:32]
