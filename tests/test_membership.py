"""Clients that leave, retire, come back and join."""

import dataclasses

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.membership import join, leave, retire
from partita.server import step
from partita.state import init
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, SOLVER

OTHERS = pt.partition.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])


def steps(method, parts, state, count):
    engine = LocalEngine(parts)
    for _ in range(count):
        state, _ = step(method, MODEL, engine, state)
    return state


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_client_that_retires_might_never_have_been_there(schedule):
    method = pt.Method(SOLVER, SCHEDULES[schedule][0], pt.Damped(0.5))
    state = retire(steps(method, PARTS, init(PRIOR, 3), 5), "client 2")
    state = steps(method, PARTS, state, 120)
    never = steps(method, OTHERS, init(PRIOR, 2), 120)
    assert state.settled(1e-12)
    np.testing.assert_allclose(state.posterior.mean, never.posterior.mean, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.precision, never.posterior.precision, rtol=1e-8)


def test_a_conjugate_factor_is_divided_out_exactly():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    parts = pt.split(pt.Table(x, x.sum(1) + generator.normal(size=40)), pt.splits.equal_random(40, 3))
    method, prior = pt.methods.sequential(pt.Conjugate()), pt.FullGaussian.standard_normal(3)
    result = pt.run(method, pt.LinearRegression(), prior, parts)
    others = pt.partition.Partition(parts.shards[:2], parts.names[:2], parts.sizes[:2])
    never = pt.run(method, pt.LinearRegression(), prior, others)
    retired = retire(result.state, "client 2")
    np.testing.assert_allclose(retired.posterior.precision, never.posterior.q.precision, rtol=1e-12)
    np.testing.assert_allclose(retired.posterior.precision_mean, never.posterior.q.precision_mean, rtol=1e-12)


def test_a_client_that_leaves_is_not_asked_again_and_its_factor_stays():
    method = pt.methods.sequential(SOLVER)
    before = steps(method, PARTS, init(PRIOR, 3), 3)
    after = leave(before, "client 1")
    assert eqx.tree_equal(after.posterior, before.posterior)
    engine, asked = LocalEngine(PARTS), []
    for _ in range(4):
        after, event = step(method, MODEL, engine, after)
        asked += event.clients
    assert asked == [0, 2, 0, 2]
    assert after.factors[1] is before.factors[1]
    assert steps(method, PARTS, after, 40).settled(1e-12)


def test_a_client_comes_back_to_the_factor_it_left():
    method = pt.methods.sequential(SOLVER)
    whole = steps(method, PARTS, init(PRIOR, 3), 60)
    away = steps(method, PARTS, leave(steps(method, PARTS, init(PRIOR, 3), 3), "client 1"), 10)
    back = join(away, "client 1")
    assert not back.settled(1e-6)
    np.testing.assert_allclose(steps(method, PARTS, back, 60).posterior.mean, whole.posterior.mean, rtol=1e-8)


def test_a_client_that_joins_a_run_might_have_been_there_from_the_beginning():
    method = pt.methods.synchronous(SOLVER)
    whole = steps(method, PARTS, init(PRIOR, 3), 200)
    late = join(steps(method, OTHERS, init(PRIOR, 2), 10), "client 2")
    np.testing.assert_allclose(steps(method, PARTS, late, 200).posterior.mean, whole.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize("change", [leave, retire])
def test_an_unknown_client_is_told_with_the_known_ones(change):
    with pytest.raises(pt.InputError, match=r"nobody.*client 0"):
        change(init(PRIOR, 3), "nobody")


@pytest.mark.parametrize(("change", "name"), [(retire, "client 0"), (join, "another")])
def test_what_an_aggregation_remembers_of_clients_is_not_taken_back(change, name):
    state = init(PRIOR, 3, aggregation=pt.methods.bayesian_admm(SOLVER).aggregation)
    with pytest.raises(pt.InputError, match="memory"):
        change(state, name)


def test_a_factor_without_which_the_posterior_is_improper_is_kept():
    state = init(PRIOR, 3)
    factor = eqx.tree_at(lambda f: f.natural.precision, state.factors[0], PRIOR.precision * 2)
    held = dataclasses.replace(state, factors=(factor, *state.factors[1:]))
    with pytest.raises(pt.InputError, match="improper"):
        retire(held, "client 0")
