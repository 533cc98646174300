"""What the demo computes once for several runs changes none of them."""

import jax
import numpy as np
import pytest

import partita as pt
from partita.cli.demo import Alone, Clients

PRIOR = pt.FullGaussian.standard_normal(2)
X = np.linspace(-1, 1, 12).reshape(6, 2)
PARTITION = pt.federate([pt.Table(X[:3], X[:3, 0] + 1), pt.Table(X[3:], X[3:, 1] - 1)])
SPEEDS = [1.0, 2.0]


def posterior(method, engine):
    quiet = pt.Monitor(every=0, progress=False)
    return pt.run(method, pt.LinearRegression(), PRIOR, engine=engine, rounds=2, monitor=quiet).posterior.q


@pytest.mark.parametrize("schedule", ["sequential", "synchronous", "asynchronous"])
def test_runs_whose_first_answers_are_known_end_where_others_do(schedule):
    method, alone = getattr(pt.methods, schedule)(pt.Conjugate()), Alone(PARTITION.names)
    expected = posterior(method, pt.LocalEngine(PARTITION, SPEEDS))
    for _ in range(2):
        found, known = posterior(method, Clients(PARTITION, SPEEDS, alone)), dict(alone.replies)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert known.keys() == set(PARTITION.names[: 1 if schedule == "sequential" else 2])
    assert all(alone.replies[name] is reply for name, reply in known.items())


def test_an_answer_to_the_prior_is_what_a_client_finds_by_itself():
    alone, method = Alone(PARTITION.names), pt.methods.synchronous(pt.Conjugate())
    posterior(method, Clients(PARTITION, SPEEDS, alone))
    for name in PARTITION.names:
        found, own = alone.posterior(name, PRIOR), pt.LocalEngine(PARTITION.only(name))
        expected = posterior(pt.methods.sequential(pt.Conjugate()), own)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, expected)
