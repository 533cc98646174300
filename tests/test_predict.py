import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st
from scipy.integrate import quad

from partita import (
    FullGaussian,
    InputError,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    PoissonRegression,
    Table,
)
from partita.expectations import LocalReparameterisation, MonteCarlo
from partita.models import NetworkClassifier, ProbitRegression
from partita.results.posterior import Posterior

MEAN = np.array([0.4, -0.7])
COVARIANCE = np.array([[0.3, 0.1], [0.1, 0.5]])
Q = FullGaussian.from_mean_covariance(MEAN, COVARIANCE)
X = np.array([[1.0, 0.5], [1.0, -2.0], [0.0, 3.0]])
PREDICTOR = X @ MEAN, np.einsum("ni,ij,nj->n", X, COVARIANCE, X)
RESPONSES = {
    "logistic": (LogisticRegression(), sp.expit),
    "probit": (ProbitRegression(), st.norm.cdf),
    "Poisson": (PoissonRegression(), np.exp),
    "linear": (LinearRegression(0.6), lambda f: f),
}


def expected_response(response):
    """∫ response(f) N(f; m, v) df for every row, by adaptive quadrature."""
    return np.array(
        [
            quad(lambda z, m=m, v=v: response(m + np.sqrt(v) * z) * st.norm.pdf(z), -14, 14, points=[0.0])[0]
            for m, v in zip(*PREDICTOR, strict=True)
        ]
    )


def test_moments_interval_density_and_draws_are_those_of_q():
    posterior = Posterior(LinearRegression(), Q)
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose(posterior.mean, MEAN, rtol=1e-12)
    np.testing.assert_allclose(posterior.sd, sd, rtol=1e-12)
    np.testing.assert_allclose(posterior.interval(0.9), st.norm.interval(0.9, MEAN, sd), rtol=1e-12)
    reference = st.multivariate_normal(MEAN, COVARIANCE)
    np.testing.assert_allclose(posterior.log_prob(jnp.ones(2)), reference.logpdf(np.ones(2)), rtol=1e-12)
    draws = posterior.sample(4000, seed=1)
    assert draws.shape == (4000, 2)
    assert (abs(draws.mean(axis=0) - MEAN) < 5 * sd / np.sqrt(4000)).all()  # five standard errors
    np.testing.assert_array_equal(draws, posterior.sample(4000, seed=1))
    assert (draws != posterior.sample(4000, seed=2)).all()


@pytest.mark.parametrize("name", ["probit", "Poisson", "linear"])
def test_closed_predictions_are_exact(name):
    model, response = RESPONSES[name]
    found = Posterior(model, Q).predict(X)
    np.testing.assert_allclose(found, expected_response(response), rtol=1e-7)  # quad's own tolerance


def test_the_probit_approximation_is_close_for_the_logistic():
    """With π/8 under the root; the paper prints π, which is ten times as far off."""
    exact = expected_response(sp.expit)
    found = Posterior(LogisticRegression(), Q).predict(X)
    np.testing.assert_allclose(found, exact, atol=0.01)  # the approximation's known accuracy at variances up to 5
    mean, variance = PREDICTOR
    misprint = sp.expit(mean / np.sqrt(1 + np.pi * variance))
    assert abs(misprint - exact).max() > 10 * abs(found - exact).max()


@pytest.mark.parametrize("name", RESPONSES)
def test_monte_carlo_agrees_with_quadrature(name):
    model, response = RESPONSES[name]
    posterior = Posterior(model, Q)
    found = posterior.predict(X, "monte_carlo", draws=4000, seed=3)
    spread = np.std(np.asarray(response(posterior.sample(4000, seed=3) @ X.T)), axis=0)
    assert (abs(found - expected_response(response)) < 5 * spread / np.sqrt(4000)).all()  # five standard errors


def test_class_probabilities_are_a_column_each():
    for model in (LogisticRegression(), ProbitRegression()):
        posterior = Posterior(model, Q)
        found = posterior.predict_proba(X)
        assert found.shape == (3, 2)
        np.testing.assert_array_equal(found[:, 1], posterior.predict(X))
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-15)


@pytest.mark.parametrize("expectation", [LocalReparameterisation(), MonteCarlo()])
def test_a_network_predicts_by_monte_carlo(expectation):
    """With draws of the rows' outputs or of the weights, whichever it was fitted with: the same mean."""
    model = NetworkClassifier((2, 3, 3), expectation=expectation)
    posterior = Posterior(model, MeanFieldGaussian.standard_normal(model.template()))
    found = posterior.predict_proba(X, "monte_carlo", draws=20_000)
    assert found.shape == (3, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    by_hand = np.mean(
        jax.vmap(lambda theta: model.response(theta, jnp.asarray(X)))(posterior.sample(20_000, seed=1)), axis=0
    )
    # probabilities have an sd of at most 1/2: two means of 20,000 differ by 0.005, four sds are 0.02
    np.testing.assert_allclose(found, by_hand, atol=0.02)
    with pytest.raises(InputError, match="NetworkClassifier has no closed-form prediction"):
        posterior.predict_proba(X)


def test_log_predictive_density_of_a_linear_regression():
    """y ~ N(m, v + σ²) in closed form."""
    y = np.array([0.5, 1.0, -2.0])
    mean, variance = PREDICTOR
    posterior = Posterior(LinearRegression(0.6), Q)
    found = posterior.log_predictive_density(Table(X, y), draws=4000, seed=2)
    densities = st.norm.pdf(y, posterior.sample(4000, seed=2) @ X.T, 0.6)
    relative = densities.std(axis=0) / densities.mean(axis=0) / np.sqrt(4000)
    expected = st.norm.logpdf(y, mean, np.sqrt(variance + 0.36))
    assert (abs(found - expected) < 5 * relative).all()  # five standard errors of a logarithm


def test_a_summary_has_a_row_per_parameter():
    rows = Posterior(LinearRegression(), Q).summary(["intercept", "age"], mass=0.9)
    assert [row["name"] for row in rows] == ["intercept", "age"]
    low, high = st.norm.interval(0.9, MEAN, np.sqrt(np.diag(COVARIANCE)))
    for i, row in enumerate(rows):
        expected = [MEAN[i], np.sqrt(COVARIANCE[i, i]), low[i], high[i]]
        np.testing.assert_allclose([row[key] for key in ("mean", "sd", "low", "high")], expected, rtol=1e-12)


def test_a_summary_names_parameters_by_their_path():
    assert [row["name"] for row in Posterior(LinearRegression(), Q).summary()] == ["theta[0]", "theta[1]"]
    tree = MeanFieldGaussian.standard_normal({"weight": jnp.zeros((1, 2)), "level": jnp.zeros(())})
    names = [row["name"] for row in Posterior(LinearRegression(), tree).summary()]
    assert names == ["['level']", "['weight'][0, 0]", "['weight'][0, 1]"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.summary(["only one"]), "2 parameters and 1 names"),
        (lambda p: p.predict(X, "exact"), "no predictive named 'exact': choose one of closed, monte_carlo"),
        (lambda p: Posterior(LinearRegression(), Q).predict_proba(X), "LinearRegression does not predict classes"),
        (lambda p: p.interval(1.0), "between 0 and 1, not 1.0"),
        (lambda p: p.interval(0), "between 0 and 1"),
        (lambda p: p.summary(mass=95), "between 0 and 1, not 95"),
    ],
)
def test_invalid_prediction_requests_are_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(Posterior(LogisticRegression(), Q))
