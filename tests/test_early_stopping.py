"""A run that ends where clients' expected log-likelihood is flat, as global VI on the server."""

import dataclasses
import itertools

import numpy as np
import pytest

import partita as pt
from partita.server.early_stopping import Flatness, reported
from partita.server.state import init

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 3))
Y = (GENERATOR.uniform(size=60) < 1 / (1 + np.exp(-(X @ [1.0, -1.0, 0.5])))).astype(float)
PARTS = pt.federate([pt.Table(X[k::3], Y[k::3]) for k in range(3)])
MODEL, PRIOR = pt.LogisticRegression(), pt.MeanFieldGaussian.standard_normal(3)
START = pt.MeanFieldGaussian.from_mean_sd(np.zeros(3), 0.05)
METHOD = pt.methods.global_vi(learning_rate=0.05, start=START)
RULE = pt.early_stopping.EarlyStopping(window=5, patience=2, tolerance=1e-2)


def run(early=RULE, rounds=300, **given):
    rules = pt.Rules(early=early)
    return pt.run(METHOD, MODEL, PRIOR, PARTS, rounds=rounds, rules=rules, tolerance=None, **given)


@pytest.fixture(scope="module")
def stopped():
    return run(monitor=pt.Monitor(lambda posterior: {"sd": float(posterior.q.sd.mean())}, every=1))


def test_a_run_stops_after_windows_that_do_not_raise_the_likelihood(stopped):
    """What clients report after a step is E_q[log p(y | θ)] of the posterior before it."""
    assert stopped.status is pt.Status.STOPPED_EARLY
    assert "2 times 5 steps have not raised it by 0.01 nats" in stopped.message
    windows = stopped.history["ell"].reshape(-1, 5).mean(axis=1)
    flat = [mean - max(windows[:k], default=-np.inf) < 0.01 for k, mean in enumerate(windows)]
    assert flat[-2:] == [True, True]
    assert not any(first and second for first, second in itertools.pairwise(flat[:-1]))
    q = stopped.state.posterior
    before = pt.run(METHOD, MODEL, PRIOR, PARTS, rounds=len(stopped.history) - 1, tolerance=None).posterior.q
    ell = sum(float(MODEL.ell(before, shard.data, shard.weights, None)) for shard in PARTS.shards)
    np.testing.assert_allclose(stopped.history["ell"][-1], ell, rtol=1e-12)
    assert q.is_proper()


def test_it_stops_while_the_free_energy_still_rises(stopped):
    longer = run(early=None)
    assert longer.status is pt.Status.BUDGET_SPENT
    assert len(longer.history) > len(stopped.history)
    assert longer.free_energy > stopped.free_energy
    assert (longer.posterior.q.sd > stopped.posterior.q.sd).all()


def test_an_interrupted_run_stops_where_a_whole_one_does(stopped, tmp_path):
    store = pt.Checkpoint(tmp_path / "run.npz")
    half = run(rounds=len(stopped.history) - 7, store=store)
    assert half.status is pt.Status.BUDGET_SPENT
    whole = run(store=store)
    assert (whole.status, len(whole.history)) == (pt.Status.STOPPED_EARLY, len(stopped.history))
    np.testing.assert_array_equal(whole.posterior.q.mean, stopped.posterior.q.mean)


@pytest.mark.parametrize("every", [0, 40])
def test_the_last_step_is_evaluated(stopped, every):
    monitor = pt.Monitor(lambda posterior: {"sd": float(posterior.q.sd.mean())}, every=every)
    last = run(monitor=monitor).history.rows[-1]
    assert last["step"] == len(stopped.history)
    assert ("sd" in last) == bool(every)


def test_no_report_counts_before_all_clients_have_answered():
    state = init(PRIOR, PARTS.names)
    assert reported(state) == {}
    assert reported(dataclasses.replace(state, ell=np.array([-1.0, -np.inf, -2.0]))) == {}
    left = dataclasses.replace(state, ell=np.array([-1.0, -np.inf, -2.0]), inactive=np.array([False, True, False]))
    assert reported(left) == {"ell": -3.0, "reporting": 2}
    hosted = dataclasses.replace(state, ell=np.array([-1.0, 9.0, -2.0]), hosted=np.array([False, True, False]))
    assert reported(hosted) == {"ell": -3.0, "reporting": 2}, "the server's own prior is no client"


def test_a_window_is_compared_with_the_best_before_it():
    flatness = Flatness(pt.early_stopping.EarlyStopping(window=2, patience=2, tolerance=0.5))
    over = []
    for value in (0.0, 2.0, 5.0, 5.0, 4.0, 4.0, 6.0, 6.0, 6.0, 6.2, 6.4, 6.4):
        flatness.add(value, 3)
        over.append(flatness.over)
    assert over == [False] * 11 + [True]  # means 1, 5, 4 (flat), 6, 6.1 (flat), 6.4 (flat)


def test_a_sum_of_more_clients_is_not_compared_with_one_of_fewer():
    flatness = Flatness(pt.early_stopping.EarlyStopping(window=1, patience=2, tolerance=0.5))
    for value, clients in ((-3.0, 2), (-2.0, 2), (-9.0, 3), (-8.0, 3), (-7.0, 3), (-1.0, 1), (-0.0, 1)):
        flatness.add(value, clients)
        assert flatness.flat == 0
