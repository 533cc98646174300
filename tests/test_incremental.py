"""Incremental global VI: an optimiser on everybody's last gradients."""

import jax
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.engines import LocalEngine, local
from partita.local.solvers import NaturalGradient
from partita.server.aggregation import Incremental, ServerOptimiser, agile_adam
from partita.server.monitor import Monitor
from partita.server.state import init
from partita.storage.checkpoint import Checkpoint
from support.problems import MODEL, PARTS, PRIOR, SOLVER, faulty, improper
from support.steps import step


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def natural_gradient(q, k):
    """∇_μ ell_k at q, flat."""
    shard = PARTS.shards[k]
    return flat(q.natural_gradient(lambda r: MODEL.ell(r, shard.data, shard.weights, None)))


def test_with_all_clients_per_step_it_is_the_optimiser_on_pooled_rows():
    method = pt.Method(NaturalGradient(), pt.Synchronous(), Incremental(optax.sgd, 1e-3))
    alone = pt.run(method, MODEL, PRIOR, PARTS.pooled(), rounds=50)
    together = pt.run(method, MODEL, PRIOR, PARTS, rounds=50)
    reference = pt.run(pt.methods.global_vi(optax.sgd, learning_rate=1e-3), MODEL, PRIOR, PARTS, rounds=50)
    # fifty steps of sums in another order
    np.testing.assert_allclose(flat(together.posterior.q), flat(reference.posterior.q), rtol=1e-10)
    np.testing.assert_allclose(flat(alone.posterior.q), flat(reference.posterior.q), rtol=1e-10)


@pytest.mark.parametrize("gain", [0.0, 0.5, 1.0])
def test_the_direction_is_that_of_the_formula(gain):
    """Plain steps in the mean, against NumPy: SAG, SAGA and between, with the estimate of the unseen at first."""
    rate = 1e-3
    method = pt.Method(NaturalGradient(), pt.Sequential(), Incremental(optax.sgd, rate, gain))
    engine, state = LocalEngine(PARTS), init(PRIOR, 3, 0, method.aggregation)
    table = np.zeros((3, 6))
    for turn in range(5):
        q, k = state.posterior, turn % 3
        new = natural_gradient(q, k)
        weight = max(1.0, 3 * gain)
        change, table[k] = new - table[k], new
        unheard = 3 / min(turn + 1, 3)
        direction = flat(PRIOR) + unheard * table.sum(axis=0) + (weight - 1) * change - flat(q)
        # of μ = (m, −(m² + v)/2) the mean moves by ∂μ/∂m times the direction
        mean = np.asarray(q.mean)
        expected = mean + rate * (direction[:3] - mean * direction[3:])
        state, _ = step(method, MODEL, engine, state)
        np.testing.assert_allclose(state.posterior.mean, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(flat(state.factors[k].natural), new, rtol=1e-10, atol=1e-10)


GRADIENTS = np.random.default_rng(3).normal(size=(90, 4)) * np.geomspace(10, 0.1, 90)[:, None]


def steps(optimiser, **given):
    """What an optimiser answers to one gradient after another."""
    memory, update, found = optimiser.init(GRADIENTS[0]), jax.jit(optimiser.update), []
    for gradient in GRADIENTS:
        change, memory = update(gradient, memory, **given)
        found.append(change)
    return np.array(found)


def test_with_ever_more_clients_the_default_steps_are_adams_without_momentum():
    expected = steps(optax.adam(0.1, b1=0.0, b2=0.99))
    np.testing.assert_allclose(steps(agile_adam(0.1), part=0.0), expected, rtol=1e-12)
    assert np.abs(steps(agile_adam(0.1), part=1 / 3) - expected).max() > 0.01


def test_the_momentum_of_default_steps_grows_by_a_twentieth_a_pass_up_to_adams():
    first, second, expected = np.zeros(4), np.zeros(4), []
    for index, gradient in enumerate(GRADIENTS):
        momentum = min(index / 3 / 20, 0.9)
        first = momentum * first + (1 - momentum) * gradient
        second = 0.99 * second + 0.01 * gradient**2
        expected.append(-0.1 * first / np.sqrt(second / (1 - 0.99 ** (index + 1))))
    assert momentum == 0.9
    np.testing.assert_allclose(steps(agile_adam(0.1), part=1 / 3), expected, rtol=1e-6)


def telling(rate):
    """Plain steps of the part that has answered."""

    def update(gradient, memory, parameters=None, *, part):
        return jax.tree.map(lambda leaf: 0 * leaf + part, gradient), memory

    return optax.GradientTransformationExtraArgs(lambda parameters: (), update)


@pytest.mark.parametrize("aggregation", [Incremental, ServerOptimiser])
def test_an_optimiser_hears_which_part_of_the_clients_has_answered(aggregation):
    method = pt.Method(NaturalGradient(), pt.Sequential(), aggregation(telling))
    state = init(PRIOR, 3, 0, method.aggregation)
    after, _ = step(method, MODEL, LocalEngine(PARTS), state)
    moved = np.asarray(after.posterior.mean) - np.asarray(state.posterior.mean)
    np.testing.assert_allclose(moved, 1 / 3, rtol=1e-12)


def test_it_converges_where_stochastic_global_vi_keeps_fluctuating():
    """The factors become right, and with them the estimate of the gradient: no rate has to fall for that."""
    exact = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS.pooled()).free_energy
    settings = {"learning_rate": 0.05}
    options = {"communications": 600, "monitor": Monitor(every=10), "tolerance": None}
    worst = {}
    for name in ("incremental_vi", "stochastic_global_vi"):
        history = pt.methods.fit(name, MODEL, PRIOR, PARTS, settings, **options).history
        known = [row["free_energy"] for row in history if "free_energy" in row]
        worst[name] = exact - min(known[-10:])
    assert -1e-9 < worst["incremental_vi"] < 1e-6 < 1e-4 < worst["stochastic_global_vi"]


