"""Runs the package on the problems of `reference`, and returns the state after every step."""

import jax
import jax.numpy as jnp
import numpy as np

from partita import FullGaussian, MeanFieldGaussian, Table
from partita.data import Partition, federate
from partita.engines import LocalEngine
from partita.families.factor import Factor
from partita.local.solvers import FixedPoint
from partita.server.state import init
from support.steps import step

FAMILIES = [MeanFieldGaussian, FullGaussian]
KEY = jax.random.key(0)
EXACT = FixedPoint(0.7, max_steps=60, tolerance=None, backtrack=False)
"""Solves a client's problem to rounding error: it takes all steps, and each reduces the error about threefold here."""


def shards(clients):
    """The clients' rows, padded to the total number of rows, so that all partitions of a data set share programs."""
    whole = tuple(np.concatenate(parts) for parts in zip(*clients, strict=True))
    padded = federate([Table(x, y) for x, y in [*clients, whole]], buckets=1)
    return Partition(padded.shards[:-1], padded.names[:-1], padded.sizes[:-1])


def trajectory(method, model, prior, parts, steps, speeds=None):
    """The server's states: the initial one, and one after each step. No answer may be refused."""
    engine, states = LocalEngine(parts, speeds), [init(prior, len(parts), aggregation=method.aggregation)]
    for _ in range(steps):
        state, event = step(method, model, engine, states[-1])
        assert not event.refusals
        states.append(state)
    return states


def natural(q):
    """(Λm, Λ) of a Gaussian or of a factor, for the references."""
    q = q.natural if isinstance(q, Factor) else q
    return np.asarray(q.precision_mean), np.asarray(q.precision)


def member(like, eta):
    """The member, of the family that `like` is of, with natural parameters (Λm, Λ)."""
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(part) for part in eta])


def assert_equal(q, eta, tolerance):
    """Every natural parameter agrees, relative to the largest of its kind."""
    for actual, expected in zip(natural(q), eta, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))
