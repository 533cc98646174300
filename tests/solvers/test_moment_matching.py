import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import (
    Damped,
    FullGaussian,
    LogDensity,
    LogisticRegression,
    MeanFieldGaussian,
    Method,
    Sequential,
    Status,
    Table,
    federate,
    run,
)
from partita.errors import InputError
from partita.expectations import GridQuadrature, MonteCarlo
from partita.families import Product
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import FixedPoint, MomentMatching, Outcome, PowerEP
from partita.server.monitor import Monitor
from support.small_problems import FAMILIES, KEY, X, Y, problem, solve

ROWS = Table(X[:6, :2], Y[:6])
GRID = GridQuadrature(48)


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_clients_of_one_row_each_converge_to_the_power_ep_solution_by_sites(alpha):
    """Two ways to `alg:pep`: over θ and over the predictor."""
    prior, model = FullGaussian.standard_normal(2, 1.5), LogisticRegression()
    parts = federate([Table(ROWS.x[n : n + 1], ROWS.y[n : n + 1]) for n in range(6)])
    method = Method(MomentMatching(alpha, GRID))
    result = run(method, model, prior, parts, tolerance=None, rounds=25)
    sites = solve(PowerEP(alpha, tolerance=1e-20), problem(prior, model=model, x=ROWS.x, y=ROWS.y), KEY)
    np.testing.assert_allclose(result.state.posterior.precision, sites.q.precision, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(result.state.posterior.mean, sites.q.mean, rtol=1e-7)
    assert result.history.rows[-1]["log_evidence"] == pytest.approx(float(sites.free_energy), abs=1e-7)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_the_moments_matched_are_those_of_the_tilted_density_of_all_rows(family, alpha):
    """One step of `alg:pep` from a posterior with a factor, by sums over a fine grid in NumPy."""
    prior = family.standard_normal(2)
    start = (
        family.from_mean_sd(jnp.array([0.3, -0.2]), 0.6)
        if family is MeanFieldGaussian
        else family.from_mean_covariance(jnp.array([0.3, -0.2]), np.array([[0.4, 0.1], [0.1, 0.3]]))
    )
    found = solve(MomentMatching(alpha, GRID), problem(prior, start, x=ROWS.x, y=ROWS.y), KEY)
    axis = np.linspace(-8, 8, 401)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_start, log_prior = log_density(start, theta), log_density(prior, theta)
    log_likelihood = -np.logaddexp(0, (theta @ ROWS.x.T) * (1 - 2 * ROWS.y)).sum(axis=1)
    # the client's factor is start / context, both normalised
    log_tilted = log_start + alpha * (log_likelihood - (log_start - log_prior))
    mass = np.exp(log_tilted)
    volume = (axis[1] - axis[0]) ** 2
    log_z = np.log(mass.sum() * volume)
    mass /= mass.sum()
    mean = mass @ theta
    covariance = (theta - mean).T @ ((theta - mean) * mass[:, None])
    if family is MeanFieldGaussian:
        matched = family.from_mean_sd(jnp.asarray(mean), jnp.sqrt(jnp.asarray(np.diagonal(covariance))))
    else:
        matched = family.from_mean_covariance(jnp.asarray(mean), covariance)
    expected = start ** (1 - 1 / alpha) * matched ** (1 / alpha)
    for a, b in zip(jax.tree.leaves(found.q), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)
    whole = Factor.of(start) ** (1 - 1 / alpha) * (Factor.of(matched) * Factor(matched.one(), jnp.asarray(log_z))) ** (
        1 / alpha
    )
    assert found.free_energy == pytest.approx(float(whole.log_scale + expected.log_normaliser()), abs=1e-8)


def mixture(theta, y):
    """log of a density with two bumps, of which the data do not say which they come from."""
    return jnp.logaddexp(-((y - theta[0]) ** 2) / 2, -((y + 1 - theta[0] / 2) ** 2) - 0.3)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_as_alpha_vanishes_it_is_the_damped_fixed_point_for_a_mixture(family):
    """`prop:pep-fp`, step by step with damping: the difference is a multiple of α over four decades."""
    model = LogDensity(mixture, expectation=GridQuadrature(40))
    prior = family.standard_normal(1)
    y = np.random.default_rng(2).normal(0.8, 1.2, 9)
    parts = federate([y[:4], y[4:]])

    def posterior(solver):
        method = Method(solver, Sequential(), Damped(0.3))
        return run(method, model, prior, parts, rounds=2).state.posterior

    limit = posterior(FixedPoint(max_steps=1, backtrack=False))
    alphas = 10.0 ** -np.arange(2, 7)
    apart = []
    for alpha in alphas:
        q = posterior(MomentMatching(alpha, GridQuadrature(40)))
        pairs = zip(jax.tree.leaves(q), jax.tree.leaves(limit), strict=True)
        apart.append(np.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in pairs)))
    slopes = np.diff(np.log10(apart)) / np.diff(np.log10(alphas))
    np.testing.assert_allclose(slopes, 1, atol=0.02)


