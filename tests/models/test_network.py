import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

from partita import (
    FullGaussian,
    InputError,
    LocalReparameterisation,
    MeanFieldGaussian,
    MonteCarlo,
    NetworkClassifier,
    NetworkRegressor,
    Table,
)
from partita.checks import check_model

WIDTHS = (3, 3, 3)
X = np.array([[1.0, 0.5, -0.2], [1.0, -1.0, 0.7], [1.0, 0.1, 1.4], [1.0, 2.0, 0.3], [1.0, -0.3, -1.0]])
CLASSES = Table(X, np.array([0.0, 2.0, 1.0, 0.0, 1.0]))
REAL = Table(X, np.array([0.3, -1.2, 0.0, 2.0, 0.7]))
CLASSIFIER, REGRESSOR = NetworkClassifier(WIDTHS), NetworkRegressor((3, 3, 1), noise=0.7)


def theta_of(model):
    draw = MeanFieldGaussian.standard_normal(model.template()).sample(jax.random.key(3))
    return jax.tree.map(np.asarray, draw)


def numpy_outputs(theta, x):
    hidden = np.maximum(x @ theta[0]["weight"] + theta[0]["bias"], 0)
    return hidden @ theta[1]["weight"] + theta[1]["bias"]


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (NetworkClassifier(WIDTHS, expectation=MonteCarlo(5)), CLASSES),
        (NetworkClassifier(WIDTHS, expectation=LocalReparameterisation(5)), CLASSES),
        (REGRESSOR, REAL),
    ],
    ids=["classifier, Monte Carlo", "classifier, local reparameterisation", "regressor"],
)
def test_contract(model, data):
    """Both expectations are compared with the same draws of θ, so they agree with one another."""
    check_model(model, MeanFieldGaussian.standard_normal(model.template(), 0.7), jax.tree.map(jnp.asarray, data))


def test_densities_and_responses_are_those_of_a_forward_pass():
    theta = theta_of(CLASSIFIER)
    logits = numpy_outputs(theta, X)
    np.testing.assert_allclose(CLASSIFIER.response(theta, X), sp.softmax(logits, axis=1), rtol=1e-12)
    expected = sp.log_softmax(logits, axis=1)[np.arange(5), CLASSES.y.astype(int)]
    found = jax.vmap(CLASSIFIER.log_density, in_axes=(None, 0))(theta, CLASSES)
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    theta = theta_of(REGRESSOR)
    mean = numpy_outputs(theta, X)[:, 0]
    np.testing.assert_allclose(REGRESSOR.response(theta, X), mean, rtol=1e-12)
    found = jax.vmap(REGRESSOR.log_density, in_axes=(None, 0))(theta, REAL)
    np.testing.assert_allclose(found, st.norm.logpdf(REAL.y, mean, 0.7), rtol=1e-12)


def test_the_template_has_the_layers_shapes():
    shapes = jax.tree.map(jnp.shape, NetworkClassifier((7, 4, 2)).template())
    assert shapes == ({"bias": (4,), "weight": (7, 4)}, {"bias": (2,), "weight": (4, 2)})


def test_local_draws_differ_between_rows():
    same_rows = Table(jnp.ones((5, 3)), jnp.zeros(5))
    q = MeanFieldGaussian.standard_normal(CLASSIFIER.template())
    draws = CLASSIFIER.sample_predictor(q, same_rows, jax.random.key(0), 5)
    assert draws.shape == (5, 5, 3)
    assert len(np.unique(draws)) == draws.size


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (CLASSIFIER, CLASSES._replace(y=CLASSES.y + 1), "row 1 has the response 3: labels are 0 to 2"),
        (CLASSIFIER, CLASSES._replace(y=CLASSES.y - 1), "row 0 has the response -1: labels are 0 to 2"),
        (CLASSIFIER, CLASSES._replace(y=CLASSES.y / 2), "row 2 has the response 0.5: labels are 0 to 2"),
        (CLASSIFIER, CLASSES._replace(x=X[:, :2]), "2 columns where the network has 3 inputs"),
        (REGRESSOR, REAL._replace(x=X[:, :2]), "2 columns where the network has 3 inputs"),
        (REGRESSOR, REAL._replace(y=np.full(5, np.nan)), "row 0 .* not finite"),
        (REGRESSOR, REAL._replace(y=REAL.y[:3]), r"\(5, 3\) and y \(3,\)"),
    ],
)
def test_rows_that_cannot_be_used_are_named(model, data, message):
    with pytest.raises(InputError, match=message):
        model.check(data)


def test_local_reparameterisation_needs_independent_weights():
    q = FullGaussian.standard_normal(CLASSIFIER.template())
    with pytest.raises(InputError, match=r"mean-field.*MonteCarlo"):
        CLASSIFIER.ell(q, CLASSES, jnp.ones(5), jax.random.key(0))
