"""Limits and bounds that the paper names in passing, each beside NumPy or in the rate at which it is approached."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_ndtr

from partita import (
    Damped,
    FullGaussian,
    Gradient,
    LogDensity,
    LogisticRegression,
    MeanFieldGaussian,
    Method,
    Newton,
    Sequential,
    Synchronous,
    Table,
    federate,
    methods,
    run,
)
from partita.expectations import GaussHermite, GridQuadrature, MonteCarlo
from partita.families import Product
from partita.local.solvers import AlphaDivergence, FixedPoint, MomentMatching
from partita.models import ProbitRegression
from partita.server.aggregation import DoubleLoop
from partita.server.monitor import Monitor
from support import reference, row_each
from support.scaling import order
from support.trajectories import assert_equal, natural, shards, trajectory

ALPHAS = (0.1, 0.9)
QUIET = {"monitor": Monitor(every=0)}
X, Y = reference.logistic_data(rows=12, columns=2)
PRIOR = FullGaussian.standard_normal(2)


def matched(mean, covariance, x, y):
    """Mean and covariance of N(θ; mean, covariance) · Φ((2y − 1) xᵀθ)."""
    sign, spread = 2 * y - 1, covariance @ x
    z = sign * (x @ mean) / np.sqrt(1 + x @ spread)
    ratio = np.exp(-(z**2) / 2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
    mean = mean + sign * ratio / np.sqrt(1 + x @ spread) * spread
    return mean, covariance - ratio * (z + ratio) / (1 + x @ spread) * np.outer(spread, spread)


def test_assumed_density_filtering_matches_row_after_row():
    """In NumPy; it is EP's first pass, as streaming VB is PVI's, and a pass of EP with deletion comes after."""
    parts = shards(reference.divide(X, Y, [5, 7]))
    states = trajectory(methods.assumed_density_filtering(), ProbitRegression(), PRIOR, parts, 2)
    mean, covariance = np.zeros(2), np.eye(2)
    for state, (x, y) in zip(states[1:], reference.divide(X, Y, [5, 7]), strict=True):
        for row in zip(x, y, strict=True):
            mean, covariance = matched(mean, covariance, *row)
        precision = np.linalg.inv(covariance)
        assert_equal(state.posterior, (precision @ mean, precision), 1e-9)
    rows = shards(reference.divide(X, Y, [1] * 12))
    once, twice = (
        trajectory(methods.expectation_propagation(passes=1), ProbitRegression(), PRIOR, rows, steps)[-1].posterior
        for steps in (12, 24)
    )
    assert_equal(once, natural(states[-1].posterior), 1e-9)
    assert np.abs(natural(twice)[0] - natural(once)[0]).max() > 1e-3


def test_eps_evidence_can_exceed_log_p_of_y_where_the_free_energy_cannot():
    """Two clients of one measurement each, which may be of something else altogether (the clutter problem)."""
    y = np.array([-4.0, 4.0])

    def clutter(theta, value):
        other = -(value**2) / 20 - jnp.log(10) / 2
        return jnp.logaddexp(-((value - theta[0]) ** 2) / 2, other) - jnp.log(2)

    prior, model = FullGaussian.standard_normal(1, 5.0), LogDensity(clutter, expectation=GridQuadrature(80))
    parts = federate([y[:1], y[1:]])
    theta = np.linspace(-60, 60, 40_001)
    likelihood = sum(np.asarray(jax.vmap(lambda t, v=v: clutter(t[None], v))(theta)) for v in y)
    exact = np.log(np.trapezoid(np.exp(likelihood - theta**2 / 50) / np.sqrt(50 * np.pi), theta))
    ep = run(Method(MomentMatching(1.0, GridQuadrature(80)), aggregation=Damped(0.5)), model, prior, parts, **QUIET)
    vi = run(Method(FixedPoint(0.5)), model, prior, parts)
    assert ep.log_evidence > exact + 0.01
    assert vi.free_energy < exact


def test_one_inner_iteration_of_the_double_loop_is_power_ep():
    """The loops of Heskes and Zoeter in NumPy, on a grid of one parameter.

    Inner: t_k ← t_k · (matched_k / q)^(1/α), damped, with θ held; outer: θ ← q. Cut short that is `Damped`.
    """
    alpha, rows = 0.5, reference.divide(X[:, :1], Y, [5, 7])
    theta, _ = reference.grid(1, 12.0, 4001)
    prior = np.zeros(1), np.ones((1, 1))
    parts, model, one = shards(rows), LogisticRegression(), FullGaussian.standard_normal(1)
    likelihoods = [reference.log_likelihood(theta, x, y) for x, y in rows]

    def target(held, factor, likelihood):
        """The member with the moments of θ · (p(y_k) / t_k)^α."""
        logs = reference.log_factor(held, theta) + alpha * (likelihood - reference.log_factor(factor, theta))
        mass = np.exp(logs - logs.max())
        mass /= mass.sum()
        mean = mass @ theta[:, 0]
        variance = mass @ (theta[:, 0] - mean) ** 2
        return np.array([mean / variance]), np.array([[1 / variance]])

    def loops(outer, inner, rate):
        held, factors = prior, [reference.power(prior, 0.0)] * 2
        path = [held]
        for _ in range(outer):
            for _ in range(inner):
                q = reference.product(prior, *factors)
                tilted = [target(held, f, like) for f, like in zip(factors, likelihoods, strict=True)]
                away = [reference.product(t, reference.power(q, -1.0)) for t in tilted]
                factors = [reference.product(f, reference.power(a, rate)) for f, a in zip(factors, away, strict=True)]
            held = reference.product(prior, *factors)
            path.append(held)
        return path

    plain = Method(MomentMatching(alpha, GridQuadrature(60)), Synchronous(), Damped(0.5))
    cut = loops(4, 1, 0.5 / alpha)
    for state, eta in zip(trajectory(plain, model, one, parts, 4), cut, strict=True):
        assert_equal(state.posterior, eta, 1e-8)
    whole = loops(110, 30, 0.4)[-1]
    double = run(methods.double_loop(alpha, 60), model, one, parts, rounds=300, tolerance=1e-18, **QUIET)
    assert_equal(double.state.posterior, whole, 1e-6)
    assert np.abs(loops(4, 30, 0.4)[4][0] - cut[4][0]).max() > 1e-4


@pytest.mark.slow
def test_the_double_loop_becomes_a_convergent_pvi_as_alpha_vanishes():
    """Six parameters: its outer step becomes global VI's damped fixed point with ρ = α / (M + α), and F never falls.

    To first order tilted densities are θ · (∇_μ ell_k / t_k)^α; they are one, and q, where q / θ = (target / θ)^ρ.
    Undamped synchronous PVI on the same rows does not come to rest.
    """
    model, prior, rows = row_each.MODEL, row_each.PRIOR, row_each.ROWS
    data, start = (row_each.X, row_each.Y, reference.logistic), natural(prior)
    alphas, worst = 10.0 ** np.array([-2.0, -2.5, -3.0]), []
    for alpha in alphas:
        method = Method(row_each.one_row(alpha, points=96), Synchronous(), DoubleLoop(alpha))
        held = [natural(state.posterior) for state in trajectory(method, model, prior, rows, 12)]
        steps = [(old, new) for old, new in itertools.pairwise(held) if np.any(old[0] != new[0])]
        assert len(steps) >= 4
        rate, misses = alpha / (row_each.CLIENTS + alpha), []
        for old, new in steps:
            expected = np.concatenate(reference.damped_fixed_point(old, start, *data, rate))
            gone = expected - np.concatenate(old)
            misses.append(np.linalg.norm(np.concatenate(new) - expected) / np.linalg.norm(gone))
        worst.append(max(misses))
        assert np.diff([reference.free_energy(eta, start, *data) for eta in held]).min() >= 0
    np.testing.assert_allclose(order(alphas, worst), 1, atol=0.15)
    undamped = run(methods.synchronous(damping=1.0), model, prior, rows, rounds=40, tolerance=1e-9, **QUIET)
    assert undamped.history["residual"][-5:].min() > 0.1


def test_truncated_visits_run_to_the_end_reach_the_same_fixed_point():
    """However far a visit goes, whatever it goes by, and whoever comes when."""
    parts = shards(reference.divide(X, Y, [3, 4, 5]))
    ascent = Gradient(optax.sgd, 0.05, max_steps=3, tolerance=None)
    visits = {
        "one step": (FixedPoint(1.0, max_steps=1, backtrack=False), Synchronous(), 0.5),
        "three steps of Newton": (Newton(max_steps=3), Sequential(), 1.0),
        "three plain gradient steps": (ascent, Sequential(), 1.0),
        "to the end": (Newton(tolerance=1e-20), Synchronous(), 0.4),
    }
    best = reference.solve_full(natural(PRIOR), X, Y, reference.logistic)
    for solver, schedule, damping in visits.values():
        method = Method(solver, schedule, Damped(damping))
        found = run(method, LogisticRegression(), PRIOR, parts, rounds=100, tolerance=None, **QUIET)
        assert_equal(found.state.posterior, best, 1e-6)


def test_biased_global_vi_takes_several_steps_on_the_rows_of_one_client_in_place_of_all():
    """In NumPy, by plain gradient ascent: it fits the client that came last."""
    prior = MeanFieldGaussian.standard_normal(2)
    clients, rate, steps = reference.divide(X, Y, [4, 8]), 0.02, 3
    ascent = Gradient(optax.sgd, rate, max_steps=steps, tolerance=None, coordinates="natural", keep_best=False)
    states = trajectory(methods.biased_global_vi(ascent), LogisticRegression(), prior, shards(clients), 6)
    eta = natural(prior)
    for visit, state in enumerate(states):
        assert_equal(state.posterior, eta, 1e-11)
        assert len({id(factor) for factor in state.factors}) == 1
        x, y = clients[visit % 2]
        times = 12 / len(y)

        def rows(mean, variance, y, times=times):
            return tuple(times * part for part in reference.logistic(mean, variance, y))

        for _ in range(steps):
            eta = reference.product(eta, reference.power(reference.gradient(eta, natural(prior), x, y, rows), rate))


@pytest.fixture(scope="module")
def alpha_runs():
    """Two clients whose α-divergences are minimised in turn, and the same by matching moments."""
    grid, parts = GridQuadrature(16), federate([Table(X[:5], Y[:5]), Table(X[5:], Y[5:])])
    model, found = LogisticRegression(GaussHermite(32)), {}
    for alpha in ALPHAS:
        for solver in (AlphaDivergence(alpha=alpha, rule=grid, tolerance=1e-15), MomentMatching(alpha, grid)):
            method = Method(solver, Sequential())
            found[alpha, type(solver)] = run(method, model, PRIOR, parts, rounds=8, tolerance=None, **QUIET)
    return parts, model, found


def test_clients_that_minimise_alpha_divergences_end_where_power_ep_does(alpha_runs):
    """`alg:pep_alpha` with clients as sites is `alg:pep` with clients as sites, for each α."""
    _, _, found = alpha_runs
    for alpha in ALPHAS:
        by_gradients, by_moments = (found[alpha, kind] for kind in (AlphaDivergence, MomentMatching))
        assert_equal(by_gradients.state.posterior, natural(by_moments.state.posterior), 1e-4)
        evidence = [each.history.rows[-1]["log_evidence"] for each in (by_gradients, by_moments)]
        assert evidence[0] == pytest.approx(evidence[1], abs=1e-5)


def test_in_a_federated_run_the_evidence_and_the_spread_grow_with_alpha(alpha_runs):
    """Beside the exact posterior on a grid: PVI's sds are too small, and power EP's nearer, the larger α is."""
    parts, model, found = alpha_runs
    theta, volume = reference.grid(2, 8.0, 241)
    log_joint = reference.log_likelihood(theta, X, Y) + reference.log_density(natural(PRIOR), theta)
    exact = reference.log_integral(log_joint, volume)
    mass = np.exp(log_joint - exact) * volume
    sd = np.sqrt(mass @ (theta - mass @ theta) ** 2)
    pvi = run(methods.sequential(), model, PRIOR, parts)
    runs = [found[alpha, AlphaDivergence] for alpha in ALPHAS]
    evidence = [pvi.free_energy, *(each.history.rows[-1]["log_evidence"] for each in runs)]
    spread = [np.asarray(each.posterior.q.sd) for each in (pvi, *runs)]
    assert np.all(np.diff(evidence) > 0)
    assert np.all(np.diff(spread, axis=0) > 0)
    assert np.abs(evidence[-1] - exact) < np.abs(evidence[0] - exact) / 2
    assert np.all(np.abs(spread[-1] - sd) < np.abs(spread[0] - sd) / 2)


def test_random_subsets_of_clients_end_at_the_same_fixed_point():
    """Stochastic synchronous PVI (`sec:conclusion`)."""
    parts = shards(reference.divide(X, Y, [2, 3, 3, 4]))
    found = run(
        methods.stochastic_synchronous(2), LogisticRegression(), PRIOR, parts, tolerance=1e-14, rounds=200, **QUIET
    )
    best = reference.solve_full(natural(PRIOR), X, Y, reference.logistic)
    assert_equal(found.state.posterior, best, 1e-5)
    assert found.history.rows[0]["communications"] == 2


@pytest.mark.slow
def test_the_fewer_clients_a_round_the_fewer_communications():
    """How stochastic synchronous PVI pays: to a tenth of a nat below the optimum, eight clients, ten seeds.

    With ρ = 1 over their number rounds are hardly fewer, either: 11.0 of one client, 11.2 of two.
    """
    x, y = reference.logistic_data(rows=40, columns=2)
    parts = shards(reference.divide(x, y, [5] * 8))
    best = reference.free_energy(
        reference.solve_full(natural(PRIOR), x, y, reference.logistic), natural(PRIOR), x, y, reference.logistic
    )
    communications = []
    for participants in (1, 2, 8):
        needed = []
        for seed in range(10):
            found = run(
                methods.stochastic_synchronous(participants),
                LogisticRegression(),
                PRIOR,
                parts,
                rounds=12,
                tolerance=None,
                seed=seed,
            )
            reached = [value > best - 0.1 for value in found.history["free_energy"]]
            assert any(reached)
            needed.append(reached.index(True) + 1)
        communications.append(participants * np.mean(needed))
    assert communications[0] < communications[1] < communications[2]


def test_a_factor_is_one_in_variables_that_its_rows_do_not_touch():
    """Local factors may touch only some of the variables (`sec:local`)."""
    prior = Product(slope=FullGaussian.standard_normal(1), level=FullGaussian.standard_normal(2))

    def density(theta, row):
        return -0.5 * jnp.square(row[3] - row[0] * theta["slope"][0] - row[1:3] @ theta["level"])

    rows = np.random.default_rng(0).normal(size=(2, 4, 4))
    rows[0, :, 1:3] = 0
    model = LogDensity(density, expectation=MonteCarlo(64))
    found = run(
        Method(FixedPoint(max_steps=1, backtrack=False), Sequential()),
        model,
        prior,
        federate(list(rows)),
        rounds=2,
        **QUIET,
    )
    mine, other = (factor.natural for factor in found.state.factors)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(mine["level"]))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves((mine["slope"], other)))
