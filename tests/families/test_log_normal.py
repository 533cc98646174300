import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from scipy.optimize import minimize

from partita import FullGaussian, InputError, LogDensity
from partita.checks import check_family
from partita.data import federate
from partita.expectations import MonteCarlo
from partita.families import Gamma, LogNormal, Product
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import LBFGS
from support import identities

LOG_MEAN, COVARIANCE = np.array([0.3, -1.0]), np.array([[0.4, 0.1], [0.1, 0.2]])
LOG_SD = np.sqrt(np.diag(COVARIANCE))
MEAN_FIELD = LogNormal.from_median_sd(np.exp(LOG_MEAN), LOG_SD)
FULL = LogNormal.of(FullGaussian.from_mean_covariance(LOG_MEAN, COVARIANCE))
PAIRS = {
    "mean-field": (MEAN_FIELD, LogNormal.from_median_sd(np.ones(2), 1.5)),
    "full": (FULL, LogNormal.of(FullGaussian.standard_normal(2, 1.5))),
    "in a product": (
        Product(precision=Gamma.from_shape_rate(2.0, 3.0), scale=MEAN_FIELD),
        Product(precision=Gamma.from_shape_rate(4.0, 3.0), scale=LogNormal.from_median_sd(np.ones(2), 0.7)),
    ),
    "over a tree": (
        LogNormal.from_median_sd({"a": 2.0, "b": np.array([0.5, 1.0])}, 0.5),
        LogNormal.from_median_sd({"a": 1.0, "b": np.ones(2)}, 1.0),
    ),
}
SCIPY = st.lognorm(LOG_SD, scale=np.exp(LOG_MEAN))
every_kind = pytest.mark.parametrize("kind", PAIRS)


@every_kind
def test_contract(kind):
    check_family(*PAIRS[kind])


def test_it_agrees_with_scipy():
    identities.density_entropy_and_moments_are_scipys(MEAN_FIELD, SCIPY)
    identities.kl_is_the_integral(*PAIRS["mean-field"], SCIPY, st.lognorm(1.5))
    np.testing.assert_allclose(MEAN_FIELD.interval(0.9), SCIPY.interval(0.9), rtol=1e-12)


def test_the_full_density_is_that_of_the_logarithm_with_its_jacobian():
    theta = np.array([1.2, 0.4])
    reference = st.multivariate_normal(LOG_MEAN, COVARIANCE)
    np.testing.assert_allclose(
        FULL.log_prob(jnp.asarray(theta)), reference.logpdf(np.log(theta)) - np.log(theta).sum(), rtol=1e-12
    )
    np.testing.assert_allclose(FULL.entropy(), reference.entropy() + LOG_MEAN.sum(), rtol=1e-12)
    np.testing.assert_allclose(FULL.moments(), (SCIPY.mean(), SCIPY.std()), rtol=1e-12)


@pytest.mark.parametrize("kind", ["mean-field", "full"])
def test_identities(kind):
    identities.natural_gradients_are_exact(PAIRS[kind][0])
    identities.improper_factors_multiply_and_print(*PAIRS[kind])
    identities.single_precision_stays_single(*PAIRS[kind])
    identities.draws_are_differentiable(
        MEAN_FIELD, lambda standard: jnp.sum(jnp.exp(0.3 * standard.mean + 0.09 * standard.variance / 2))
    )


def test_a_likelihood_factor_of_the_logarithm_is_that_of_the_gaussian():
    """The stretch is in densities alone: a factor multiplies the law of log θ as it stands."""
    factor = PAIRS["full"][1] ** 0.3 / FULL**0.1
    together = (FULL * factor).original
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), together, FULL.original * factor.natural)


def scale_problem(model):
    """y ~ N(level, θ²) with log θ Gaussian, 60 rows."""
    y = np.random.default_rng(0).normal(1.0, 2.0, size=60)
    prior = Product(level=FullGaussian.standard_normal(1, 10.0), scale=LogNormal.from_median_sd(1.0, 2.0))
    shard = federate([y]).shards[0]
    return y, Problem(model, shard, Factor.of(prior), jnp.asarray(1.0), prior, jnp.asarray(1.0))


def test_it_is_the_posterior_of_any_model():
    """Many draws climb to the optimum of the closed-form free energy, that of SciPy's minimiser in plain NumPy."""

    def log_density(theta, y):
        return jax.scipy.stats.norm.logpdf(y, theta["level"][0], theta["scale"])

    y, problem = scale_problem(LogDensity(log_density, expectation=MonteCarlo(200)))
    solution = jax.jit(lambda p: LBFGS().solve(p, jax.random.key(0)))(problem)

    def negative(values):
        """−F for level ~ N(m, s²) and log θ ~ N(u, v): E[θ⁻²] = exp(−2u + 2v)."""
        m, log_s, u, log_v = values
        s2, v = np.exp(2 * log_s), np.exp(log_v)
        square = np.sum((y - m) ** 2) + len(y) * s2
        ell = -len(y) * (np.log(2 * np.pi) / 2 + u) - square * np.exp(2 * v - 2 * u) / 2
        kl = (s2 / 100 + m**2 / 100 - 1 - np.log(s2 / 100)) / 2 + (v / 4 + u**2 / 4 - 1 - np.log(v / 4)) / 2
        return kl - ell

    best = minimize(negative, np.array([1.0, -1.0, 0.7, -4.0]), method="BFGS")
    m, log_s, u, log_v = best.x
    q = solution.q
    # 200 fixed draws: the optimum moves by a posterior sd over √200 = 14 or so.
    assert abs(q["level"].mean[0] - m) < 0.25 * np.exp(log_s)
    assert abs(q["scale"].original.mean - u) < 0.25 * np.exp(log_v / 2)
    np.testing.assert_allclose(q["scale"].original.sd, np.exp(log_v / 2), rtol=0.2)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: LogNormal.from_median_sd([1.0, -2.0], 1.0), "The median of a log-normal .* not -2."),
        (lambda: LogNormal.from_median_sd(1.0, 0.0), "The standard deviation of a logarithm .* not 0."),
        (lambda: LogNormal.of(Gamma.from_shape_rate(1.0, 1.0)), "A LogNormal is made of a Gaussian, not of a Gamma."),
        (lambda: MEAN_FIELD * FULL, "cannot be combined"),
    ],
)
def test_invalid_input_raises_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()
