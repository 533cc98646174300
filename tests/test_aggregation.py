"""How are answers taken in?"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine, local
from partita.families.factor import Factor
from partita.io.wire import equal
from partita.numerics.stack import Stack
from partita.server.aggregation import Anticipating, Averaging, FreeEnergy, Incremental, Iterate, ServerOptimiser
from partita.server.monitor import Monitor
from partita.server.refusal import Reason, Refusal
from support.problems import AGGREGATIONS, MODEL, PARTS, PRIOR, SOLVER, correlated, faulty, improper

ROUNDING = 1e-12
"""Eight units in the last place of the free energies here, which are below 500 in size."""


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregations_keep_their_contract(aggregation):
    pt.checks.check_aggregation(AGGREGATIONS[aggregation], SOLVER, MODEL, PRIOR, PARTS)


def change(precision):
    """The change of a factor that adds this much to each of three precisions, and half of it to their means."""
    precision = jnp.full(3, precision)
    return Factor(pt.MeanFieldGaussian(precision / 2, precision), jnp.asarray(0.25))


def unasked(q):
    """A free energy that is not looked at."""
    raise AssertionError


def take(aggregation, precisions, free_energy=unasked):
    """What becomes of changes by so much precision of the first clients of four, from N(0, 1) and factors of one."""
    factors = Stack.repeated(Factor.one(PRIOR), 4)
    deltas = {k: change(precision) for k, precision in enumerate(precisions)}
    return aggregation.update(Iterate(PRIOR, factors), deltas, FreeEnergy(free_energy, PRIOR))


@pytest.mark.parametrize(("aggregation", "damping"), [(pt.Damped(), 1), (pt.Damped(0.3), 0.3), (pt.Damped(None), 0.25)])
def test_changes_are_aggregated_to_the_power_of_the_damping(aggregation, damping):
    # the second alone would leave a negative precision; only that of all of them together counts
    taken = take(aggregation, [2.0, -1.5, 3.0])
    assert taken.damping == damping
    assert taken.refusals == {}
    # one product and three sums of numbers of order one
    np.testing.assert_allclose(taken.iterate.posterior.precision, 1 + damping * 3.5, rtol=1e-15)
    np.testing.assert_allclose(taken.iterate.posterior.precision_mean, damping * 1.75, rtol=1e-15)
    for client, precision in enumerate([2.0, -1.5, 3.0, 0.0]):
        np.testing.assert_allclose(taken.iterate.factors[client].natural.precision, damping * precision, rtol=1e-15)
        np.testing.assert_allclose(
            taken.iterate.factors[client].log_scale, damping * 0.25 * (precision != 0), rtol=1e-15
        )


@pytest.mark.parametrize(
    ("precisions", "culprits", "reason"),
    [
        ([-2.0], [0], "would make the posterior improper with damping 1"),
        ([0.5, -2.0, 0.2], [1], "would make the posterior improper with damping 1"),
        ([-2.0, 0.5, -3.0], [0, 2], "would make the posterior improper with damping 1"),
        ([-0.6, -0.6], [0, 1], "would make the posterior improper with damping 1 together with the others"),
        ([np.nan, 1.0], [0], "would make the posterior improper with damping 1"),
    ],
)
def test_answers_that_make_the_posterior_improper_are_refused_by_client(precisions, culprits, reason):
    taken = take(pt.Damped(), precisions)
    assert taken.refusals == dict.fromkeys(culprits, Refusal(Reason.IMPROPER, reason))
    others = take(pt.Damped(), [0.0 if k in culprits else precision for k, precision in enumerate(precisions)])
    assert taken.damping == (1 if len(culprits) < len(precisions) else 0)
    assert eqx.tree_equal(taken.iterate.posterior, others.iterate.posterior)
    for k in culprits:
        assert equal(taken.iterate.factors[k], Factor.one(PRIOR))


@pytest.mark.parametrize(
    ("start", "precisions", "damping"), [(1.0, [-10.0], 1 / 16), (0.6, [-10.0], 0.6 / 8), (1.0, [-0.6, -0.6], 0.5)]
)
def test_backtracking_halves_the_damping_until_the_posterior_is_proper(start, precisions, damping):
    taken = take(pt.Backtracking(start), precisions)
    assert taken.damping == pytest.approx(damping, rel=1e-15)
    assert taken.iterate.posterior.precision[0] == pytest.approx(1 + damping * sum(precisions), rel=1e-14)


def test_backtracking_halves_the_damping_until_the_free_energy_does_not_fall():
    asked = []

    def free_energy(q):
        asked.append(float(q.precision[0]))
        return -((asked[-1] - 2) ** 2)

    # precisions 9 and 5 are worse than the 1 that there is; 3 is as good
    taken = take(pt.Backtracking(monitor_free_energy=True), [8.0], free_energy)
    assert asked == [1, 9, 5, 3]
    assert (taken.trials, taken.damping, taken.refusals) == (4, 0.25, {})
    assert taken.iterate.posterior.precision[0] == 3


@pytest.mark.parametrize(
    ("watch", "precision", "trials", "refusal"),
    [
        (False, -1e6, 0, Refusal(Reason.IMPROPER, "would make the posterior improper even with damping 0.12")),
        (True, -1e6, 1, Refusal(Reason.IMPROPER, "would make the posterior improper even with damping 0.12")),
        (True, 1.0, 5, Refusal(Reason.LOWER_FREE_ENERGY, "would lower the free energy even with damping 0.12")),
        (True, -2.0, 3, Refusal(Reason.LOWER_FREE_ENERGY, "would lower the free energy even with damping 0.12")),
    ],
)
def test_backtracking_refuses_the_answers_after_its_last_halving(watch, precision, trials, refusal):
    def worst_elsewhere(q):
        return -abs(float(q.precision[0]) - 1)

    taken = take(pt.Backtracking(monitor_free_energy=watch, halvings=3), [precision], worst_elsewhere)
    # an improper candidate, as -2 times 1 and 1/2 make, has no free energy to ask for
    assert (taken.trials, taken.damping, taken.refusals) == (trials, 0, {0: refusal})
    assert eqx.tree_equal(taken.iterate.posterior, PRIOR)
    assert eqx.tree_equal(taken.iterate.factors, Stack.repeated(Factor.one(PRIOR), 4))


def test_backtracking_on_the_free_energy_converges_where_undamped_rounds_diverge():
    model, prior, parts = correlated()
    solver = pt.solvers.FixedPoint()
    undamped = pt.run(pt.methods.synchronous(solver, damping=1.0), model, prior, parts, rounds=30)
    assert undamped.status is pt.Status.DIVERGED
    method = pt.Method(solver, pt.Synchronous(), pt.Backtracking(monitor_free_energy=True))
    watched = pt.run(method, model, prior, parts, rounds=400, tolerance=1e-4)
    assert watched.status is pt.Status.CONVERGED
    assert np.diff(watched.history["free_energy"]).min() >= -ROUNDING
    # six answers, and one communication a client for the free energy before, at ρ = 1, and at every half of it
    trials = 2 - np.log2(watched.history["damping"])
    assert trials.max() > 2
    np.testing.assert_array_equal(np.diff(watched.history["communications"], prepend=0), 6 + 6 * trials)
    damped = pt.run(pt.methods.synchronous(solver, damping=0.5), model, prior, parts, rounds=400, tolerance=1e-4)
    assert damped.status is pt.Status.CONVERGED
    assert len(watched.history) < len(damped.history)


def test_asynchronous_backtracking_never_lowers_the_free_energy():
    """One client's change of a stale posterior need not raise the free energy at any damping."""
    method = pt.Method(SOLVER, pt.Asynchronous(), pt.Backtracking(monitor_free_energy=True))
    result = pt.run(method, MODEL, PRIOR, rounds=8, engine=LocalEngine(PARTS, (1, 10, 10)))
    assert np.diff(result.history["free_energy"]).min() >= -ROUNDING
    refused = [bool(reasons) for reasons in result.history["refused"]]
    assert 0 < sum(refused) < len(refused)
    np.testing.assert_array_equal(result.history["damping"] == 0, refused)
    assert (result.history["residual"][refused] == np.inf).all()
    # the answer; the free energy before, at ρ = 1, and at ten halves of it
    np.testing.assert_array_equal(np.diff(result.history["communications"], prepend=0)[refused], 1 + 3 * 12)
    assert {reason for _, _, reason in result.history.refusals} == {
        "would lower the free energy even with damping 0.00098"
    }


