"""A small problem shared by all tests of runs, so that its programs are compiled once."""

import functools
import operator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.local.client import client_update

_generator = np.random.default_rng(0)
_x = np.column_stack([np.ones(60), _generator.normal(size=(60, 2))])
_y = (_x[:, 1] + _generator.logistic(size=60) > 0).astype(float)

PARTS = pt.split(pt.Table(_x, _y), pt.partitioners.equal_random(60, 3))
MODEL, PRIOR = pt.LogisticRegression(), pt.MeanFieldGaussian.standard_normal(3)
FULL = pt.FullGaussian.standard_normal(3)
SOLVER = pt.solvers.FixedPoint(tolerance=1e-16)
STOCHASTIC = pt.Gradient(learning_rate=0.05, max_steps=10, batch_size=5)
SCHEDULES = {
    "fixed": (pt.Sequential(), None),
    "random": (pt.Sequential("random"), None),
    "residual": (pt.Sequential("residual"), None),
    "synchronous": (pt.Synchronous(), None),
    "subset": (pt.schedules.RandomSubset(2), None),
    "asynchronous": (pt.Asynchronous(), (1.0, 10.0, 4.0)),
}
AGGREGATIONS = {
    "undamped": pt.Damped(),
    "damped": pt.Damped(0.3),
    "1/M": pt.Damped(None),
    "backtracking": pt.Backtracking(),
    "watching": pt.Backtracking(monitor_free_energy=True),
    "adaptive": pt.Adaptive(),
}


def correlated():
    """Six clients and four strongly correlated columns.

    With M clients and D equal columns an exact undamped synchronous round of a mean-field q multiplies the error of
    the mean along (1, …, 1) by 1 − MD/(M + D − 1), here −5/3: it diverges, and every precision stays positive.
    """
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 1)) + 0.1 * generator.normal(size=(60, 4))
    data = pt.Table(x, x.sum(axis=1) + generator.normal(size=60))
    return (
        pt.LinearRegression(),
        pt.MeanFieldGaussian.standard_normal(4),
        pt.split(data, pt.partitioners.equal_random(60, 6)),
    )


def faulty(change):
    """A client update in which the replies of client 1 of PARTS are changed."""

    def answer(recipe, visit):
        reply = client_update(recipe, visit)
        return change(reply) if visit.shard is PARTS.shards[1] else reply

    return answer


def not_finite(reply):
    """A reply with a NaN."""
    natural = eqx.tree_at(lambda q: q.precision, reply.delta.natural, replace_fn=lambda leaf: leaf.at[0].set(jnp.nan))
    return eqx.tree_at(lambda r: (r.delta.natural, r.info.finite), reply, (natural, jnp.asarray(False)))


def improper(reply):
    """A reply that would make the posterior improper."""
    return eqx.tree_at(lambda r: r.delta.natural.precision, reply, replace_fn=lambda leaf: leaf - 1e6)


def assert_product(state):
    # a handful of sums of numbers of order 10: rounding leaves 1e-14
    whole = functools.reduce(operator.mul, [factor.natural for factor in state.factors], state.prior)
    np.testing.assert_allclose(ravel_pytree(state.posterior)[0], ravel_pytree(whole)[0], rtol=1e-13, atol=1e-13)


def exact(parts):
    """Precision I + 4 XᵀX and mean of the posterior of a linear regression with noise of variance 1/4."""
    x = np.concatenate([shard.data.x for shard in parts.shards])
    y = np.concatenate([shard.data.y for shard in parts.shards])
    precision = np.eye(3) + 4 * x.T @ x
    return precision, np.linalg.solve(precision, 4 * x.T @ y)
