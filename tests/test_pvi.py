"""Algorithm 1 (`alg:vmp`): what holds after every step, and how runs end."""

import dataclasses
import re

import equinox as eqx
import numpy as np
import pytest

import partita as pt
from partita.data import federate
from partita.engines import LocalEngine, local
from partita.server.aggregation import Aggregated
from partita.server.bound import partition_free_energy
from partita.server.monitor import Monitor
from partita.server.refusal import Reason, Refusal
from partita.server.state import init
from support.problems import (
    AGGREGATIONS,
    MODEL,
    PARTS,
    PRIOR,
    SCHEDULES,
    SOLVER,
    assert_product,
    correlated,
    faulty,
    improper,
    not_finite,
)
from support.steps import step


class Repelled(pt.LinearRegression):
    """A likelihood exp(0.3 θ²) of one row with x = 1, whose factor has the precision −0.6."""

    def expected_log_density(self, mean, variance, data):
        return 0.3 * (mean**2 + variance)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_posterior_is_prior_times_factors_after_every_step(schedule, aggregation):
    """`eq:approx`."""
    turns, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, turns, AGGREGATIONS[aggregation])
    engine, state = LocalEngine(PARTS, speeds), init(PRIOR, 3, aggregation=method.aggregation)
    for _ in range(9):
        state, _ = step(method, MODEL, engine, state)
        assert_product(state)
    assert sum(state.versions) >= 3
    assert state.posterior.kl(PRIOR) > 1


@pytest.mark.parametrize("fault", [not_finite, improper])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_refused_answers_are_recorded_and_change_nothing(schedule, fault, monkeypatch):
    turns, speeds = SCHEDULES[schedule]
    monkeypatch.setattr(local, "client_update", faulty(fault))
    method = pt.Method(SOLVER, turns, pt.Damped(0.5))
    engine, state = LocalEngine(PARTS, speeds), init(PRIOR, 3)
    refused = 0
    for _ in range(9):
        before = state
        state, event = step(method, MODEL, engine, before)
        assert_product(state)
        assert set(event.refusals) == {1} & set(event.clients)
        if event.refusals:
            refused += 1
            others = set(event.clients) - {1}
            assert event.refusals[1].sentence.startswith(
                "is not finite" if fault is not_finite else "would make the posterior"
            )
            assert state.residual[1] == np.inf
            assert bool(others) or eqx.tree_equal(state.posterior, before.posterior)
            same = [eqx.tree_equal(a, b) for a, b in zip(state.factors, before.factors, strict=True)]
            assert same == [k not in others for k in range(3)]
            assert state.versions.tolist() == [v + (k in others) for k, v in enumerate(before.versions)]
    assert refused > 1
    assert eqx.tree_equal(state.factors[1], init(PRIOR, 3).factors[1])


def test_a_step_does_not_modify_its_input_state():
    state, twin = init(PRIOR, 3), init(PRIOR, 3)
    step(pt.methods.synchronous(SOLVER, damping=0.5), MODEL, LocalEngine(PARTS), state)
    assert all(eqx.tree_equal(value, vars(twin)[name]) for name, value in vars(state).items())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_converges_to_the_same_posterior(schedule):
    """`prop:fixed-point`: fixed points are stationary points of global VI; here there is only one."""
    turns, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, turns, pt.Damped(0.7))
    result = pt.run(method, MODEL, PRIOR, tolerance=1e-12, monitor=Monitor(every=0), engine=LocalEngine(PARTS, speeds))
    pooled = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS.pooled(), monitor=Monitor(every=0))
    assert result.status is pt.Status.CONVERGED
    # each of three clients is within 1e-12 nats, which leaves √(2e-12) standard deviations for each of them
    assert result.posterior.q.kl(pooled.posterior.q) < 1e-10


def test_converged_means_that_no_client_would_move_the_posterior():
    result = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-6)
    assert result.status is pt.Status.CONVERGED
    assert re.fullmatch(
        r"Every client's answer lies within 1e-06 nats of the posterior, "
        r"which is about \S+ standard deviations from its fixed point\.",
        result.message,
    )
    _, event = step(pt.methods.synchronous(SOLVER, damping=0.5), MODEL, LocalEngine(PARTS), result.state)
    # since a client was asked the others moved q once each, by at most √(2e-6) standard deviations: 3² times 1e-6 nats
    assert max(float(reply.info.residual) for reply in event.replies.values()) < 9e-6


