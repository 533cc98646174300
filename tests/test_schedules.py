"""Whose turn is it?"""

import itertools

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine, local
from partita.local.client import Visit, client_key, client_update
from partita.server.monitor import Monitor
from partita.server.schedules import ScheduleView
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, SOLVER, faulty, not_finite
from support.steps import step


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_keep_their_contract(schedule):
    pt.checks.check_schedule(SCHEDULES[schedule][0], clients=5, turns=200)


def visits(schedule, clients, turns, residual_of, seed=0):
    """Who is visited, when a client that answers in some turn then has the residual `residual_of(client, turn)`."""
    residual, age, order = np.full(clients, np.inf), np.zeros(clients, int), []
    for turn in range(turns):
        chosen = schedule.select(ScheduleView(turn, residual.copy(), age.copy(), np.zeros(clients, bool), seed))
        order.append(chosen)
        age += 1
        for k in chosen:
            age[k], residual[k] = 0, residual_of(k, turn)
    return order


def windows_without_someone(order, clients):
    """The windows of 3M turns in which not every client has a turn."""
    order = [k for chosen in order for k in chosen]
    return [
        turn for turn in range(len(order) - 3 * clients + 1) if len(set(order[turn : turn + 3 * clients])) < clients
    ]


_noise = np.random.default_rng(0).normal(size=(7, 500))
RESIDUALS = {
    "one is always tiny": lambda k, _: 1e-12 if k == 0 else 1.0,
    "all but one are tiny": lambda k, _: 1.0 if k == 0 else 1e-12,
    "one is always infinite": lambda k, _: np.inf if k == 0 else 1e-3,
    "all but one are infinite": lambda k, _: 1e-3 if k == 0 else np.inf,
    "all are infinite": lambda k, _: np.inf,
    "all are zero": lambda k, _: 0.0,
    "all are rounding errors of either sign": lambda k, turn: 1e-17 * _noise[k, turn],
    "one is a positive rounding error": lambda k, _: 1e-17 if k == 0 else -1e-16,
    "they span forty orders of magnitude": lambda k, turn: np.exp(30 * _noise[k, turn]),
    "one shrinks by half each visit": lambda k, turn: 0.5**turn if k == 0 else 1e-6,
}


@pytest.mark.parametrize("clients", [1, 2, 7])
@pytest.mark.parametrize("case", RESIDUALS)
def test_residual_order_visits_every_client_in_any_window_of_3m_turns(case, clients):
    """A residual counts at most M units of age, so that nobody waits for 3M turns."""
    order = visits(pt.Sequential("residual"), clients, 300, RESIDUALS[case])
    assert windows_without_someone(order, clients) == []


def test_residual_order_prefers_the_client_with_the_largest_residual():
    order = visits(pt.Sequential("residual"), 5, 100, lambda k, _: 1.0 if k == 3 else 1e-3)
    counts = np.bincount([k for (k,) in order])
    assert order[:5] == [[0], [1], [2], [3], [4]]
    assert counts.argmax() == 3
    assert counts[3] > 1.5 * np.delete(counts, 3).max()


def test_residual_order_goes_on_visiting_a_client_whose_answers_are_refused(monkeypatch):
    monkeypatch.setattr(local, "client_update", faulty(not_finite))
    engine, state, order = LocalEngine(PARTS), init(PRIOR, 3), []
    for _ in range(30):
        state, event = step(pt.methods.sequential(SOLVER, "residual"), MODEL, engine, state)
        order.append(event.clients)
    assert windows_without_someone(order, 3) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_random_order_is_a_new_permutation_each_pass(seed):
    order = np.ravel(visits(pt.Sequential("random"), 6, 60, lambda *_: 1.0, seed)).reshape(10, 6)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(6), (10, 1)))
    assert len(np.unique(order, axis=0)) == 10
    assert order.tolist() != np.ravel(visits(pt.Sequential("random"), 6, 60, lambda *_: 1.0, 2)).reshape(10, 6).tolist()


def test_random_subsets_have_their_size_and_favour_nobody():
    order = visits(pt.schedules.RandomSubset(2), 5, 400, lambda *_: 1.0)
    assert {len(set(chosen)) for chosen in order} == {2}
    # each client is in 160 of 400 subsets on average, with a standard deviation of √(400 · 0.4 · 0.6) = 9.8
    assert np.abs(np.bincount(np.ravel(order)) - 160).max() < 40


