"""EP-η and EP-μ (So and Turner 2024): what noise in the moments does to a client's answer, and what it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import Damped, FullGaussian, LogDensity, MeanFieldGaussian, Method, Sequential, federate, run
from partita.engines import LocalEngine
from partita.errors import InputError
from partita.expectations import GridQuadrature, MonteCarlo
from partita.families.factor import Factor
from partita.families.gaussian import Moments
from partita.local.client import RESIDUAL_UNDEFINED
from partita.local.objective import Problem
from partita.local.solvers import MomentMatching
from partita.server.monitor import Monitor
from partita.server.state import init
from support.steps import step

THETA = np.linspace(-8, 8, 801)
Y = np.array([0.3, -1.2, 0.8])


def mixture(theta, y):
    """log of a density with two bumps, of which the data do not say which they come from."""
    return jnp.logaddexp(-((y - theta[0]) ** 2) / 2, -((y + 1 - theta[0] / 2) ** 2) - 0.3)


def tilted():
    """Masses of N(0, 1) times the likelihood on `THETA`."""
    rows = jax.vmap(lambda t: jax.vmap(lambda y: mixture(t[None], y))(jnp.asarray(Y)))(jnp.asarray(THETA))
    log_masses = np.asarray(rows.sum(axis=1)) - THETA**2 / 2
    return np.exp(log_masses) / np.exp(log_masses).sum()


def statistics(theta):
    return Moments(theta[:, None], -(theta[:, None] ** 2) / 2)


def steps(step_size, start, moments):
    """The changes of natural parameters that each of many estimates of the moments leads to."""
    solver = MomentMatching(step_size=step_size)
    found = jax.jit(jax.vmap(lambda one: solver.towards(start, one).natural))(moments)
    return np.hstack([found.precision_mean, found.precision])


def test_the_bias_of_single_draw_steps_is_proportional_to_the_step_size():
    """All draws there are, with their masses, so that expectations are sums; matched to one draw, nothing is proper."""
    masses, start = tilted(), MeanFieldGaussian.from_mean_sd(jnp.array([0.4]), 0.9)
    draws = statistics(THETA)
    average = jax.tree.map(lambda leaf: (masses @ leaf)[None], draws)
    gap = np.concatenate([np.ravel(a[0] - b) for a, b in zip(average, start.mean_parameters(), strict=True)])
    unbiased = np.linalg.solve(start.fisher(), gap)
    np.testing.assert_allclose(masses @ steps(0.0, start, draws), unbiased, rtol=1e-12)
    sizes = 10.0 ** -np.arange(2, 6)
    off = [np.linalg.norm(masses @ steps(size, start, draws) - unbiased) for size in sizes]
    np.testing.assert_allclose(np.diff(np.log10(off)) / np.diff(np.log10(sizes)), 1, atol=0.02)
    alone = np.asarray(jax.vmap(lambda one: start.with_mean_parameters(one).precision[0])(draws))
    assert not np.any((alone > 0) & (alone < 1e12))


def test_moments_of_few_draws_bias_moment_matching_at_any_damping():
    """At a fixed point steps should be 0 on average. Eight draws: precision comes out 8/5 as large for a Gaussian."""
    masses, sets = tilted(), 20_000
    mean = masses @ THETA
    start = MeanFieldGaussian.from_mean_sd(jnp.array([mean]), np.sqrt(masses @ (THETA - mean) ** 2))
    drawn = np.random.default_rng(0).choice(THETA, size=(sets, 8), p=masses)
    moments = jax.tree.map(lambda leaf: leaf.reshape(sets, 8, 1).mean(axis=1), statistics(drawn.ravel()))
    relative = {size: steps(size, start, moments)[:, 1] / start.precision[0] for size in (1.0, 0.1, 0.01, 0.0)}
    assert relative[1.0].mean() > 0.4
    error = relative[0.0].std() / np.sqrt(sets)
    assert error < 0.005
    assert abs(relative[0.0].mean()) < 4 * error
    assert abs(relative[0.01].mean()) < 4 * error + 0.01
    assert 0.01 < relative[0.1].mean() < 0.05


@pytest.mark.parametrize(("alpha", "family"), [(1.0, MeanFieldGaussian), (0.4, FullGaussian)])
def test_answers_are_natural_gradient_steps_with_moments_of_weighted_draws(alpha, family):
    """Beside weights in NumPy, on the solver's own draws from q: F⁻¹(μ̂ − μ) / α, and EP-μ tends to it."""
    start, context = family.standard_normal(1, 0.8), family.standard_normal(1)
    shard, one = federate([Y]).shards[0], jnp.ones(())
    task = Problem(LogDensity(mixture), shard, Factor.of(context), one, start, one)
    rule, keys = MonteCarlo(4), jax.random.split(jax.random.key(3), 50)

    @jax.jit
    def answers(size):
        solver = MomentMatching(alpha=alpha, rule=rule, step_size=size)
        found = jax.vmap(lambda key: solver.solve(task, key).q / start)(keys)
        return jnp.hstack([jnp.reshape(leaf, (50, 1)) for leaf in jax.tree.leaves(found)])

    expected = []
    for key in keys:
        theta = np.asarray(rule.nodes(start, key)[0])[:, 0]
        away = Y - theta[:, None], Y + 1 - theta[:, None] / 2
        likelihood = np.logaddexp(-(away[0] ** 2) / 2, -(away[1] ** 2) - 0.3).sum(axis=1)
        # q / context is a factor with the precision 1/0.8² − 1
        logs = alpha * (likelihood + (1 / 0.64 - 1) * theta**2 / 2)
        weights = np.exp(logs - logs.max())
        gained = weights / weights.sum() - 1 / 4
        expected.append(np.linalg.solve(start.fisher(), [gained @ theta, gained @ (-(theta**2) / 2)]) / alpha)
    linear = answers(0.0)
    np.testing.assert_allclose(linear, expected, rtol=1e-9, atol=1e-11)
    off = [np.linalg.norm(np.mean(answers(size) - linear, axis=0)) for size in (1e-3, 1e-4)]
    assert off[0] / off[1] == pytest.approx(10, rel=0.02)


