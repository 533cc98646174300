import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from scipy.integrate import quad

from partita import (
    FullGaussian,
    InputError,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    MeanFieldGaussian,
    Newton,
    PoissonRegression,
    Table,
)
from partita.checks import check_model
from partita.data import federate
from partita.expectations import Analytic, Expectation, GaussHermite, LocalReparameterisation, MonteCarlo
from partita.families import Gamma, Product
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import Outcome
from partita.models import ProbitRegression

MEANS = jnp.array([-2.0, 0.0, 1.5, -0.5, 0.7])
X = jnp.array([[1.0, 0.5, -0.2], [1.0, -1.0, 0.7], [1.0, 0.1, 1.4], [1.0, 2.0, 0.3], [1.0, -0.3, -1.0]])
BINARY = Table(X, jnp.array([0.0, 1.0, 1.0, 0.0, 1.0]))
COUNTS = Table(X, jnp.array([0.0, 3.0, 1.0, 0.0, 2.0]))
KEY = jax.random.key(0)
MEAN_FIELD = MeanFieldGaussian.from_mean_sd(jnp.array([0.2, -0.4, 0.6]), jnp.array([0.3, 0.5, 0.8]))
FULL = FullGaussian.from_mean_covariance(
    jnp.array([0.2, -0.4, 0.6]), jnp.array([[0.2, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]])
)


def scipy_log_density(model, f, y):
    return {
        LogisticRegression: lambda: -np.logaddexp(0, (1 - 2 * y) * f),
        ProbitRegression: lambda: st.norm.logcdf((2 * y - 1) * f),
        PoissonRegression: lambda: st.poisson.logpmf(y, np.exp(f)),
    }[type(model)]()


@pytest.mark.parametrize(
    ("model", "data", "tolerance"),
    [
        # Analytic near the real axis only: the error of twenty points grows with the sd, in units of that distance.
        (LogisticRegression(), BINARY, {0.01: 1e-14, 1.0: 1e-10, 4.0: 1e-5}),
        (ProbitRegression(), BINARY, {0.01: 1e-14, 1.0: 1e-8, 4.0: 1e-4}),
        # exp is analytic everywhere, so that rounding is all there is.
        (PoissonRegression(expectation=GaussHermite()), COUNTS, {0.01: 1e-14, 1.0: 1e-14, 4.0: 1e-14}),
    ],
    ids=["logistic", "probit", "Poisson"],
)
def test_quadrature_agrees_with_adaptive_integration(model, data, tolerance):
    for variance, relative in tolerance.items():
        found = model.expectation.at_predictor(model, MEANS, jnp.full(5, variance), data)
        for mean, y, value in zip(np.asarray(MEANS), np.asarray(data.y), found, strict=True):
            sd = np.sqrt(variance)

            def integrand(z, mean=mean, y=y, sd=sd):
                return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * scipy_log_density(model, mean + sd * z, y)

            expected, _ = quad(integrand, -12, 12, points=[0.0], epsabs=1e-13, epsrel=1e-12, limit=400)
            np.testing.assert_allclose(value, expected, rtol=relative, err_msg=f"mean {mean}, variance {variance}")


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (LogisticRegression(), BINARY),
        (ProbitRegression(), BINARY),
        (PoissonRegression(expectation=GaussHermite()), COUNTS),
    ],
    ids=["logistic", "probit", "Poisson"],
)
def test_quadrature_derivatives_are_those_of_the_sum(model, data):
    # The last is a difference of nearly equal numbers, divided by the variance: rounding of 1e-16 / 1e-4.
    variances = jnp.array([1e-4, 1e-2, 1.0, 10.0, 40.0])
    own = jax.jit(lambda m, v: model.expectation.derivatives(model, m, v, data))(MEANS, variances)
    automatic = jax.jit(lambda m, v: Expectation.derivatives(model.expectation, model, m, v, data))(MEANS, variances)
    for name in own._fields:
        np.testing.assert_allclose(getattr(own, name), getattr(automatic, name), rtol=1e-9, atol=1e-11, err_msg=name)


def test_the_derivative_in_the_variance_is_half_the_second_in_the_mean():
    """Price's theorem, to the accuracy of the quadrature; and it is never positive for a log-concave likelihood."""
    variances = jnp.array([1e-4, 1e-2, 0.1, 0.5, 1.0])
    for model in (LogisticRegression(), ProbitRegression()):
        rows = model.expectation.derivatives(model, MEANS, variances, BINARY)
        np.testing.assert_allclose(rows.variance, rows.mean_mean / 2, atol=1e-5)
        wide = model.expectation.derivatives(model, MEANS, jnp.full(5, 1e4), BINARY)
        assert (wide.variance <= 0).all()


@pytest.mark.parametrize("expectation", [GaussHermite(), LocalReparameterisation(3), MonteCarlo(3)])
def test_a_row_of_zeros_has_a_finite_gradient(expectation):
    model = LogisticRegression(expectation=expectation)
    data = Table(X.at[0].set(0.0), BINARY.y)

    def gradient(q, data):
        return q.natural_gradient(lambda r: model.ell(r, data, jnp.ones(5), KEY))

    assert jax.jit(gradient)(MEAN_FIELD, data).is_finite()