def test_it_converges_to_prior_times_factors():
    method = pt.methods.incremental_vi(learning_rate=0.02)
    result = pt.run(method, MODEL, PRIOR, PARTS, communications=3000, tolerance=1e-8)
    assert result.status is pt.Status.CONVERGED
    whole = flat(PRIOR) + sum(flat(factor.natural) for factor in result.state.factors)
    # a divergence of 1e-8 nats leaves 1e-4 of an sd
    np.testing.assert_allclose(flat(result.posterior.q), whole, rtol=1e-3, atol=1e-3)


def test_a_resumed_run_is_bitwise_reproducible(tmp_path):
    method = pt.methods.incremental_vi(learning_rate=1e-3, participants=2)
    whole = pt.run(method, MODEL, PRIOR, PARTS, communications=12, monitor=Monitor(every=0))
    for communications in (4, 12):
        parts = pt.run(
            method,
            MODEL,
            PRIOR,
            PARTS,
            communications=communications,
            monitor=Monitor(every=0),
            store=Checkpoint(tmp_path / "a.npz"),
        )
    np.testing.assert_array_equal(flat(parts.posterior.q), flat(whole.posterior.q))


def test_a_start_is_where_the_server_begins():
    start = pt.MeanFieldGaussian.tight(3, seed=2)
    state = init(PRIOR, 3, 0, pt.methods.incremental_vi(start=start).aggregation)
    np.testing.assert_allclose(flat(state.posterior), flat(start), rtol=1e-14)


def test_an_extreme_answer_leaves_the_posterior_proper(monkeypatch):
    """A step has the size of the rate whatever the answer: the optimiser moves unconstrained coordinates."""
    monkeypatch.setattr(local, "client_update", faulty(improper))
    method = pt.methods.incremental_vi(learning_rate=1e-3)
    result = pt.run(method, MODEL, PRIOR, PARTS, communications=9, monitor=Monitor(every=0))
    assert result.posterior.q.is_proper()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"learning_rate": 0.0}, "above 0, not 0.0"), ({"gain": 1.5}, "from 0 to 1, not 1.5"), ({"gain": -1.0}, "-1.0")],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(pt.InputError, match=message):
        pt.methods.incremental_vi(**settings)