def test_monte_carlo_agrees_with_the_grid():
    prior = MeanFieldGaussian.standard_normal(2)
    task = problem(prior, x=ROWS.x, y=ROWS.y)
    exact = solve(MomentMatching(1.0, GRID), task, KEY)
    drawn = solve(MomentMatching(1.0, MonteCarlo(20_000), max_steps=2), task, KEY)
    # moments of 20,000 weighted draws: about 1% of a standard deviation
    np.testing.assert_allclose(drawn.q.mean, exact.q.mean, atol=0.03)
    np.testing.assert_allclose(drawn.q.sd, exact.q.sd, rtol=0.03)
    assert drawn.free_energy == pytest.approx(float(exact.free_energy), abs=0.03)


@pytest.mark.parametrize(
    ("sharpness", "power"), [(0.1, -1.0), (1e8, 1.0)], ids=["improper", "narrower than the grid sees"]
)
def test_a_tilted_density_without_moments_is_reported_and_changes_nothing(sharpness, power):
    start = MeanFieldGaussian.standard_normal(1)
    shard, one = federate([np.array([3.0])]).shards[0], jnp.ones(())
    model = LogDensity(lambda theta, y: -sharpness * jnp.sum((theta - y) ** 2))
    task = Problem(model, shard, Factor(start**power, jnp.zeros(())), one, start, one)
    found = solve(MomentMatching(), task, KEY)
    assert Outcome(int(found.outcome)) == Outcome.NO_MOMENTS
    for a, b in zip(jax.tree.leaves(found.q), jax.tree.leaves(start), strict=True):
        np.testing.assert_array_equal(a, b)
    assert found.free_energy == 0


def test_a_run_in_which_nobody_finds_moments_ends_and_says_so():
    prior = MeanFieldGaussian.standard_normal(1)
    model = LogDensity(lambda theta, y: 3 * jnp.sum(theta**2))
    parts = federate([np.array([3.0]), np.array([1.0])])
    result = run(Method(MomentMatching()), model, prior, parts, rounds=50, monitor=Monitor(every=0))
    assert result.status is Status.IMPROPER
    assert "No client found the moments" in result.message
    assert Outcome.NO_MOMENTS.sentence in result.message
    assert result.state.answers == 2


def test_grids_are_refused_for_other_families_and_many_parameters():
    with pytest.raises(InputError, match="at most 3 parameters"):
        GridQuadrature().nodes(FullGaussian.standard_normal(4), KEY)
    with pytest.raises(InputError, match="needs a Gaussian"):
        GridQuadrature().nodes(Product(a=FullGaussian.standard_normal(1)), KEY)
    with pytest.raises(InputError, match="above 0 and at most 1"):
        MomentMatching(2.0)
    with pytest.raises(InputError, match="at least 2 samples, not 1"):
        MomentMatching(rule=MonteCarlo(1))


def log_density(q, theta):
    mean, variance = (np.asarray(part) for part in q.standard())
    covariance = np.diag(variance) if variance.ndim == 1 else variance
    away = theta - mean
    quadratic = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
    return -quadratic / 2 - np.linalg.slogdet(2 * np.pi * covariance)[1] / 2
