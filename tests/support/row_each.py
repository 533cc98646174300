"""Clients of one row each with correlated columns, for which plain power EP oscillates."""

import numpy as np

from partita import Damped, LogisticRegression, MeanFieldGaussian, Method, Synchronous, Table, federate, run
from partita.local.solvers import PowerEP
from partita.server.monitor import Monitor

CLIENTS, COLUMNS = 4, 6
_generator = np.random.default_rng(0)
X = 2 * (np.sqrt(0.8) + np.sqrt(0.2) * _generator.normal(size=(CLIENTS, COLUMNS)))
Y = (_generator.uniform(size=CLIENTS) < 0.5).astype(float)
ROWS = federate([Table(X[k : k + 1], Y[k : k + 1]) for k in range(CLIENTS)])
"""One row per client. With correlated columns and a mean-field posterior, parallel updates over-correct."""
MODEL, PRIOR = LogisticRegression(), MeanFieldGaussian.standard_normal(COLUMNS)


def one_row(alpha, points=48):
    return PowerEP(alpha, max_steps=1, in_turn=False, points=points)


def plain(alpha, damping, rounds):
    method = Method(one_row(alpha), Synchronous(), Damped(damping))
    return run(method, MODEL, PRIOR, ROWS, rounds=rounds, tolerance=1e-16, monitor=Monitor(every=0))


def flat(q, axis=0):
    return np.stack([np.asarray(q.precision_mean), np.asarray(q.precision)], axis)
