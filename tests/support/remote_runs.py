"""A linear regression with remote clients, and runs of it."""

import functools
import operator

import numpy as np

import partita as pt
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import RemoteEngine
from partita.server.monitor import Monitor
from partita.server.rules import Rules

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
PARTS = pt.split(pt.Table(X, X @ [1.0, -2.0] + GENERATOR.normal(size=40)), pt.partitioners.equal_random(40, 3))
MODEL, PRIOR = pt.LinearRegression(), pt.FullGaussian.standard_normal(2)
METHODS = {
    "sequential": pt.methods.sequential(pt.Conjugate()),
    "random": pt.methods.sequential(pt.Conjugate(), "random"),
    "residual": pt.methods.sequential(pt.Conjugate(), "residual"),
    "synchronous": pt.methods.synchronous(pt.Conjugate(), damping=1.0),
    "subset": pt.Method(pt.Conjugate(), pt.schedules.RandomSubset(2), pt.Damped(1.0)),
    "asynchronous": pt.methods.asynchronous(pt.Conjugate(), damping=1.0),
}
EXACT = np.linalg.inv(np.eye(2) + X.T @ X)


def endpoints(method):
    return {
        name: ClientEndpoint(name, method.recipe(MODEL), PRIOR, shard)
        for name, shard in zip(PARTS.names, PARTS.shards, strict=True)
    }


def serve(method, link, ledger, **rules):
    """Runs a server until it ends or is killed."""
    rows = dict(zip(PARTS.names, PARTS.sizes, strict=True))
    engine = RemoteEngine(link, rows, ledger)
    limits = Rules(**{"deadline": 10.0, "quorum": 0.5, "until": 5000.0} | rules)
    return pt.run(
        method,
        MODEL,
        PRIOR,
        engine=engine,
        rules=limits,
        tolerance=1e-12,
        monitor=Monitor(every=0),
        store=ledger,
        requests=ledger,
    )


def assert_product(state):
    """`q == prior · Π factors`, to the rounding of sums of a few numbers below a hundred."""
    product = PRIOR * functools.reduce(operator.mul, (factor.natural for factor in state.factors))
    np.testing.assert_allclose(state.posterior.precision, product.precision, atol=1e-12)
    np.testing.assert_allclose(state.posterior.precision_mean, product.precision_mean, atol=1e-12)
