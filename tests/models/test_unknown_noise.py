"""Regression with unknown noise, against coordinate ascent and the conjugate posterior in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

import partita as pt
from partita.checks import check_model
from partita.server.monitor import Monitor

GENERATOR = np.random.default_rng(0)
N, D = 50, 3
X = GENERATOR.normal(size=(N, D)) @ (np.eye(D) + 0.3)
Y = X @ [1.0, -0.5, 0.2] + 0.6 * GENERATOR.normal(size=N)
SIZES = (4, 6, 14, 13, 13)
PARTS = pt.federate(
    [pt.Table(x, y) for x, y in zip(*(np.split(a, np.cumsum(SIZES)[:-1]) for a in (X, Y)), strict=True)], buckets=1
)
SHAPE, RATE, SCALE = 2.0, 1.5, 1.5
MODEL = pt.models.UnknownNoiseRegression()
PRODUCT = pt.families.Product(
    coefficients=pt.FullGaussian.standard_normal(D, SCALE), precision=pt.families.Gamma.from_shape_rate(SHAPE, RATE)
)
JOINT = pt.families.NormalGamma.from_parameters(np.zeros(D), SCALE**2 * np.eye(D), SHAPE, RATE)
EXACT = pt.solvers.FixedPoint(max_steps=60, tolerance=None)
"""Takes all its steps, each of which shrinks the error about tenfold here, until it stays at rounding."""


def coordinate_ascent(prior_precision, shape, rate, sweeps=300):
    """The mean-field optimum over the pooled rows: mean, precision matrix, shape and rate."""
    gram, tau = X.T @ X, shape / rate
    for _ in range(sweeps):
        precision = prior_precision * np.eye(D) + tau * gram
        mean = np.linalg.solve(precision, tau * X.T @ Y)
        square = np.sum((Y - X @ mean) ** 2) + np.trace(gram @ np.linalg.inv(precision))
        tau = (shape + N / 2) / (rate + square / 2)
    return mean, precision, shape + N / 2, rate + square / 2


def parameters(q):
    coefficients, precision = q["coefficients"], q["precision"]
    return [np.asarray(leaf) for leaf in (coefficients.mean, coefficients.precision, precision.shape, precision.rate)]


@pytest.mark.parametrize("q", [PRODUCT, JOINT], ids=["product", "normal–gamma"])
def test_contract(q):
    check_model(MODEL, q, pt.Table(X[:5], Y[:5]))


SWEEPS = pt.solvers.Blockwise(pt.Conjugate(), (("coefficients",), ("exponent", "rate")), max_steps=20)
METHODS = {
    "sequential": (pt.methods.sequential(EXACT), 12),
    "synchronous": (pt.methods.synchronous(EXACT, damping=0.5), 60),
    "sequential, block by block": (pt.methods.sequential(SWEEPS), 25),
}


def pvi(method, prior, rounds):
    """The posterior after so many rounds: no residual, of which the last are rounding, ends the run before."""
    result = pt.run(method, MODEL, prior, PARTS, rounds=rounds, tolerance=None, monitor=Monitor(every=0))
    assert result.status is pt.Status.BUDGET_SPENT
    return result.posterior.q


@pytest.mark.parametrize("name", ["sequential", *(pytest.param(n, marks=pytest.mark.slow) for n in list(METHODS)[1:])])
def test_pvi_reaches_the_optimum_of_coordinate_ascent(name):
    method, rounds = METHODS[name]
    q = pvi(method, PRODUCT, rounds)
    for found, expected in zip(parameters(q), coordinate_ascent(SCALE**-2, SHAPE, RATE), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_the_product_family_has_exact_means_and_smaller_variances():
    """Beside a flat prior, and one of τ that makes up for it, the product has the exact means, and smaller variances.

    With coefficients whose prior is flat, Gamma(a₀, b₀) gives the normal–gamma posterior of shape a = a₀ + (N − D)/2
    and rate b = b₀ + RSS/2. The product has E[β] and E[τ] = a/b of it, the covariance (a − 1)/a times as large and the
    variance of τ a/(a + D/2) times.
    """
    wide = 1e-5  # the prior's precision, beside about 100 of the rows
    prior = pt.families.Product(
        coefficients=pt.FullGaussian.standard_normal(D, wide**-0.5),
        precision=pt.families.Gamma.from_shape_rate(SHAPE, RATE),
    )
    q = pt.run(
        pt.methods.sequential(EXACT), MODEL, prior, PARTS, rounds=12, tolerance=1e-30, monitor=Monitor(every=0)
    ).posterior.q
    mean = np.linalg.lstsq(X, Y)[0]
    a, b = SHAPE + (N - D) / 2, RATE + np.sum((Y - X @ mean) ** 2) / 2
    covariance = np.linalg.inv(X.T @ X) * b / (a - 1)
    np.testing.assert_allclose(q["coefficients"].mean, mean, rtol=1e-6)
    np.testing.assert_allclose(q["precision"].mean, a / b, rtol=1e-6)
    np.testing.assert_allclose(q["coefficients"].covariance, covariance * (a - 1) / a, rtol=1e-5)
    np.testing.assert_allclose(q["precision"].moments()[1] ** 2, a / b**2 * a / (a + D / 2), rtol=1e-5)


@pytest.mark.parametrize("damping", [None, 1.0], ids=["sequential", "synchronous"])
def test_the_normal_gamma_is_exact_in_one_pass(damping):
    method = pt.methods.sequential(pt.Conjugate())
    if damping:
        method = pt.methods.synchronous(pt.Conjugate(), damping=damping)
    result = pt.run(method, MODEL, JOINT, PARTS, rounds=1)
    q = result.posterior.q
    (mean, covariance), shape, rate = q.gaussian.standard(), q.gamma.shape, q.gamma.rate
    precision = np.eye(D) / SCALE**2 + X.T @ X
    expected = np.linalg.solve(precision, X.T @ Y)
    np.testing.assert_allclose(mean, expected, rtol=1e-8)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-8)
    np.testing.assert_allclose(shape, SHAPE + N / 2, rtol=1e-8)
    np.testing.assert_allclose(rate, RATE + (Y @ Y - expected @ precision @ expected) / 2, rtol=1e-8)
    # the bound is tight: rows are jointly Student's t
    spread = (np.eye(N) + SCALE**2 * X @ X.T) * RATE / SHAPE
    evidence = st.multivariate_t(np.zeros(N), spread, 2 * SHAPE).logpdf(Y)
    np.testing.assert_allclose(result.free_energy, evidence, rtol=1e-8)


@pytest.mark.parametrize("rows", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_the_normal_gamma_of_many_rows_is_exact_in_single_precision(rows):
    """Each quantity is a sum over rows in single precision, of which the rate is a difference with a fifth left."""
    generator = np.random.default_rng(1)
    x = np.float32(generator.normal(size=(rows, D)))
    y = np.float32(x @ [1.0, -0.5, 0.2] + 0.7 * generator.normal(size=rows))
    single = [np.float32(value) for value in (np.zeros(D), np.eye(D), SHAPE, RATE)]
    prior = pt.families.NormalGamma.from_parameters(*single)
    parts = pt.split(pt.Table(x, y), pt.partitioners.equal_random(rows, 3))
    result = pt.run(pt.methods.sequential(pt.Conjugate()), MODEL, prior, parts, rounds=2)
    q = result.posterior.q
    assert q.rate.dtype == jnp.float32
    x, y = np.float64(x), np.float64(y)
    precision = np.eye(D) + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    rate = RATE + (y @ y - mean @ precision @ mean) / 2
    np.testing.assert_allclose(q.gamma.shape, SHAPE + rows / 2, rtol=1e-5)
    np.testing.assert_allclose(q.gamma.mean, (SHAPE + rows / 2) / rate, rtol=1e-4)
    np.testing.assert_allclose(q.gaussian.mean, mean, atol=1e-5)
    assert not result.history["unconverged"].any()


def pooled_bound(scale):
    """max_q F(q) on all rows, where the prior's standard deviations are `scale` times as large."""
    mean, precision, shape, rate = coordinate_ascent((scale * SCALE) ** -2, SHAPE, RATE)
    log_tau, tau, covariance = sp.digamma(shape) - np.log(rate), shape / rate, np.linalg.inv(precision)
    square = np.sum((Y - X @ mean) ** 2) + np.trace(X.T @ X @ covariance)
    ell = (N * (log_tau - np.log(2 * np.pi)) - tau * square) / 2
    variance = (scale * SCALE) ** 2
    of_coefficients = (np.trace(covariance) + mean @ mean) / variance - D + np.linalg.slogdet(precision)[1]
    of_coefficients += D * np.log(variance)
    of_precision = (shape - SHAPE) * sp.digamma(shape) - sp.gammaln(shape) + sp.gammaln(SHAPE)
    of_precision += SHAPE * np.log(rate / RATE) + shape * (RATE / rate - 1)
    return ell - of_coefficients / 2 - of_precision


