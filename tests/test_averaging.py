"""Averaging of answers (Bayesian ADMM), the estimate of unseen factors, and temperatures."""

import functools
import operator

import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.engines import LocalEngine
from partita.families.factor import Factor
from partita.local.context import Proximal
from partita.server.aggregation import Anticipating, Averaging
from partita.server.monitor import Monitor
from partita.server.state import init
from partita.storage.checkpoint import Checkpoint
from support.problems import FULL, MODEL, PARTS, PRIOR, SOLVER, STOCHASTIC, assert_product, exact
from support.steps import step

REGRESSION = pt.LinearRegression(0.5)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def admm(penalty, schedule=None, solver=SOLVER, **settings):
    return pt.Method(solver, schedule or pt.Synchronous(), Averaging(penalty, **settings), Proximal(penalty))


@pytest.mark.parametrize("solver", [SOLVER, STOCHASTIC])
def test_with_all_settings_at_one_it_is_undamped_synchronous_pvi(solver):
    methods = [admm(1.0, solver=solver, mixing=1.0, step=1.0), pt.methods.synchronous(solver, damping=1.0)]
    engine, states = LocalEngine(PARTS), [init(PRIOR, 3, 0, method.aggregation) for method in methods]
    for _ in range(4):
        states = [step(method, MODEL, engine, state)[0] for method, state in zip(methods, states, strict=True)]
        # the same sums in another order, of numbers up to 100
        np.testing.assert_allclose(flat(states[0].posterior), flat(states[1].posterior), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(flat(states[0].factors), flat(states[1].factors), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("over", ["all", "answered"])
@pytest.mark.parametrize(
    "schedule", [pt.Synchronous(), pt.schedules.RandomSubset(2), pt.Sequential()], ids=["all", "2", "1"]
)
def test_the_server_update_agrees_with_the_formulas(schedule, over):
    """η = (1−α)·mean η_k + α(η_0 + Σ λ_k) and λ_k += γρ(η_k − η), in plain NumPy, whoever answers."""
    penalty, mixing, gamma = 0.4, 0.3, 0.7
    method = admm(penalty, schedule, mixing=mixing, step=gamma, over=over)
    engine, state = LocalEngine(PARTS), init(PRIOR, 3, 0, method.aggregation)
    last, factors = [flat(PRIOR)] * 3, [np.zeros(6)] * 3
    for _ in range(7):
        before = flat(state.posterior)
        state, event = step(method, MODEL, engine, state)
        for k, reply in event.replies.items():
            last[k] = before + flat(reply.delta.natural)
            factors[k] = factors[k] + gamma * penalty * (last[k] - before)
        mean = np.mean(last if over == "all" else [last[k] for k in event.replies], axis=0)
        expected = (1 - mixing) * mean + mixing * (flat(PRIOR) + np.sum(factors, axis=0))
        np.testing.assert_allclose(flat(state.posterior), expected, rtol=1e-12, atol=1e-12)
        found = [flat(factor.natural) for factor in state.factors]
        np.testing.assert_allclose(found, factors, rtol=1e-12, atol=1e-12)


def test_the_mixing_is_one_over_one_plus_penalty_times_clients_unless_given():
    states = []
    for mixing in (None, 1 / (1 + 0.4 * 3)):
        method = admm(0.4, mixing=mixing)
        states.append(step(method, MODEL, LocalEngine(PARTS), init(PRIOR, 3, 0, method.aggregation))[0])
    np.testing.assert_allclose(flat(states[0].posterior), flat(states[1].posterior), rtol=1e-14)


@pytest.mark.parametrize("penalty", [0.5, 2.0])
def test_a_client_minimises_the_admm_objective(penalty):
    """E_q[−log p(y_k|θ)] + E_q[log t_k] + ρ·KL(q‖q_server), up to sign, scale and a constant."""
    q = pt.MeanFieldGaussian.from_mean_sd(jnp.array([0.3, -0.2, 0.5]), 0.4)
    factor = Factor(pt.MeanFieldGaussian(jnp.array([0.2, -0.1, 0.3]), jnp.array([0.5, 0.1, 0.2])), jnp.asarray(0.7))
    context = Proximal(penalty)
    share = jnp.asarray(0.3)
    values = []
    for mean in (0.0, 0.6):
        r = pt.MeanFieldGaussian.from_mean_sd(jnp.full(3, mean), 0.5)
        ell = 2.0 + mean
        ours = context.weight(share) * ell + context(PRIOR, q, factor, share).expected_log(r) + r.entropy()
        theirs = -ell + factor.expected_log(r) + penalty * r.kl(q)
        values.append(float(ours + theirs / penalty))
    np.testing.assert_allclose(values[0], values[1], atol=1e-12)


@pytest.mark.parametrize("over", ["all", "answered"])
@pytest.mark.parametrize(("penalty", "mixing"), [(0.3, None), (1.0, None), (3.0, 0.5)])
def test_the_fixed_point_is_the_exact_posterior(penalty, mixing, over):
    """Conjugate regression, covariances included: prior times all factors, and every client's answer the same."""
    result = pt.run(
        admm(penalty, solver=pt.Conjugate(), mixing=mixing, over=over),
        REGRESSION,
        FULL,
        PARTS,
        rounds=120,
        tolerance=None,
        monitor=Monitor(every=0),
    )
    precision, mean = exact(PARTS)
    np.testing.assert_allclose(result.posterior.q.precision, precision, rtol=1e-8)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=1e-8)
    whole = functools.reduce(operator.mul, [factor.natural for factor in result.state.factors], FULL)
    np.testing.assert_allclose(flat(whole), flat(result.posterior.q), rtol=1e-8)


def test_the_result_does_not_depend_on_the_servers_start():
    start = pt.FullGaussian.from_mean_covariance(jnp.array([0.5, -0.5, 1.0]), 0.01 * jnp.eye(3))
    method = admm(0.5, solver=pt.Conjugate(), start=start)
    state = init(FULL, 3, 0, method.aggregation)
    np.testing.assert_allclose(flat(state.posterior), flat(start), rtol=1e-14)
    assert_product(state)
    result = pt.run(method, REGRESSION, FULL, PARTS, rounds=120, tolerance=None, monitor=Monitor(every=0))
    np.testing.assert_allclose(result.posterior.q.precision, exact(PARTS)[0], rtol=1e-8)


def test_a_resumed_run_keeps_every_clients_last_answer(tmp_path):
    method = admm(0.3, pt.schedules.RandomSubset(2))
    whole = pt.run(method, MODEL, PRIOR, PARTS, communications=12, monitor=Monitor(every=0))
    for communications in (6, 12):
        parts = pt.run(
            method,
            MODEL,
            PRIOR,
            PARTS,
            communications=communications,
            monitor=Monitor(every=0),
            store=Checkpoint(tmp_path / "run.npz"),
        )
    np.testing.assert_array_equal(flat(parts.posterior.q), flat(whole.posterior.q))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": 0.0}, "above 0, not 0.0"),
        ({"step": -1.0}, "step must be finite and above 0, not -1.0"),
        ({"mixing": 1.5}, "at most 1, not 1.5"),
        ({"over": "some"}, "'some'.*all, answered"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(pt.InputError, match=message):
        Averaging(**settings)


def test_an_improper_average_is_refused_and_leaves_everything():
    aggregation = Averaging(1.0, mixing=1.0)
    iterate = aggregation.init(PRIOR, 3)
    wild = Factor(pt.MeanFieldGaussian(jnp.zeros(3), jnp.full(3, -5.0)), jnp.asarray(0.0))
    taken = aggregation.update(iterate, {0: wild}, lambda q: 0.0)
    assert taken.iterate is iterate
    assert "improper with mixing 1" in taken.refusals[0].sentence


def test_unseen_factors_are_estimated_by_the_geometric_mean_of_the_others():
    method = pt.Method(SOLVER, pt.Sequential(), Anticipating())
    engine, state = LocalEngine(PARTS), init(PRIOR, 3, 0, method.aggregation)
    state, _ = step(method, MODEL, engine, state)
    assert_product(state)
    for factor in state.factors[1:]:
        np.testing.assert_allclose(flat(factor.natural), flat(state.factors[0].natural), rtol=1e-14)
    state, _ = step(method, MODEL, engine, state)
    assert_product(state)
    seen = (flat(state.factors[0].natural) + flat(state.factors[1].natural)) / 2
    np.testing.assert_allclose(flat(state.factors[2].natural), seen, rtol=1e-13)
    last, _ = step(method, MODEL, engine, state)
    assert_product(last)
    np.testing.assert_array_equal(flat(last.factors[:2]), flat(state.factors[:2]))


def test_with_a_conjugate_model_estimates_leave_the_first_pass_exact():
    method = pt.Method(pt.Conjugate(), pt.Sequential(), Anticipating())
    result = pt.run(method, REGRESSION, FULL, PARTS, rounds=1, monitor=Monitor(every=0))
    np.testing.assert_allclose(result.posterior.q.precision, exact(PARTS)[0], rtol=1e-10)


@pytest.mark.parametrize("temperature", [0.25, 3.0])
def test_a_tempered_posterior_counts_rows_one_over_temperature_times(temperature):
    for name, settings in [("sequential", {}), ("synchronous", {"damping": 1.0})]:
        result = pt.methods.fit(
            name,
            REGRESSION,
            FULL,
            PARTS,
            {"solver": pt.Conjugate(), "temperature": temperature, **settings},
            rounds=1,
        )
        expected = np.eye(3) + (exact(PARTS)[0] - np.eye(3)) / temperature
        np.testing.assert_allclose(result.posterior.q.precision, expected, rtol=1e-11)
        assert set(result.history["temperature"]) == {temperature}


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_is_a_number_above_zero(temperature):
    with pytest.raises(pt.InputError, match="temperature must be above 0"):
        pt.Method(SOLVER, temperature=temperature)


def test_every_visit_begins_at_the_start_with_restart():
    start = pt.MeanFieldGaussian.tight(3, seed=2)
    method = pt.Method(pt.solvers.FixedPoint(max_steps=0), pt.Sequential(), start=start, restart=True)
    engine, state = LocalEngine(PARTS), init(PRIOR, 3)
    for _ in range(3):
        # undamped, a client that takes no step answers with where it began, whatever the posterior was
        state, _ = step(method, MODEL, engine, state)
        np.testing.assert_allclose(flat(state.posterior), flat(start), rtol=1e-10)
    with pytest.raises(pt.InputError, match="give a start"):
        pt.Method(SOLVER, restart=True)
