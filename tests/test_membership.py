"""Clients that leave, retire, come back and join."""

import dataclasses

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.server.membership import join, leave, retire
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, SOLVER, assert_product
from support.steps import step

OTHERS = pt.Partition(PARTS.shards[:2], PARTS.names[:2], PARTS.sizes[:2])


def steps(method, parts, state, count):
    engine = LocalEngine(parts)
    for _ in range(count):
        state, _ = step(method, MODEL, engine, state)
    return state


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_client_that_retires_might_never_have_been_there(schedule):
    method = pt.Method(SOLVER, SCHEDULES[schedule][0], pt.Damped(0.5))
    state = retire(steps(method, PARTS, init(PRIOR, 3), 5), "client 2", method.aggregation)
    state = steps(method, PARTS, state, 120)
    never = steps(method, OTHERS, init(PRIOR, 2), 120)
    assert state.settled(1e-12)
    np.testing.assert_allclose(state.posterior.mean, never.posterior.mean, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.precision, never.posterior.precision, rtol=1e-8)


ANTICIPATING = pt.methods.sequential(SOLVER, anticipating=True)


@pytest.mark.parametrize("heard", [2, 3, 6])
def test_a_client_whose_factor_was_estimated_retires_like_any_other(heard):
    """What `Anticipating` remembers is no reason to keep a factor: q = p · Π t_m holds there too."""
    state = steps(ANTICIPATING, PARTS, init(PRIOR, 3, aggregation=ANTICIPATING.aggregation), heard)
    state = retire(state, "client 2", ANTICIPATING.aggregation)
    assert not np.any(state.factors[2].natural.precision)
    assert_product(state)
    state = steps(ANTICIPATING, PARTS, state, 60)
    never = steps(ANTICIPATING, OTHERS, init(PRIOR, 2, aggregation=ANTICIPATING.aggregation), 60)
    assert not np.any(state.factors[2].natural.precision)
    np.testing.assert_allclose(state.posterior.mean, never.posterior.mean, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.precision, never.posterior.precision, rtol=1e-8)


def test_an_estimate_leaves_with_its_client_and_an_answer_stays():
    aggregation = ANTICIPATING.aggregation
    early = steps(ANTICIPATING, PARTS, init(PRIOR, 3, aggregation=aggregation), 2)
    assert np.any(early.factors[2].natural.precision)
    gone = leave(early, "client 2", aggregation)
    assert not np.any(gone.factors[2].natural.precision)
    assert_product(gone)
    late = steps(ANTICIPATING, PARTS, early, 1)
    assert leave(late, "client 2", aggregation).factors[2] is late.factors[2]


def test_a_client_joins_a_run_that_estimates_factors():
    aggregation = ANTICIPATING.aggregation
    whole = steps(ANTICIPATING, PARTS, init(PRIOR, 3, aggregation=aggregation), 60)
    late = join(steps(ANTICIPATING, OTHERS, init(PRIOR, 2, aggregation=aggregation), 1), "client 2", aggregation)
    after = steps(ANTICIPATING, PARTS, late, 1)
    assert_product(after)
    assert np.any(after.factors[2].natural.precision)
    np.testing.assert_allclose(steps(ANTICIPATING, PARTS, late, 60).posterior.mean, whole.posterior.mean, rtol=1e-8)


def test_a_conjugate_factor_is_divided_out_exactly():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    parts = pt.split(pt.Table(x, x.sum(1) + generator.normal(size=40)), pt.partitioners.equal_random(40, 3))
    method, prior = pt.methods.sequential(pt.Conjugate()), pt.FullGaussian.standard_normal(3)
    result = pt.run(method, pt.LinearRegression(), prior, parts)
    others = pt.Partition(parts.shards[:2], parts.names[:2], parts.sizes[:2])
    never = pt.run(method, pt.LinearRegression(), prior, others)
    retired = retire(result.state, "client 2", method.aggregation)
    np.testing.assert_allclose(retired.posterior.precision, never.posterior.q.precision, rtol=1e-12)
    np.testing.assert_allclose(retired.posterior.precision_mean, never.posterior.q.precision_mean, rtol=1e-12)


def test_a_client_that_leaves_is_not_asked_again_and_its_factor_stays():
    method = pt.methods.sequential(SOLVER)
    before = steps(method, PARTS, init(PRIOR, 3), 3)
    after = leave(before, "client 1", method.aggregation)
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
    away = steps(method, PARTS, leave(steps(method, PARTS, init(PRIOR, 3), 3), "client 1", method.aggregation), 10)
    back = join(away, "client 1", method.aggregation)
    assert not back.settled(1e-6)
    np.testing.assert_allclose(steps(method, PARTS, back, 60).posterior.mean, whole.posterior.mean, rtol=1e-8)


def test_a_client_that_joins_a_run_might_have_been_there_from_the_beginning():
    method = pt.methods.synchronous(SOLVER)
    whole = steps(method, PARTS, init(PRIOR, 3), 200)
    late = join(steps(method, OTHERS, init(PRIOR, 2), 10), "client 2", method.aggregation)
    np.testing.assert_allclose(steps(method, PARTS, late, 200).posterior.mean, whole.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize("change", [leave, retire])
def test_an_unknown_client_is_told_with_the_known_ones(change):
    with pytest.raises(pt.InputError, match=r"nobody.*client 0"):
        change(init(PRIOR, 3), "nobody", pt.Damped())


@pytest.mark.parametrize(("change", "name"), [(retire, "client 0"), (join, "another")])
def test_what_an_aggregation_remembers_of_clients_is_not_taken_back(change, name):
    aggregation = pt.methods.bayesian_admm(SOLVER).aggregation
    state = init(PRIOR, 3, aggregation=aggregation)
    with pytest.raises(pt.InputError, match="Averaging"):
        change(state, name, aggregation)


def test_a_factor_without_which_the_posterior_is_improper_is_kept():
    state = init(PRIOR, 3)
    factor = eqx.tree_at(lambda f: f.natural.precision, state.factors[0], PRIOR.precision * 2)
    held = dataclasses.replace(state, factors=(factor, *state.factors[1:]))
    with pytest.raises(pt.InputError, match="improper"):
        retire(held, "client 0", pt.Damped())
