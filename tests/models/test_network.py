import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

from partita import FullGaussian, InputError, MeanFieldGaussian, Table
from partita.checks import check_model
from partita.expectations import LocalReparameterisation, MonteCarlo
from partita.models import NetworkClassifier, NetworkRegressor

WIDTHS = (3, 3, 3)
X = np.array([[1.0, 0.5, -0.2], [1.0, -1.0, 0.7], [1.0, 0.1, 1.4], [1.0, 2.0, 0.3], [1.0, -0.3, -1.0]])
CLASSES = Table(jnp.asarray(X), jnp.array([0.0, 2.0, 1.0, 0.0, 1.0]))
REAL = Table(jnp.asarray(X), jnp.array([0.3, -1.2, 0.0, 2.0, 0.7]))
CLASSIFIER, REGRESSOR = NetworkClassifier(WIDTHS), NetworkRegressor((3, 3, 1), noise=0.7)


def theta_of(model):
    draw = MeanFieldGaussian.standard_normal(model.template()).sample(jax.random.key(3))
    return jax.tree.map(np.asarray, draw)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def numpy_outputs(theta, x):
    hidden = np.maximum(x @ theta[0]["weight"].T + theta[0]["bias"], 0)
    return hidden @ theta[1]["weight"].T + theta[1]["bias"]


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
    np.testing.assert_allclose(CLASSIFIER.response(theta, CLASSES.x), sp.softmax(logits, axis=1), rtol=1e-12)
    expected = sp.log_softmax(logits, axis=1)[np.arange(5), CLASSES.y.astype(int)]
    found = jax.vmap(CLASSIFIER.log_density, in_axes=(None, 0))(theta, CLASSES)
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    theta = theta_of(REGRESSOR)
    mean = numpy_outputs(theta, X)[:, 0]
    np.testing.assert_allclose(REGRESSOR.response(theta, REAL.x), mean, rtol=1e-12)
    found = jax.vmap(REGRESSOR.log_density, in_axes=(None, 0))(theta, REAL)
    np.testing.assert_allclose(found, st.norm.logpdf(REAL.y, mean, 0.7), rtol=1e-12)


def test_the_template_has_the_layers_shapes():
    shapes = jax.tree.map(jnp.shape, NetworkClassifier((7, 4, 2)).template())
    assert shapes == ({"bias": (4,), "weight": (4, 7)}, {"bias": (2,), "weight": (2, 4)})


def test_local_draws_have_the_moments_of_the_outputs_of_drawn_weights():
    """For each row: a draw of the weights, and a local draw with noise of its own, have the same distribution."""
    q = MeanFieldGaussian.from_mean_sd(theta_of(CLASSIFIER), 0.3)
    shared = CLASSIFIER.shared(q, CLASSES)
    noise = jax.random.normal(jax.random.key(0), (40_000, *CLASSIFIER.noise_shape(shared)))
    local = jax.vmap(lambda e: CLASSIFIER.predictor_at(shared, e))(noise)
    drawn = jax.vmap(lambda theta: CLASSIFIER.outputs(theta, CLASSES.x))(q.sample(jax.random.key(1), (40_000,)))
    # standard errors of two means are 0.7% of the sd; of the sds, 0.5%, and more for the tails of products
    np.testing.assert_allclose(local.mean(0), drawn.mean(0), atol=0.04 * float(drawn.std(0).max()))
    np.testing.assert_allclose(local.std(0), drawn.std(0), rtol=0.05)


@pytest.mark.parametrize("expectation", [*map(LocalReparameterisation, (1, 2, 5)), *map(MonteCarlo, (1, 3))], ids=repr)
def test_the_gradient_summed_draw_by_draw_is_that_of_the_sum(expectation):
    """In q, in the weights of the rows and in the model's own numbers, for even and odd numbers of draws."""
    arguments = (MeanFieldGaussian.from_mean_sd(theta_of(REGRESSOR), 0.3), jnp.arange(1.0, 6.0), jnp.asarray(0.7))
    model, key = NetworkRegressor((3, 3, 1), expectation=expectation), jax.random.key(2)

    @jax.jit
    def by_draws(arguments):
        q, weights, noise = arguments
        return eqx.tree_at(lambda m: m.noise, model, noise).ell(q, REAL, weights, key)

    @jax.jit
    def by_rows(arguments):
        q, weights, noise = arguments
        return weights @ model.expectation.rows(eqx.tree_at(lambda m: m.noise, model, noise), q, REAL, key)

    (found, gradient), (plain, expected) = [jax.value_and_grad(total)(arguments) for total in (by_draws, by_rows)]
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), gradient, expected)


def test_rows_are_summed_in_blocks(monkeypatch):
    """Seven rows in blocks of three: the last overlaps, and no row counts twice, in the value or in any gradient."""
    rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:2] + 0.5]), jax.tree.map(jnp.asarray, REAL))
    # with next to no variance all draws are the same, whatever their noise
    q = MeanFieldGaussian.from_mean_sd(theta_of(REGRESSOR), 1e-9)
    weights = jnp.arange(1.0, 8.0)

    def value(arguments):
        return REGRESSOR.ell(*arguments[:1], rows, arguments[1], jax.random.key(0))

    whole = jax.value_and_grad(value)((q, weights))
    monkeypatch.setattr("partita.expectations.sampled.BLOCK", 3)
    blocks = jax.value_and_grad(value)((q, weights))
    np.testing.assert_allclose(blocks[0], whole[0], rtol=1e-7)
    np.testing.assert_allclose(blocks[1][1], whole[1][1], rtol=1e-6)
    np.testing.assert_allclose(
        flat(blocks[1][0]), flat(whole[1][0]), rtol=1e-4, atol=1e-6 * np.abs(flat(whole[1][0])).max()
    )


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
