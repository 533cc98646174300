"""The double loop (Hasenclever et al. 2017) beside its objective written in NumPy, where plain power EP oscillates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import (
    Asynchronous,
    Damped,
    FullGaussian,
    InputError,
    LogDensity,
    MeanFieldGaussian,
    Method,
    Newton,
    Sequential,
    Synchronous,
    federate,
    methods,
    run,
)
from partita.engines import LocalEngine
from partita.expectations import GridQuadrature
from partita.families.factor import Factor
from partita.local.client import Visit, client_update
from partita.local.solvers import AlphaDivergence, MomentMatching, PowerEP
from partita.server.aggregation import DoubleLoop, StochasticLoop
from partita.server.monitor import Monitor
from partita.server.schedules import RandomSubset
from partita.server.state import init
from partita.server.stopping import Status
from partita.storage.checkpoint import Checkpoint
from support.row_each import CLIENTS, COLUMNS, MODEL, PRIOR, ROWS, X, Y, flat, one_row, plain
from support.steps import step


def double_loop(alpha):
    return Method(one_row(alpha), Synchronous(), DoubleLoop(alpha))


def log_mass(shift, precision):
    """A(η) of a mean-field Gaussian."""
    return np.sum(shift**2 / precision - np.log(precision / (2 * np.pi))) / 2


def log_tilted_mass(alpha, k, shift, precision):
    """log ∫ p(y_k | θ)^α exp⟨η, T(θ)⟩ dθ, by the trapezoidal rule over the row's predictor."""
    mean, deviation = X[k] @ (shift / precision), np.sqrt(np.sum(X[k] ** 2 / precision))
    f = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 2001)
    log_likelihood = -np.logaddexp(0, (1 - 2 * Y[k]) * f)
    density = np.exp(alpha * log_likelihood - ((f - mean) / deviation) ** 2 / 2)
    return log_mass(shift, precision) + np.log(density.sum() * (f[1] - f[0]) / (np.sqrt(2 * np.pi) * deviation))


def saddle(alpha, theta, factors):
    """L(θ, λ): η = (shift, precision), one row of `factors` for each client."""
    prior = np.stack([np.zeros(COLUMNS), np.ones(COLUMNS)])
    sites = [log_tilted_mass(alpha, k, *(theta - alpha * factor)) for k, factor in enumerate(factors)]
    return log_mass(*(prior + np.sum(factors, axis=0))) + np.sum(np.array(sites) - log_mass(*theta)) / alpha


def member(natural):
    return MeanFieldGaussian(*map(jnp.asarray, natural))


def moments(q):
    return np.stack(jax.tree.leaves(q.mean_parameters()))


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_answers_give_the_gradients_of_the_saddle_objective(alpha):
    """∂L/∂λ_k = μ(q) − μ_k and ∂L/∂θ = Σ (μ_k − μ(θ)) / α, with μ_k from clients' answers, by central differences."""
    generator = np.random.default_rng(3)
    theta = np.stack([generator.normal(size=COLUMNS), generator.uniform(1, 2, COLUMNS)])
    factors = np.stack([generator.normal(size=(CLIENTS, COLUMNS)), generator.uniform(0, 0.4, (CLIENTS, COLUMNS))], 1)
    held, q = member(theta), member(flat(PRIOR) + factors.sum(axis=0))
    recipe = Method(one_row(alpha, points=256)).recipe(MODEL)
    deltas = [
        client_update(
            recipe, Visit(PRIOR, held, Factor(member(factor), jnp.zeros(())), shard, 0.25, jax.random.key(0))
        ).delta
        for factor, shard in zip(factors, ROWS.shards, strict=True)
    ]
    tilted = [moments(held * delta.natural**alpha) for delta in deltas]

    def slope(direction, of_theta=False):
        ends = [
            saddle(alpha, theta + h * direction, factors) if of_theta else saddle(alpha, theta, factors + h * direction)
            for h in (1e-5, -1e-5)
        ]
        return (ends[0] - ends[1]) / 2e-5

    for direction in generator.normal(size=(5, *factors.shape)):
        expected = sum(np.sum(direction[k] * (moments(q) - tilted[k])) for k in range(CLIENTS))
        assert slope(direction) == pytest.approx(expected, rel=1e-7)
    for direction in generator.normal(size=(3, *theta.shape)):
        expected = np.sum(direction * (sum(tilted) - CLIENTS * moments(held))) / alpha
        assert slope(direction, of_theta=True) == pytest.approx(expected, rel=1e-7)


@pytest.fixture(scope="module", params=[1.0, 0.5])
def path(request):
    """α, and every state of a run of the double loop until its residual is rounding."""
    method, engine = double_loop(request.param), LocalEngine(ROWS)
    states = [init(PRIOR, CLIENTS, 0, method.aggregation)]
    while len(states) < 400 and not states[-1].settled(1e-16):
        states.append(step(method, MODEL, engine, states[-1])[0])
    return request.param, states