@pytest.mark.parametrize("prior", [MeanFieldGaussian.standard_normal(3), FullGaussian.standard_normal(3)])
def test_a_row_of_zeros_tells_newton_nothing(prior):
    """Its likelihood is 1/2 whatever θ is, so that the answer with it is the one in which it has no weight."""
    data = Table(X.at[0].set(0.0), BINARY.y)
    shard = federate([data]).shards[0]
    without = federate([data], weights=[np.array([0.0, 1.0, 1.0, 1.0, 1.0])]).shards[0]

    @jax.jit
    def solve(shard):
        one = jnp.asarray(1.0)
        return Newton().solve(Problem(LogisticRegression(), shard, Factor.of(prior), one, prior, one), KEY)

    solutions = [solve(shard), solve(without)]
    assert [int(solution.outcome) for solution in solutions] == [Outcome.CONVERGED] * 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), *[solution.q for solution in solutions])


@pytest.mark.parametrize("q", [MEAN_FIELD, FULL], ids=["mean-field", "full"])
@pytest.mark.parametrize("model", [LinearRegression, PoissonRegression])
def test_closed_forms_agree_with_quadrature(model, q):
    closed = model(expectation=Analytic())
    quadrature = model(expectation=GaussHermite())
    rows = [m.expectation.rows(m, q, COUNTS, KEY) for m in (closed, quadrature)]
    # A quadratic is integrated exactly by two points, exp by twenty at a variance of about one.
    np.testing.assert_allclose(*rows, rtol=1e-12)
    mean, variance = q.project(X)
    derivatives = [m.expectation.derivatives(m, mean, variance, COUNTS) for m in (closed, quadrature)]
    np.testing.assert_allclose(*derivatives, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("expectation", "q"), [(MonteCarlo(5), FULL), (LocalReparameterisation(5), MEAN_FIELD)])
def test_stochastic_expectations_are_unbiased(expectation, q):
    check_model(LogisticRegression(expectation=expectation), q, BINARY)


@pytest.mark.parametrize(
    "q",
    [FULL, Product(slope=FULL, scale=Gamma.from_shape_rate(jnp.array(3.0), jnp.array(2.0)))],
    ids=["full", "product"],
)
def test_gradients_summed_draw_by_draw_are_those_of_the_sum(q):
    """For families whose draws are worked out in part beforehand, and for others."""

    def log_density(theta, row):
        slope, scale = (theta, 1.0) if q is FULL else (theta["slope"], theta["scale"])
        return -jnp.logaddexp(0, (1 - 2 * row.y) * scale * (row.x @ slope))

    model, weights = LogDensity(log_density, expectation=MonteCarlo(3)), jnp.arange(1.0, 6.0)
    totals = [
        lambda r: model.ell(r, BINARY, weights, KEY),
        lambda r: weights @ model.expectation.rows(model, r, BINARY, KEY),
    ]
    (value, gradient), (plain, expected) = [jax.jit(jax.value_and_grad(total))(q) for total in totals]
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), gradient, expected)


def test_more_draws_and_local_draws_reduce_the_variance():
    """Of n draws the sd falls by √n; of five equal rows with draws of their own, by √5."""
    data = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 5, axis=0), BINARY)

    def spread(expectation):
        model = LogisticRegression(expectation=expectation)
        ells = jax.jit(jax.vmap(lambda key: model.ell(MEAN_FIELD, data, jnp.ones(5), key)))
        return ells(jax.random.split(KEY, 400)).std()

    shared = spread(MonteCarlo(1))
    # The ratio of two sds of 400 draws has a standard error of 5%.
    assert shared / spread(MonteCarlo(16)) == pytest.approx(4, rel=0.15)
    assert shared / spread(LocalReparameterisation(1)) == pytest.approx(np.sqrt(5), rel=0.15)


def test_local_draws_come_in_antithetic_pairs():
    """The log density of a Gaussian is quadratic in the noise: in two draws its linear term cancels, and in one not."""
    q = MeanFieldGaussian.from_mean_sd(jnp.array([3.0, 2.0, 1.0]), 1e-4)
    exact = LinearRegression().ell(q, BINARY, jnp.ones(5), KEY)

    def off(samples):
        model = LinearRegression(expectation=LocalReparameterisation(samples))
        return float(abs(model.ell(q, BINARY, jnp.ones(5), KEY) - exact))

    # what is left is of the order of the variance 1e-8, against 1e-4 of a single draw
    assert off(2) < 1e-6 < 1e-5 < off(1)


def test_there_is_at_least_one_sample():
    with pytest.raises(InputError, match="samples must be a whole number, 1 or more, not 0"):
        LocalReparameterisation(0)


def test_an_unsupported_expectation_is_refused_with_an_alternative():
    density = LogDensity(lambda theta, datum: -((theta @ datum.x) ** 2), expectation=GaussHermite())
    with pytest.raises(InputError, match="MonteCarlo"):
        density.ell(MEAN_FIELD, BINARY, jnp.ones(5), KEY)
    with pytest.raises(InputError, match="GaussHermite"):
        LogisticRegression(expectation=Analytic()).ell(MEAN_FIELD, BINARY, jnp.ones(5), KEY)
    with pytest.raises(InputError, match="linear predictor"):
        MonteCarlo().at_predictor(LogisticRegression(), MEANS, MEANS**2, BINARY)