@pytest.mark.parametrize(
    ("method", "budget", "answers"),
    [
        (pt.methods.sequential(SOLVER, damping=0.1), {"communications": 7}, 7),
        (pt.methods.synchronous(SOLVER, damping=0.1), {"rounds": 2}, 6),
        (pt.methods.synchronous(SOLVER, damping=0.1), {"communications": 7}, 9),
        (pt.methods.synchronous(SOLVER, damping=0.1), {"communications": 6, "rounds": 5}, 6),
        (pt.Method(SOLVER, pt.schedules.RandomSubset(2), pt.Damped(0.1)), {"rounds": 4}, 12),
        (pt.methods.asynchronous(SOLVER, damping=0.1), {"rounds": 3}, 9),
    ],
)
def test_a_run_ends_at_the_first_step_that_reaches_its_budget(method, budget, answers):
    result = pt.run(method, MODEL, PRIOR, PARTS, **budget)
    assert result.status is pt.Status.BUDGET_SPENT
    assert result.message.startswith("The budget is spent; the residual is")
    assert result.state.communications == result.state.answers == answers
    assert result.history["rounds"][-1] == answers / 3


def test_rounds_count_answers_and_communications_count_trials_too():
    """A round is as many answers as there are clients; each trial of the free energy is a communication a client."""
    method = pt.Method(SOLVER, pt.Synchronous(), pt.Backtracking(0.1, monitor_free_energy=True))
    by_rounds = pt.run(method, MODEL, PRIOR, PARTS, rounds=4)
    np.testing.assert_array_equal(by_rounds.history["rounds"], [1, 2, 3, 4])
    # three answers, the free energy before them and the free energy after them
    np.testing.assert_array_equal(by_rounds.history["communications"], [9, 18, 27, 36])
    by_communications = pt.run(method, MODEL, PRIOR, PARTS, communications=18)
    np.testing.assert_array_equal(by_communications.history["rounds"], [1, 2])


def test_the_default_budget_is_a_hundred_rounds_and_may_be_infinite():
    slow = pt.run(pt.methods.synchronous(SOLVER, damping=0.01), MODEL, PRIOR, PARTS, monitor=Monitor(every=0))
    assert (slow.status, len(slow.history)) == (pt.Status.BUDGET_SPENT, 100)
    patient = pt.run(pt.methods.synchronous(SOLVER), MODEL, PRIOR, PARTS, rounds=np.inf, monitor=Monitor(every=0))
    assert patient.status is pt.Status.CONVERGED


def test_answers_that_make_the_posterior_improper_end_the_run_and_leave_the_prior():
    clients = federate([pt.Table(np.ones((1, 1)), np.zeros(1))] * 2)
    prior = pt.MeanFieldGaussian.standard_normal(1)
    # precisions: 1 − 0.6 for each answer alone, 1 − 1.2 for both, and 1 − 0.6 for both at half size
    result = pt.run(pt.Method(pt.Conjugate(), pt.Synchronous()), Repelled(), prior, clients, rounds=5)
    assert result.status is pt.Status.IMPROPER
    assert "that of client 0 would make the posterior improper" in result.message
    assert [name for _, name, _ in result.history.refusals] == ["client 0", "client 1"]
    assert eqx.tree_equal(result.posterior.q, prior)
    halved = pt.run(
        pt.Method(pt.Conjugate(), pt.Synchronous(), pt.Backtracking()), Repelled(), prior, clients, rounds=1
    )
    assert halved.history["damping"][0] == 0.5
    np.testing.assert_allclose(halved.posterior.q.precision, 0.4, rtol=1e-14)


@pytest.mark.parametrize(("rounds", "sentence"), [(30, "diverged to"), (10, "The free energy fell from")])
def test_a_falling_free_energy_is_divergence_although_precisions_stay_positive(rounds, sentence):
    model, prior, parts = correlated()
    result = pt.run(pt.methods.synchronous(pt.solvers.FixedPoint(), damping=1.0), model, prior, parts, rounds=rounds)
    assert result.status is pt.Status.DIVERGED
    assert sentence in result.message
    assert result.free_energy < partition_free_energy(model, parts, prior, prior, 0)
    assert result.state.posterior.is_proper()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_with_an_always_refused_client_continues_and_does_not_converge(schedule, monkeypatch):
    """Also when the client is so fast that it is refused several times before another answers."""
    turns, speeds = SCHEDULES[schedule]
    monkeypatch.setattr(local, "client_update", faulty(not_finite))
    method = pt.Method(SOLVER, turns, pt.Damped(0.7))
    result = pt.run(method, MODEL, PRIOR, rounds=30, monitor=Monitor(every=0), engine=LocalEngine(PARTS, speeds))
    assert result.status is pt.Status.BUDGET_SPENT
    assert (result.state.residual < 1e-3).tolist() == [True, False, True]
    visits = [row["step"] for row in result.history if "client 1" in row["clients"]]
    assert result.history.refusals == [(turn, "client 1", "is not finite") for turn in visits]