def arrivals(speeds, answers):
    """Clients and times of arrival, when client k answers at 1/speed, 2/speed, …; ties by client."""
    times = [[(turn / speed, k) for turn in range(1, answers + 1)] for k, speed in enumerate(speeds)]
    return sorted(itertools.chain(*times))[:answers]


@pytest.mark.parametrize("speeds", [(1.0, 8.0, 4.0), (1.0, 1.0, 1.0), (2.0, 1.0, 2.0)])
def test_asynchronous_arrival_times_and_staleness_follow_from_the_speeds(speeds):
    # speeds are powers of two, so that times are exact and ties are ties
    expected = arrivals(speeds, 30)
    result = pt.run(
        pt.methods.asynchronous(SOLVER, 0.1),
        MODEL,
        PRIOR,
        communications=30,
        monitor=Monitor(every=0),
        engine=LocalEngine(PARTS, speeds),
    )
    assert result.history["clients"].tolist() == [[f"client {k}"] for _, k in expected]
    np.testing.assert_array_equal(result.history["clock"], [time for time, _ in expected])
    order = [k for _, k in expected]
    last = dict.fromkeys(range(3), -1)
    staleness = []
    for turn, k in enumerate(order):
        # the client got its posterior as soon as its last answer was in; since then there was an update a turn
        staleness.append(turn - last[k] - 1)
        last[k] = turn
    assert max(staleness) > 0
    np.testing.assert_array_equal(result.history["staleness"], staleness)


def test_asynchronous_speeds_of_one_to_ten_give_ten_times_the_answers():
    result = pt.run(
        pt.methods.asynchronous(SOLVER, 0.1),
        MODEL,
        PRIOR,
        communications=84,
        monitor=Monitor(every=0),
        engine=LocalEngine(PARTS, (1, 10, 10)),
    )
    assert result.state.versions.tolist() == [4, 40, 40]
    # ten steps of 0.1 make 1 to rounding
    assert result.state.clock == pytest.approx(4, abs=1e-12)


def test_an_asynchronous_answer_is_formed_against_the_posterior_that_was_sent():
    """The staleness recorded is real: the reply is that of a client that knows the older posterior only."""
    method, speeds = pt.methods.asynchronous(SOLVER, 0.5), (1.0, 8.0, 4.0)
    engine, state, posteriors, stale = LocalEngine(PARTS, speeds), init(PRIOR, 3), [PRIOR], 0
    for _ in range(20):
        new, event = step(method, MODEL, engine, state)
        (k,) = event.clients
        sent = posteriors[state.updates - event.staleness]
        key = client_key(state.seed, k, state.versions[k])
        reply = client_update(method.recipe(MODEL), Visit(PRIOR, sent, state.factors[k], PARTS.shards[k], 1 / 3, key))
        assert eqx.tree_equal(reply, event.replies[k])
        stale += not eqx.tree_equal(sent, state.posterior)
        posteriors.append(new.posterior)
        state = new
    assert stale > 10


def test_only_asynchronous_answers_are_stale():
    for schedule, (turns, speeds) in SCHEDULES.items():
        result = pt.run(
            pt.Method(SOLVER, turns, pt.Damped(0.1)), MODEL, PRIOR, rounds=4, engine=LocalEngine(PARTS, speeds)
        )
        assert (result.history["staleness"].max() > 0) == (schedule == "asynchronous")


@pytest.mark.parametrize("name", SCHEDULES)
def test_synchronous_steps_are_those_of_the_slowest_who_answer_at_once(name):
    """All gradient steps are the sum of everybody's; those of `fig:fmnist_homo_pvi_steps` are the most at a time."""
    schedule, speeds = SCHEDULES[name]
    method = pt.Method(SOLVER, schedule, pt.Damped(0.3))
    engine, state, unequal = LocalEngine(PARTS, speeds), init(PRIOR, 3), False
    for _ in range(5):
        before = state
        state, event = step(method, MODEL, engine, state)
        taken = [int(reply.info.steps) for reply in event.replies.values()]
        assert state.synchronous_steps - before.synchronous_steps == max(taken) > 0
        assert state.gradient_steps - before.gradient_steps == sum(taken)
        unequal |= len(set(taken)) > 1
    assert unequal is (name in ("synchronous", "subset")), "clients take unequal numbers of steps"