def test_the_scale_of_the_coefficients_is_learned_beside_unknown_noise():
    """It is the best of the bound's grid to 1e-3, the spacing of the last of three, each around the best before."""
    best = 1.0
    for spacing in (1e-1, 1e-2, 1e-3):
        grid = best + np.arange(-9, 10) * spacing
        best = grid[np.argmax([pooled_bound(scale) for scale in grid])]
    three = pt.split(pt.Table(X, Y), pt.partitioners.equal_random(N, 3))
    settings = {"solver": pt.solvers.FixedPoint()}
    options = {"rounds": 300, "tolerance": 1e-10}
    result = pt.methods.fit("sequential", MODEL, PRODUCT, three, settings, learn=["prior_scale"], **options)
    assert result.status is pt.Status.CONVERGED
    assert float(result.posterior.hyper["prior_scale"]) == pytest.approx(best, abs=1e-3)
    assert result.free_energy == pytest.approx(pooled_bound(best), abs=1e-4)


@pytest.mark.parametrize("prior", [PRODUCT, JOINT], ids=["product", "normal–gamma"])
def test_closed_form_predictions_agree_with_monte_carlo(prior):
    solver = pt.Conjugate() if prior is JOINT else pt.solvers.FixedPoint()
    posterior = pt.run(pt.methods.sequential(solver), MODEL, prior, PARTS, rounds=3).posterior
    closed, drawn = posterior.predict(X[:4]), posterior.predict(X[:4], how="monte_carlo", draws=4000)
    sd = np.sqrt(np.diag(X[:4] @ np.linalg.inv(X.T @ X) @ X[:4].T) * 0.5)
    assert (abs(closed - drawn) < 5 * sd / np.sqrt(4000)).all()
    assert np.isfinite(posterior.log_predictive_density(pt.Table(X[:4], Y[:4]))).all()
    assert [row["name"] for row in posterior.summary()][-1] == "['precision']"


@pytest.mark.parametrize(
    "q",
    [
        pt.FullGaussian.standard_normal(D),
        pt.families.Product(coefficients=pt.FullGaussian.standard_normal(D)),
        pt.families.Product(
            coefficients=PRODUCT["coefficients"], precision=pt.families.LogNormal.from_median_sd(1.0, 1.0)
        ),
        pt.families.Product(
            coefficients=PRODUCT["coefficients"], precision=pt.families.Gamma.from_shape_rate(np.ones(2), 1.0)
        ),
    ],
    ids=["no noise", "no directional precision", "log-normal", "two precisions"],
)
def test_unsupported_families_are_refused(q):
    with pytest.raises(pt.InputError, match="needs a NormalGamma, or a Product"):
        MODEL.ell(q, pt.Table(jnp.asarray(X), jnp.asarray(Y)), jnp.ones(N), jax.random.key(0))