def test_history_has_a_row_for_every_step():
    seen = []

    def metrics(posterior):
        seen.append(posterior.q)
        return {"first mean": posterior.mean[0]}

    method, speeds = pt.methods.synchronous(SOLVER, damping=0.25), (1.0, 2.0, 4.0)
    result = pt.run(method, MODEL, PRIOR, rounds=3, monitor=Monitor(metrics=metrics), engine=LocalEngine(PARTS, speeds))
    history, engine, state = result.history, LocalEngine(PARTS, speeds), init(PRIOR, 3)
    for row, q in zip(history, seen, strict=True):
        state, event = step(method, MODEL, engine, state)
        assert eqx.tree_equal(q, state.posterior)
        assert row["gradient_steps"] == state.gradient_steps
        assert row["residual"] == max(float(reply.info.residual) for reply in event.replies.values())
        assert row["free_energy"] == partition_free_energy(MODEL, PARTS, PRIOR, q, 0)
        assert row["first mean"] == float(q.mean[0])
        assert row["clients"] == ["client 2", "client 1", "client 0"]
    columns = {"step": [1, 2, 3], "rounds": [1, 2, 3], "communications": [3, 6, 9], "clock": [1, 2, 3]}
    for name, values in (columns | {"damping": [0.25] * 3, "staleness": [0] * 3}).items():
        np.testing.assert_array_equal(history[name], values)
    assert history["refused"].tolist() == [{}, {}, {}]
    assert 0 < history["seconds"][0] < history["seconds"][1] < history["seconds"][2]
    assert np.diff(history["gradient_steps"], prepend=0).min() >= 3
    assert result.free_energy == history["free_energy"][-1]


def test_free_energy_and_metrics_are_computed_every_so_many_steps_and_at_the_end():
    result = pt.run(
        pt.methods.synchronous(SOLVER),
        MODEL,
        PRIOR,
        PARTS,
        rounds=5,
        monitor=Monitor(metrics=lambda _: {"one": 1.0}, every=2),
    )
    computed = [False, True, False, True, True]
    assert np.isfinite(result.history["free_energy"]).tolist() == computed
    assert np.isfinite(result.history["one"]).tolist() == computed
    assert result.free_energy == result.history["free_energy"][4]
    never = pt.run(pt.methods.synchronous(SOLVER), MODEL, PRIOR, PARTS, rounds=2, monitor=Monitor(every=0))
    assert "free_energy" not in never.history.columns
    assert np.isnan(never.free_energy)


class FirstTwo(pt.Synchronous):
    """Asks two clients of three."""

    def select(self, turns):
        return [0, 1]


def test_a_finite_answer_counts_though_all_others_and_its_clients_last_were_not(monkeypatch):
    monkeypatch.setattr(local, "client_update", faulty(not_finite))
    refused = {k: Refusal(Reason.NOT_FINITE, "is not finite") for k in (0, 2)}
    before = dataclasses.replace(init(PRIOR, 3), refused=refused)
    state, event = step(pt.Method(SOLVER, FirstTwo(), pt.Damped(0.5)), MODEL, LocalEngine(PARTS), before)
    assert set(event.refusals) == {1}
    assert state.versions.tolist() == [1, 0, 0]
    assert not eqx.tree_equal(state.posterior, before.posterior)


class Refusing(pt.Damped):
    """Refuses every answer for a reason, in words that say nothing of it."""

    reason: Reason = eqx.field(static=True, kw_only=True)

    def update(self, iterate, deltas, free_energy):
        return Aggregated(iterate, 0.0, 0, dict.fromkeys(deltas, Refusal(self.reason, "does not please")))


@pytest.mark.parametrize("reason", Reason)
def test_the_status_depends_on_the_refusal_reason_and_not_on_its_message(reason):
    method = pt.Method(SOLVER, pt.Synchronous(), Refusing(reason=reason))
    result = pt.run(method, MODEL, PRIOR, PARTS, rounds=3, monitor=pt.Monitor(every=0))
    improper = {Reason.IMPROPER, Reason.IMPROPER_STEP, Reason.NO_MOMENTS}
    expected = pt.Status.DIVERGED if reason is Reason.NOT_FINITE else pt.Status.STALLED
    assert result.status is (pt.Status.IMPROPER if reason in improper else expected)
    assert result.message.startswith("No answer could be accepted: that of client 0 does not please. ")