def test_it_converges_without_damping_where_plain_power_ep_oscillates(path):
    alpha, states = path
    residual = plain(alpha, 1.0, 200).history["residual"]
    assert np.min(residual) > 0.1
    assert np.median(residual[-50:]) > 1
    damped = plain(alpha, 1 / CLIENTS, 400)
    assert damped.status is Status.CONVERGED
    assert states[-1].settled(1e-15)
    np.testing.assert_allclose(flat(states[-1].posterior), flat(damped.state.posterior), rtol=1e-6, atol=1e-6)
    product = flat(PRIOR) + sum(flat(factor.natural) for factor in states[-1].factors)
    np.testing.assert_allclose(product, flat(states[-1].posterior), rtol=1e-6, atol=1e-6)
    for found, expected in zip(states[-1].factors, damped.state.factors, strict=True):
        np.testing.assert_allclose(flat(found.natural), flat(expected.natural), rtol=1e-6, atol=1e-6)
    assert evidence(alpha, states[-1]) == pytest.approx(damped.log_evidence, abs=1e-12)


def evidence(alpha, state):
    return DoubleLoop(alpha).log_evidence(PRIOR, state.iterate)


def test_the_evidence_error_is_at_most_three_times_the_kl_to_the_fixed_point(path):
    """The evidence is stationary at a fixed point, and scales go with factors to first order."""
    alpha, states = path
    off = [evidence(alpha, state) - evidence(alpha, states[-1]) for state in states[1:-1]]
    divergence = [float(states[-1].posterior.kl(state.posterior)) for state in states[1:-1]]
    rounding = 1e-12
    assert np.all(np.abs(off) < 3 * np.array(divergence) + rounding)
    assert np.max(np.abs(off)) > 0.1


def test_the_outer_objective_never_falls_and_the_inner_one_never_rises(path):
    alpha, states = path
    outer, inner, promised = [], [], []
    for before, after in itertools.pairwise(states):
        if not np.array_equal(flat(before.posterior), flat(after.posterior)):
            factors = np.stack([flat(factor.natural) for factor in before.factors])
            outer.append(saddle(alpha, flat(before.posterior), factors))
            q = member(flat(PRIOR) + factors.sum(axis=0))
            promised.append(CLIENTS / alpha * float(q.kl(before.posterior)))
        elif before.memory.slope < 0:
            theta = flat(after.posterior)
            was, now = (saddle(alpha, theta, flat(state.memory.base, axis=1)) for state in (before, after))
            inner.append(now - was)
    assert len(outer) > 50
    assert outer[-1] > outer[0] + 0.1
    rounding = 1e-12
    assert np.min(np.diff(outer)) > -rounding
    # as much as the inner loop, which ends when a sixteenth is left, allows to be seen
    assert np.all(np.diff(outer) > 0.8 * np.array(promised[:-1]) - rounding)
    assert np.max(inner) < rounding
    assert np.min(inner) < -1e-3


@pytest.mark.parametrize("beyond", [-0.2, 0.2])
def test_a_step_is_shortened_if_the_slope_at_its_end_is_positive(beyond):
    """Clients answer with the moments of q moved along, or against, the step that was just tried."""
    aggregation, prior = DoubleLoop(1.0), MeanFieldGaussian.standard_normal(2)
    first = {0: Factor(member([[0.3, 0.1], [0.2, 0.1]]), jnp.zeros(())), 1: Factor.one(prior)}
    tried = aggregation.update(aggregation.init(prior, 2), first, lambda q: 0.0).iterate
    np.testing.assert_array_equal(flat(tried.posterior), flat(prior))
    q = prior * tried.factors[0].natural * tried.factors[1].natural
    steps = [tried.factors[k].natural for k in (0, 1)]
    answers = {k: Factor(q * steps[k] ** -beyond / prior, jnp.zeros(())) for k in (0, 1)}
    slope = sum(np.sum(flat(steps[k]) * (moments(q) - moments(q * steps[k] ** -beyond))) for k in (0, 1))
    assert np.sign(slope) == np.sign(beyond)
    after = aggregation.update(tried, answers, lambda q: 0.0).iterate
    if beyond < 0:
        np.testing.assert_allclose(flat(after.memory.base, axis=1), [flat(step) for step in steps], rtol=1e-14)
    else:
        shorter = 0.9 / (1 - slope / float(tried.memory.slope))
        assert shorter < 0.9
        np.testing.assert_array_equal(flat(after.memory.base), 0)
        for k in (0, 1):
            np.testing.assert_allclose(flat(after.factors[k].natural), shorter * flat(steps[k]), rtol=1e-12)


def clutter(theta, y):
    """A measurement that may be of something else altogether (Minka 2001): no log-concave likelihood."""
    other = -(y**2) / 20 - jnp.log(10) / 2
    return jnp.logaddexp(-((y - theta[0]) ** 2) / 2, other) - jnp.log(2)


