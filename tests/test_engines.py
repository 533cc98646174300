"""Where do clients run?"""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine, Task, local
from partita.engines.local import client_key
from partita.objective import Factor
from partita.server import step
from partita.state import init
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, STOCHASTIC, faulty, not_finite


@pytest.mark.parametrize("schedule", ["synchronous", "subset", "asynchronous"])
def test_numbers_do_not_depend_on_the_number_of_threads(schedule):
    turns, speeds = SCHEDULES[schedule]
    method, ends = pt.Method(STOCHASTIC, turns, pt.Damped(0.5)), []
    for threads in (1, 2):
        engine, state = LocalEngine(PARTS, speeds, threads), init(PRIOR, 3)
        for _ in range(6):
            state, _ = step(method, MODEL, engine, state)
        ends.append((state, engine.ell(MODEL, state.posterior, jax.random.key(0))))
    (one, ell_one), (two, ell_two) = ends
    assert ell_one == ell_two
    assert all(eqx.tree_equal(value, vars(two)[name]) for name, value in vars(one).items())
    assert not eqx.tree_equal(one.posterior, PRIOR)


def tasks(clients, sent=0.0):
    """A task for each of these clients, in the first turn."""
    factor = Factor.one(PRIOR)
    return [
        Task(f"0.{k}", k, PARTS.names[k], PRIOR, PRIOR, factor, version=0, seed=0, updates=0, sent=sent, hyper={})
        for k in clients
    ]


def test_answers_come_by_arrival_and_ties_by_client():
    engine, recipe = LocalEngine(PARTS, (1.0, 2.0, 2.0)), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    for task in tasks((2, 0, 1), sent=0.25):
        engine.submit(task, recipe)
    assert [(answer.task, answer.time) for answer in iter(engine.next, None)] == [
        ("0.1", 0.75),
        ("0.2", 0.75),
        ("0.0", 1.25),
    ]


def test_a_task_under_way_is_not_sent_twice():
    engine, recipe = LocalEngine(PARTS), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    for task in tasks((0, 1, 0)):
        engine.submit(task, recipe)
    assert [answer.task for answer in iter(engine.next, None)] == ["0.0", "0.1"]


def test_nothing_comes_before_its_time():
    engine, recipe = LocalEngine(PARTS), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    engine.submit(*tasks((0,)), recipe)
    assert engine.next(0.75) is None
    assert engine.now() == 0.75
    assert engine.next(0.75).time == engine.now() == 1.0
    assert engine.next(0.5) is None
    assert engine.now() == 1.5


def test_a_random_key_is_a_function_of_seed_client_and_version():
    keys = [client_key(s, k, v) for s in range(3) for k in range(3) for v in range(3)]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == 27
    assert eqx.tree_equal(client_key(1, 2, 0), client_key(1, 2, 0))


def test_a_retry_repeats_the_answer_and_another_seed_does_not(monkeypatch):
    method, engine, state = pt.methods.synchronous(STOCHASTIC), LocalEngine(PARTS), init(PRIOR, 3)
    with monkeypatch.context() as patch:
        patch.setattr(local, "client_update", faulty(not_finite))
        refused, _ = step(method, MODEL, engine, state)
    assert refused.versions == (1, 0, 1)
    # client 1 is asked again with the same posterior
    again = dataclasses.replace(refused, posterior=state.posterior)
    first, retry = (step(method, MODEL, engine, s)[1].replies for s in (state, again))
    assert eqx.tree_equal(first[1], retry[1])
    assert not eqx.tree_equal(first[0], retry[0])
    other = step(method, MODEL, engine, init(PRIOR, 3, seed=1))[1].replies
    assert not eqx.tree_equal(first[1], other[1])


def test_the_sum_of_the_clients_expectations_is_that_of_all_rows():
    together = LocalEngine(PARTS.pooled()).ell(MODEL, PRIOR, jax.random.key(0))
    # sixty terms of order one
    assert LocalEngine(PARTS).ell(MODEL, PRIOR, jax.random.key(0)) == pytest.approx(together, rel=1e-14)
