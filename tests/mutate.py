"""Mutated inputs: messages, federation.toml, checkpoints, ledgers and posterior files.

`python tests/mutate.py --count 10000 --seed 0` reads so many of each. Nothing but the project's own errors may come
out, no changed content may be accepted, nothing may take long, and memory must not grow.
"""

import argparse
import collections
import contextlib
import resource
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import partita as pt
from support import mutable
from support.mutations import ANYWHERE, Mutation

SECONDS = 20
"""How long one input may take."""
MEGABYTES = 300
"""How much memory may grow over all inputs of a kind."""


class Slow(BaseException):
    """An input took too long."""


class Outcome(NamedTuple):
    """What became of the inputs of one kind."""

    counts: collections.Counter[str]
    wrong: list[str]
    """Inputs that did not end as they must, with what happened."""
    seconds: float


def mutate(kind: str, count: int, seed: int = 0) -> Outcome:
    """Reads so many mutated inputs of a kind."""
    with tempfile.TemporaryDirectory() as folder:
        target = mutable.TARGETS[kind](Path(folder))
        expected, mutations = target.content(target.original), [*ANYWHERE, *target.mutations]
        counts, wrong, began = collections.Counter[str](), list[str](), time.monotonic()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            generator = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
            mutation = mutations[generator.integers(len(mutations))]
            ended = _read(target, mutation, generator, expected)
            counts[ended if ended in ("refused", "accepted") else "wrong"] += 1
            if ended not in ("refused", "accepted"):
                wrong.append(f"{kind} {seed}/{number} ({mutation.name}): {ended}")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if grown > MEGABYTES:
            wrong.append(f"{kind}: memory grew by {grown:.0f} MB")
        return Outcome(counts, wrong, time.monotonic() - began)


def _read(target: "mutable.Target", mutation: Mutation, generator: np.random.Generator, expected: Any) -> str:
    data = mutation.apply(target.original, generator)
    try:
        with _timed():
            found = target.content(data)
    except pt.InputError:
        return "refused"
    except (Slow, Exception) as error:
        return f"{type(error).__name__}: {error}"
    if mutation.sealed or not target.sealed or target.same(found, expected):
        return "accepted"
    return "accepted, though its content was changed"


@contextlib.contextmanager
def _timed():
    def ring(*_):
        raise Slow(f"took more than {SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *mutable.TARGETS], help="by default all")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    wrong = []
    for kind in settings.kinds or mutable.TARGETS:
        outcome = mutate(kind, settings.count, settings.seed)
        told = ", ".join(f"{number} {what}" for what, number in sorted(outcome.counts.items()))
        print(f"{kind}: {told} ({outcome.seconds:.0f} s)", flush=True)
        wrong += outcome.wrong
    print(*wrong[:50], sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