def reversed_(reply):
    """The change that leads away from the client's optimum."""
    return eqx.tree_at(lambda r: r.delta, reply, reply.delta**-1)


@pytest.mark.parametrize(
    ("fault", "watch", "status"),
    [
        (reversed_, True, pt.Status.STALLED),
        (improper, True, pt.Status.STALLED),
        (improper, False, pt.Status.BUDGET_SPENT),
    ],
)
def test_a_run_in_which_backtracking_refuses_a_client_does_not_converge(fault, watch, status, monkeypatch):
    """Without client 1 the others soon have no answer that raises the free energy of all: nobody is taken in."""
    monkeypatch.setattr(local, "client_update", faulty(fault))
    method = pt.Method(SOLVER, pt.Sequential(), pt.Backtracking(monitor_free_energy=watch))
    result = pt.run(method, MODEL, PRIOR, PARTS, rounds=10)
    assert result.status is status
    turns = [turn for turn, name, _ in result.history.refusals if name == "client 1"]
    assert turns == list(range(2, len(result.history) + 1, 3))
    assert result.state.residual[1] == np.inf
    assert result.state.versions[1] == 0


@pytest.mark.parametrize("aggregation", [Anticipating(), Averaging(), Incremental(), ServerOptimiser()])
def test_the_evidence_is_reported_only_if_factors_keep_their_scales(aggregation):
    def evidence(aggregation):
        method = pt.Method(pt.solvers.PowerEP(), pt.Sequential(), aggregation)
        settings = {"rounds": 20, "tolerance": 1e-14, "monitor": Monitor(every=0)}
        return pt.run(method, MODEL, PRIOR, PARTS, **settings).log_evidence

    expected = evidence(pt.Damped()) if isinstance(aggregation, Anticipating) else np.nan
    np.testing.assert_allclose(evidence(aggregation), expected, rtol=1e-7)
