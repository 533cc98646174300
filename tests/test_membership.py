"""Clients that leave, retire, come back and join."""

import dataclasses

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.io.wire import equal
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
def test_after_retiring_the_result_is_as_if_the_client_had_never_joined(schedule):
    method = pt.Method(SOLVER, SCHEDULES[schedule][0], pt.Damped(0.5))
    state = retire(steps(method, PARTS, init(PRIOR, 3), 5), "client 2", method.aggregation)
    state = steps(method, PARTS, state, 120)
    never = steps(method, OTHERS, init(PRIOR, 2), 120)
    assert state.settled(1e-12)
    np.testing.assert_allclose(state.posterior.mean, never.posterior.mean, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.precision, never.posterior.precision, rtol=1e-8)


ANTICIPATING = pt.methods.sequential(SOLVER, anticipating=True)


@pytest.mark.parametrize("heard", [2, 3, 6])
def test_a_client_with_an_estimated_factor_can_retire(heard):
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


def test_leaving_removes_an_estimated_factor_and_keeps_an_answered_one():
    aggregation = ANTICIPATING.aggregation
    early = steps(ANTICIPATING, PARTS, init(PRIOR, 3, aggregation=aggregation), 2)
    assert np.any(early.factors[2].natural.precision)
    gone = leave(early, "client 2", aggregation)
    assert not np.any(gone.factors[2].natural.precision)
    assert_product(gone)
    late = steps(ANTICIPATING, PARTS, early, 1)
    assert equal(leave(late, "client 2", aggregation).factors[2], late.factors[2])


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


def test_a_client_that_leaves_gets_no_tasks_and_its_factor_is_kept():
    method = pt.methods.sequential(SOLVER)
    before = steps(method, PARTS, init(PRIOR, 3), 3)
    after = leave(before, "client 1", method.aggregation)
    assert eqx.tree_equal(after.posterior, before.posterior)
    engine, asked = LocalEngine(PARTS), []
    for _ in range(4):
        after, event = step(method, MODEL, engine, after)
        asked += event.clients
    assert asked == [0, 2, 0, 2]
    assert equal(after.factors[1], before.factors[1])
    assert steps(method, PARTS, after, 40).settled(1e-12)


def test_a_client_that_rejoins_keeps_its_factor():
    method = pt.methods.sequential(SOLVER)
    whole = steps(method, PARTS, init(PRIOR, 3), 60)
    away = steps(method, PARTS, leave(steps(method, PARTS, init(PRIOR, 3), 3), "client 1", method.aggregation), 10)
    back = join(away, "client 1", method.aggregation)
    assert not back.settled(1e-6)
    np.testing.assert_allclose(steps(method, PARTS, back, 60).posterior.mean, whole.posterior.mean, rtol=1e-8)


def test_after_joining_late_the_result_is_as_if_the_client_had_joined_at_the_start():
    method = pt.methods.synchronous(SOLVER)
    aggregation = method.aggregation
    whole = steps(method, PARTS, init(PRIOR, 3, aggregation=aggregation), 30)
    late = join(steps(method, OTHERS, init(PRIOR, 2, aggregation=aggregation), 10), "client 2", aggregation)
    np.testing.assert_allclose(steps(method, PARTS, late, 30).posterior.mean, whole.posterior.mean, rtol=1e-8)


@pytest.mark.parametrize("change", [leave, retire])
def test_an_unknown_client_raises_an_error_that_lists_the_known_ones(change):
    with pytest.raises(pt.InputError, match=r"nobody.*client 0"):
        change(init(PRIOR, 3), "nobody", pt.Damped())


@pytest.mark.parametrize(("change", "name"), [(retire, "client 0"), (join, "another")])
def test_aggregations_with_memory_of_clients_refuse_membership_changes(change, name):
    aggregation = pt.methods.bayesian_admm(SOLVER).aggregation
    state = init(PRIOR, 3, aggregation=aggregation)
    with pytest.raises(pt.InputError, match="Averaging"):
        change(state, name, aggregation)


def test_retiring_is_refused_if_it_would_make_the_posterior_improper():
    state = init(PRIOR, 3)
    factor = eqx.tree_at(lambda f: f.natural.precision, state.factors[0], PRIOR.precision * 2)
    held = dataclasses.replace(state, factors=state.factors.replaced({0: factor}))
    with pytest.raises(pt.InputError, match="improper"):
        retire(held, "client 0", pt.Damped())