def test_it_converges_to_damped_power_eps_solution_for_bimodal_tilted_densities():
    generator = np.random.default_rng(1)
    outliers = generator.uniform(size=12) >= 0.5
    y = np.where(outliers, generator.normal(2.0, 1.0, 12), generator.normal(0, np.sqrt(10), 12))
    parts, prior = federate(np.split(y, 3)), FullGaussian.standard_normal(1, 3.0)
    ends, evidences = [], []
    for aggregation in (DoubleLoop(1.0), Damped(0.5)):
        method = Method(MomentMatching(1.0, GridQuadrature(64)), Synchronous(), aggregation)
        result = run(
            method,
            LogDensity(clutter, expectation=GridQuadrature(20)),
            prior,
            parts,
            rounds=300,
            tolerance=1e-15,
            monitor=Monitor(every=0),
        )
        assert result.status is Status.CONVERGED
        ends.append(result.state.posterior)
        evidences.append(result.log_evidence)
    assert evidences[0] == pytest.approx(evidences[1], abs=1e-6)
    assert ends[0].mean[0] == pytest.approx(float(ends[1].mean[0]), abs=1e-6)
    assert ends[0].sd[0] == pytest.approx(float(ends[1].sd[0]), abs=1e-6)


def test_a_resumed_run_is_bitwise_reproducible(tmp_path):
    settings = {"tolerance": None, "monitor": Monitor(every=0)}
    whole = run(double_loop(1.0), MODEL, PRIOR, ROWS, rounds=8, **settings)
    for rounds in (3, 8):
        parts = run(
            double_loop(1.0), MODEL, PRIOR, ROWS, rounds=rounds, store=Checkpoint(tmp_path / "run.npz"), **settings
        )
    np.testing.assert_array_equal(flat(parts.state.posterior), flat(whole.state.posterior))
    np.testing.assert_array_equal(parts.state.memory.base.precision, whole.state.memory.base.precision)


def test_a_grid_without_moments_does_not_count_as_converged():
    """Clients that stay where they are since they know no better agree with the posterior, but do not say so."""
    model = LogDensity(lambda theta, y: -1e8 * jnp.sum((theta - y) ** 2))
    prior, parts = FullGaussian.standard_normal(1), federate([np.array([3.0])] * 2)
    result = run(methods.double_loop(1.0), model, prior, parts, rounds=3, monitor=Monitor(every=0))
    assert result.status is not Status.CONVERGED
    assert np.isinf(result.history["residual"]).all()


def test_a_round_with_a_missing_client_or_without_moments_changes_nothing():
    aggregation = DoubleLoop(1.0)
    iterate = aggregation.init(PRIOR, 2)
    good = Factor.one(PRIOR)
    taken = aggregation.update(iterate, {1: good}, lambda q: 0.0)
    assert taken.iterate is iterate
    assert taken.damping == 0
    assert "all other clients" in taken.refusals[1].sentence
    bad = Factor(PRIOR**-2.0, jnp.zeros(()))
    taken = aggregation.update(iterate, {0: good, 1: bad}, lambda q: 0.0)
    assert taken.iterate is iterate
    assert list(taken.refusals) == [1]
    assert "improper" in taken.refusals[1].sentence


@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.5, float("nan")])
def test_powers_outside_zero_to_one_are_refused(alpha):
    for make in (DoubleLoop, methods.double_loop):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            make(alpha)


@pytest.mark.parametrize("aggregation", [DoubleLoop(0.5), StochasticLoop(0.5)], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (PowerEP(0.4, max_steps=1, in_turn=False), "double loop's α is 0.5 and the solver's 0.4"),
        (MomentMatching(1.0), "double loop's α is 0.5 and the solver's 1.0"),
        (PowerEP(0.5), "use MomentMatching"),
        (PowerEP(0.5, max_steps=1), "use MomentMatching"),
        (PowerEP(0.5, in_turn=False), "use MomentMatching"),
        (MomentMatching(0.5, step_size=0.5), "use MomentMatching"),
        (AlphaDivergence(alpha=0.5), "use MomentMatching"),
        (Newton(), "use MomentMatching"),
    ],
)
def test_solvers_without_the_required_moments_are_refused_before_the_run(aggregation, solver, message):
    with pytest.raises(InputError, match=message):
        run(Method(solver, Synchronous(), aggregation), MODEL, PRIOR, ROWS)


@pytest.mark.parametrize("schedule", [Sequential(), RandomSubset(CLIENTS - 1), Asynchronous()])
def test_non_synchronous_schedules_are_refused_before_the_run(schedule):
    method = Method(one_row(0.5), schedule, DoubleLoop(0.5))
    with pytest.raises(InputError, match="use the synchronous schedule"):
        run(method, MODEL, PRIOR, ROWS)
    Method(one_row(0.5), schedule, StochasticLoop(0.5)).check(PRIOR, CLIENTS)


def test_any_schedule_serves_a_single_client():
    for schedule in (Sequential(), RandomSubset(1), Asynchronous()):
        Method(one_row(0.5), schedule, DoubleLoop(0.5)).check(PRIOR, 1)
