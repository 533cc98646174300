"""A mixture of Gaussians, against variational EM on the pooled rows in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, logsumexp

import partita as pt
from partita.checks import check_model

GENERATOR = np.random.default_rng(0)
K, D, N = 3, 2, 120
CENTRES = np.array([[-3.0, 0.0], [2.0, 3.0], [3.0, -2.0]])
LABELS = GENERATOR.choice(K, N, p=[0.5, 0.3, 0.2])
X = CENTRES[LABELS] + GENERATOR.normal(size=(N, D)) * [[0.8, 1.2]]
PARTS = pt.federate(np.split(X, [10, 25, 50, 85]), buckets=1)
ALPHA, SCALE, SHAPE, RATE = 1.5, 5.0, 2.0, 1.0
MODEL = pt.models.GaussianMixture()


def member(alpha, mean, variance, shape, rate):
    return pt.families.Product(
        weights=pt.families.Dirichlet.from_concentration(alpha),
        means=pt.MeanFieldGaussian.from_mean_sd(mean, np.sqrt(variance)),
        precisions=pt.families.Gamma.from_shape_rate(shape, rate),
    )


ONES = np.ones((K, D))
PRIOR = member(ALPHA * np.ones(K), 0 * ONES, SCALE**2 * ONES, SHAPE * ONES, RATE * ONES)
FIRST = (ALPHA * np.ones(K), CENTRES + 0.5, 0.25 * ONES, SHAPE * ONES, RATE * ONES)
START = member(*FIRST)
EXACT = pt.solvers.FixedPoint(max_steps=300, tolerance=1e-22)


def variational_em(start, sweeps=3000):
    """α, mean, variance, shape and rate of the mean-field optimum, each in turn given the others."""
    alpha, mean, variance, shape, rate = start
    for _ in range(sweeps):
        tau, square = shape / rate, (X[:, None] - mean) ** 2 + variance
        log_r = digamma(alpha) - digamma(alpha.sum())
        log_r = log_r + np.sum(digamma(shape) - np.log(rate) - np.log(2 * np.pi) - tau * square, axis=-1) / 2
        r = np.exp(log_r - logsumexp(log_r, axis=1, keepdims=True))
        counts = r.sum(0)[:, None]
        alpha = ALPHA + counts[:, 0]
        variance = 1 / (SCALE**-2 + tau * counts)
        mean = variance * tau * (r.T @ X)
        shape = SHAPE + counts / 2 * ONES
        rate = RATE + np.einsum("nk,nkd->kd", r, (X[:, None] - mean) ** 2 + variance) / 2
    return alpha, mean, variance, shape, rate


def parameters(q):
    precisions = q["precisions"]
    return q["weights"].concentration, *q["means"].standard(), precisions.shape, precisions.rate


def test_contract():
    check_model(MODEL, START, jnp.asarray(X[:6]))


def test_the_bound_is_the_best_over_all_assignments():
    """No law of a row's latent variable gives more, and that of the responsibilities as much."""
    joint = np.asarray(MODEL.expected_joint_log_densities(START, jnp.asarray(X)))
    bound = np.asarray(MODEL.expectation.rows(MODEL, START, jnp.asarray(X), jax.random.key(0)))
    best = np.asarray(MODEL.responsibilities(START, jnp.asarray(X)))
    for r in (*np.random.default_rng(1).dirichlet(np.ones(K), size=(20, N)), 0.99 * best + 0.01 / K):
        assert (np.sum(r * (joint - np.log(r)), axis=1) <= bound + 1e-12).all()
    entropy = -np.sum(np.where(best > 0, best * np.log(np.where(best > 0, best, 1)), 0), axis=1)
    np.testing.assert_allclose(np.sum(best * joint, axis=1) + entropy, bound, rtol=1e-12)


def test_the_natural_gradient_holds_the_expected_statistics():
    """The envelope theorem: the factor of one row is (r_k; r_k τ̄ x, r_k τ̄; r_k/2, r_k ((x − m)² + v)/2)."""
    row = jnp.asarray(X[:1])
    factor = jax.jit(lambda q: q.natural_gradient(lambda s: MODEL.ell(s, row, jnp.ones(1), jax.random.key(0))))(START)
    r = np.asarray(MODEL.responsibilities(START, row))[0][:, None]
    _, mean, variance, shape, rate = FIRST
    np.testing.assert_allclose(factor["weights"].exponent, r[:, 0], atol=1e-12)
    np.testing.assert_allclose(factor["means"].precision_mean, r * shape / rate * X[0], atol=1e-12)
    np.testing.assert_allclose(factor["means"].precision, r * shape / rate * ONES, atol=1e-12)
    np.testing.assert_allclose(factor["precisions"].exponent, r / 2 * ONES, atol=1e-12)
    np.testing.assert_allclose(factor["precisions"].rate, r * ((X[0] - mean) ** 2 + variance) / 2, atol=1e-12)


METHODS = {
    "sequential": (pt.methods.sequential(EXACT, start=START), 30),
    "synchronous": (pt.methods.synchronous(EXACT, damping=0.4, start=START), 80),
}


@pytest.mark.parametrize("schedule", ["sequential", pytest.param("synchronous", marks=pytest.mark.slow)])
def test_pvi_is_variational_em_on_the_pooled_rows(schedule):
    method, rounds = METHODS[schedule]
    result = pt.run(method, MODEL, PRIOR, PARTS, rounds=rounds, tolerance=None)
    assert not result.history.refusals
    for found, expected in zip(parameters(result.posterior.q), variational_em(FIRST), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_free_energy_never_falls_with_backtracking():
    """It may without: in the second pass of the sequential run above one step loses 0.011 of 492 nats.

    A client climbs its own free energy, in which the others' assignments are those of their last visit; that of all
    rows, with every assignment at its best, is another function, and PVI has none that always rises.
    """
    method = pt.methods.sequential(EXACT, backtracking=True, start=START)
    result = pt.run(method, MODEL, PRIOR, PARTS, rounds=6, tolerance=1e-8)
    free_energy = np.asarray(result.history["free_energy"])
    assert np.diff(free_energy).min() > -1e-12 * abs(result.free_energy)  # rounding of a sum over rows
    np.testing.assert_allclose(parameters(result.posterior.q)[1], variational_em(FIRST)[1], rtol=1e-3)


def test_components_that_are_alike_stay_alike():
    q = pt.run(pt.methods.sequential(EXACT, start=PRIOR), MODEL, PRIOR, PARTS, rounds=1).posterior.q
    assert np.ptp(q["means"].mean, axis=0).max() < 1e-9


@pytest.mark.parametrize("q", [PRIOR["means"], pt.families.Product(weights=PRIOR["weights"], means=PRIOR["means"])])
def test_unsupported_families_are_refused(q):
    with pytest.raises(pt.InputError, match="A mixture needs a Product"):
        MODEL.ell(q, jnp.asarray(X), jnp.ones(N), jax.random.key(0))


def test_bad_rows_are_named():
    with pytest.raises(pt.InputError, match="not a matrix"):
        MODEL.check(np.ones(3))
    with pytest.raises(pt.InputError, match=r"row 1 .* not finite"):
        MODEL.check(np.array([[1.0], [np.nan]]))


def test_a_model_without_latent_variables_says_so():
    with pytest.raises(pt.InputError, match="LogisticRegression has no discrete latent variable"):
        pt.LogisticRegression(expectation=pt.expectations.Assignments()).ell(PRIOR, X, jnp.ones(N), jax.random.key(0))
