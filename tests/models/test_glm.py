import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

from partita import (
    InputError,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    PoissonRegression,
    Table,
    with_intercept,
)
from partita.checks import check_model
from partita.families import Product
from partita.models import ProbitRegression
from partita.models.glm import softplus

X = np.array([[1.0, 0.5, -0.2], [1.0, -1.0, 0.7], [1.0, 0.1, 1.4], [1.0, 2.0, 0.3], [1.0, -0.3, -1.0]])
THETA = np.array([0.2, -0.4, 0.6])
Q = MeanFieldGaussian.from_mean_sd(THETA, np.array([0.3, 0.5, 0.8]))
BINARY = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
COUNTS = np.array([0.0, 3.0, 1.0, 0.0, 2.0])
REAL = np.array([0.3, -1.2, 0.0, 2.0, 0.7])

MODELS = {
    "linear": (LinearRegression(0.7), REAL, lambda f, y: st.norm.logpdf(y, f, 0.7)),
    "logistic": (LogisticRegression(), BINARY, lambda f, y: st.bernoulli.logpmf(y, sp.expit(f))),
    "probit": (ProbitRegression(), BINARY, lambda f, y: st.bernoulli.logpmf(y, st.norm.cdf(f))),
    "Poisson": (PoissonRegression(), COUNTS, lambda f, y: st.poisson.logpmf(y, np.exp(f))),
}
every_model = pytest.mark.parametrize(("model", "y", "log_density"), MODELS.values(), ids=MODELS.keys())


@every_model
def test_contract(model, y, log_density):
    check_model(model, Q, Table(jnp.asarray(X), jnp.asarray(y)))


@every_model
def test_log_density_is_scipys(model, y, log_density):
    f = X @ THETA
    for x, value, expected in zip(X, y, log_density(f, y), strict=True):
        np.testing.assert_allclose(
            model.log_density(jnp.asarray(THETA), Table(jnp.asarray(x), jnp.asarray(value))), expected, rtol=1e-12
        )
    np.testing.assert_allclose(
        model.log_density_at(jnp.asarray(f), Table(jnp.asarray(X), jnp.asarray(y))), log_density(f, y), rtol=1e-12
    )


@every_model
def test_the_density_of_a_response_adds_up_to_its_mean(model, y, log_density):
    """E[y | f] from the density itself: a sum over the responses, or an integral."""
    f = jnp.array([-1.0, 0.0, 0.8])
    responses = np.linspace(-8, 8, 4001) if isinstance(model, LinearRegression) else np.arange(40.0)
    responses = responses[:2] if y is BINARY else responses
    mass = np.exp(jax.vmap(lambda value: model.log_link_density(f, value))(jnp.asarray(responses)))
    mass = mass / mass.sum(axis=0)
    np.testing.assert_allclose(responses @ mass, model.mean_response(f), atol=1e-12)


@every_model
def test_the_density_is_concave_in_the_predictor(model, y, log_density):
    """Newton's method and the quadrature's sign rest on it."""
    f = jnp.linspace(-20.0, 20.0, 41)
    for value in (0.0, 1.0):
        slope = jax.grad(lambda g, value=value: model.log_link_density(g, jnp.asarray(value)))
        assert (jax.vmap(jax.grad(slope))(f) <= 0).all()


@every_model
def test_single_precision_stays_single(model, y, log_density):
    q, data, weights = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (Q, Table(X, y), np.ones(5)))
    ell, slope = jax.eval_shape(
        lambda r: (
            model.ell(r, data, weights, jax.random.key(0)),
            r.natural_gradient(lambda s: model.ell(s, data, weights, jax.random.key(0))),
        ),
        q,
    )
    assert {str(leaf.dtype) for leaf in jax.tree.leaves((ell, slope))} == {"float32"}


def test_noise_is_a_hyperparameter_with_a_gradient():
    """Its leaf is ε of `sec:hyper-gradients`: d ell/dσ = Σ (E(y − f)² / σ² − 1) / σ."""

    def ell(model):
        return model.ell(Q, Table(jnp.asarray(X), jnp.asarray(REAL)), jnp.ones(5), jax.random.key(0))

    found = jax.grad(ell)(LinearRegression(0.7)).noise
    squares = (REAL - X @ THETA) ** 2 + X**2 @ np.square(Q.sd)
    np.testing.assert_allclose(found, np.sum(squares / 0.7**2 - 1) / 0.7, rtol=1e-12)


@pytest.mark.parametrize(
    ("f", "value", "first", "second"),
    [
        (0.0, np.log(2), 0.5, 0.25),
        (1.3, np.logaddexp(0, 1.3), sp.expit(1.3), sp.expit(1.3) * sp.expit(-1.3)),
        (800.0, 800.0, 1.0, 0.0),
        (-800.0, 0.0, 0.0, 0.0),
        (-40.0, np.exp(-40), np.exp(-40), np.exp(-40)),
    ],
)
def test_softplus_and_its_derivatives(f, value, first, second):
    derivatives = [softplus(f), jax.grad(softplus)(f), jax.grad(jax.grad(softplus))(f)]
    np.testing.assert_allclose(derivatives, [value, first, second], rtol=1e-12)


def test_with_intercept_puts_ones_first():
    x = with_intercept(X[:, 1:].astype(np.float32))
    np.testing.assert_array_equal(x, X.astype(np.float32))
    assert x.dtype == np.float32


def with_row(row, value):
    changed = X.copy()
    changed[row, 1] = value
    return changed


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (LogisticRegression(), Table(with_row(3, np.nan), BINARY), "row 3 .* not finite"),
        (LinearRegression(), Table(with_row(1, np.inf), REAL), "row 1 .* not finite"),
        (LinearRegression(), Table(X, np.where(np.arange(5) == 4, np.nan, REAL)), "row 4 .* not finite"),
        (LogisticRegression(), Table(X, BINARY + 1), "row 1 has the response 2: labels are 0 or 1"),
        (ProbitRegression(), Table(X, BINARY - 0.5), "row 0 has the response -0.5: labels are 0 or 1"),
        (PoissonRegression(), Table(X, COUNTS - 1), "row 0 has the response -1: counts"),
        (PoissonRegression(), Table(X, COUNTS + np.eye(5)[2] / 2), "row 2 has the response 1.5: counts"),
        (LogisticRegression(), Table(X, BINARY[:4]), r"\(5, 3\) and y \(4,\)"),
        (LogisticRegression(), Table(X[:, 0], BINARY), r"\(5,\)"),
        (LogisticRegression(), Table(X, BINARY[:, None]), r"\(5, 1\)"),
        (LogisticRegression(), (X, BINARY), "Table"),
    ],
)
def test_rows_that_cannot_be_used_are_named(model, data, message):
    with pytest.raises(InputError, match=message):
        model.check(data)


@every_model
def test_rows_that_can_be_used_are_accepted(model, y, log_density):
    model.check(Table(X, y))


def test_a_linear_predictor_needs_a_gaussian():
    with pytest.raises(InputError, match=r"Gaussian.*not Product.*MonteCarlo"):
        LogisticRegression().ell(Product(theta=Q), Table(X, BINARY), jnp.ones(5), jax.random.key(0))