def test_small_steps_with_four_draws_per_visit_neither_fail_nor_overshoot():
    """Where weights differ most. Matched, some draws have no moments, and others claim far too much precision."""
    model, prior = LogDensity(mixture, expectation=GridQuadrature(20)), MeanFieldGaussian.standard_normal(1, 2.0)
    parts = federate(np.split(np.random.default_rng(2).normal(0.8, 1.2, 12), 4))
    exact = run(
        Method(MomentMatching(rule=GridQuadrature(40))), model, prior, parts, rounds=20, monitor=Monitor(every=0)
    )

    def visited(step_size):
        """What the precision of q is to the exact one, visit after visit, and how many answers failed."""
        solver = MomentMatching(rule=MonteCarlo(4), max_steps=1, step_size=step_size)
        method, engine = Method(solver, Sequential(), Damped(0.03)), LocalEngine(parts)
        state, ratios, failed = init(prior, 4), [], 0
        for _ in range(300):
            state, event = step(method, model, engine, state)
            failed += len(event.refusals) + sum(
                int(r.info.outcome) in RESIDUAL_UNDEFINED for r in event.replies.values()
            )
            ratios.append(float(state.posterior.precision[0] / exact.state.posterior.precision[0]))
        return np.array(ratios), failed

    for step_size in (0.03, 0.0):
        ratios, failed = visited(step_size)
        assert ratios.max() < 1.1
        assert ratios[-1] > 0.5
        assert failed == 0
    ratios, failed = visited(1.0)
    assert ratios.max() > 1.5
    assert failed > 0


@pytest.mark.parametrize("step_size", [-0.1, 1.5, float("nan")])
def test_steps_outside_zero_to_one_are_refused(step_size):
    with pytest.raises(InputError, match="from 0 to 1"):
        MomentMatching(rule=GridQuadrature(), step_size=step_size)
