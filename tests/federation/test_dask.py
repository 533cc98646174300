"""The same numbers on a Dask cluster."""

import os
import signal

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines.base import EventLog
from partita.server.monitor import Monitor
from support.problems import MODEL, PARTS, PRIOR, SOLVER

pytest.importorskip("distributed")
from partita.engines.dask import DaskEngine

METHODS = {"sequential": pt.methods.sequential(SOLVER), "synchronous": pt.methods.synchronous(SOLVER)}


def assert_equal(there, here):
    np.testing.assert_allclose(there.posterior.q.precision, here.posterior.q.precision, rtol=1e-8)
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize("name", METHODS)
def test_results_equal_those_of_one_process(name, cluster):
    method = METHODS[name]
    there = pt.run(method, MODEL, PRIOR, engine=DaskEngine(cluster, PARTS), rounds=40)
    here = pt.run(method, MODEL, PRIOR, PARTS, rounds=40)
    assert there.status is here.status is pt.Status.CONVERGED
    assert_equal(there, here)
    assert there.free_energy == pytest.approx(here.free_energy, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_results_on_adult_equal_those_of_one_process(name, cluster):
    """Ten clients that differ in size and class (B), twenty messages."""
    table = pt.datasets.adult().train
    parts = pt.split(table, pt.partitioners.beta_kappa(table.y, 10, 0.7, -3.0), drop=True)
    method, prior = METHODS[name], pt.MeanFieldGaussian.standard_normal(table.x.shape[1])
    there = pt.run(method, MODEL, prior, engine=DaskEngine(cluster, parts), rounds=2)
    here = pt.run(method, MODEL, prior, parts, rounds=2)
    assert there.state.answers == here.state.answers == 20
    assert_equal(there, here)


def test_asynchronous_runs_converge_to_the_same_posterior_in_any_order_of_answers(cluster):
    method = pt.methods.asynchronous(SOLVER)
    there = pt.run(method, MODEL, PRIOR, engine=DaskEngine(cluster, PARTS), rounds=60)
    here = pt.run(method, MODEL, PRIOR, PARTS, rounds=60)
    assert there.status is here.status is pt.Status.CONVERGED
    # the runs end within 1e-6 nats of one fixed point
    assert there.free_energy == pytest.approx(here.free_energy, abs=1e-5)


def test_a_worker_killed_during_a_task_is_replaced(cluster):
    method = pt.methods.synchronous(SOLVER)
    engine = DaskEngine(cluster, PARTS)
    kills = iter([3, 7])
    next_kill = next(kills)

    def kill(posterior):
        nonlocal next_kill, steps
        steps += 1
        if steps == next_kill:
            os.kill(next(iter(cluster.run(os.getpid).values())), signal.SIGKILL)
            next_kill = next(kills, None)
        return {}

    steps = 0
    there = pt.run(method, MODEL, PRIOR, engine=engine, rounds=40, monitor=Monitor(metrics=kill))
    here = pt.run(method, MODEL, PRIOR, PARTS, rounds=40)
    assert steps > 7
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-8)


def test_a_formula_is_fitted_on_the_cluster_as_in_one_process(cluster):
    """In double precision, whatever the precision of the process is."""
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(60, 9, 90), "sex": rng.choice(["f", "m"], 90), "site": np.repeat(["a", "b", "c"], 30)}
    table["visits"] = rng.poisson(np.exp(0.03 * (table["age"] - 60)))
    about = {"family": "poisson", "sites": "site"}
    with jax.enable_x64(False):
        there = pt.fit("visits ~ age + sex", table, **about, engine=lambda rows: DaskEngine(cluster, rows))
        here = pt.fit("visits ~ age + sex", table, **about)
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-8)
    np.testing.assert_allclose(there.covariance, here.covariance, rtol=1e-8)
    assert there.table() == here.table()


class Notes(EventLog):
    """Keeps what was noted of answers."""

    def __init__(self):
        self.taken = []

    def note(self, name, event, text=""):
        self.taken.append((name, event, text))


def test_a_synchronous_round_of_a_hundred_clients_loses_nobody(cluster):
    generator = np.random.default_rng(0)
    x = np.column_stack([np.ones(500), generator.normal(size=(500, 2))])
    y = (x[:, 1] + generator.logistic(size=500) > 0).astype(float)
    parts = pt.split(pt.Table(x, y), pt.partitioners.equal_random(500, 100))
    method, notes = METHODS["synchronous"], Notes()
    engine = DaskEngine(cluster, parts, notes)
    there = pt.run(method, MODEL, PRIOR, engine=engine, rounds=1)
    here = pt.run(method, MODEL, PRIOR, parts, rounds=1)
    (step,) = there.history
    assert sorted(step["clients"]) == sorted(parts.names)
    assert (step["refused"], step["unanswered"], notes.taken) == ({}, {}, [])
    assert there.state.versions.tolist() == [1] * 100
    assert_equal(there, here)
