import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

from partita import InputError
from partita.checks import check_family
from partita.families import NormalGamma
from support import identities

MEAN, COVARIANCE = np.array([0.3, -1.0]), np.array([[0.4, 0.1], [0.1, 0.2]])
SHAPE, RATE = 4.0, 2.5
Q = NormalGamma.from_parameters(MEAN, COVARIANCE, SHAPE, RATE)
OTHER = NormalGamma.from_parameters(np.zeros(2), np.eye(2), 2.0, 3.0)
THETA = {"coefficients": jnp.array([0.1, -0.4]), "precision": jnp.asarray(1.7)}


def test_contract():
    check_family(Q, OTHER)


def test_the_density_is_that_of_a_gamma_and_a_gaussian():
    expected = st.gamma(SHAPE, scale=1 / RATE).logpdf(1.7)
    expected += st.multivariate_normal(MEAN, COVARIANCE / 1.7).logpdf(THETA["coefficients"])
    np.testing.assert_allclose(Q.log_prob(THETA), expected, rtol=1e-11)


def test_moments_are_those_of_student_and_gamma():
    mean, sd = Q.moments()
    scale = np.sqrt(np.diag(COVARIANCE) * RATE / SHAPE)
    reference = st.t(2 * SHAPE, MEAN, scale)
    np.testing.assert_allclose(mean["coefficients"], reference.mean(), rtol=1e-12)
    np.testing.assert_allclose(sd["coefficients"], reference.std(), rtol=1e-12)
    gamma = st.gamma(SHAPE, scale=1 / RATE)
    np.testing.assert_allclose((mean["precision"], sd["precision"]), (gamma.mean(), gamma.std()), rtol=1e-12)
    for name, law in (("coefficients", reference), ("precision", gamma)):
        low, high = (end[name] for end in Q.interval(0.8))
        # five standard errors of a quantile of 10,000 draws
        np.testing.assert_allclose(law.cdf(low), 0.1, atol=0.015)
        np.testing.assert_allclose(law.cdf(high), 0.9, atol=0.015)


def test_coefficients_without_a_variance_have_an_infinite_sd():
    q = NormalGamma.from_parameters(MEAN, COVARIANCE, 1.0, 1.0)
    assert np.isinf(q.moments()[1]["coefficients"]).all()


def test_identities():
    identities.natural_gradients_are_exact(Q)
    identities.improper_factors_multiply_and_print(Q, OTHER)
    identities.single_precision_stays_single(Q, OTHER)


def test_draws_are_differentiable():
    """E|β|² = |m|² + tr V · rate/(shape − 1), in all standard parameters."""

    def square(standard, key):
        return jnp.sum(Q.with_standard(standard).sample(key)["coefficients"] ** 2)

    def mean(standard):
        (centre, covariance), (shape, tau) = standard
        return jnp.sum(centre**2) + jnp.trace(covariance) * shape / tau / (shape - 1)

    keys = jax.random.split(jax.random.key(3), 2000)
    drawn = jax.jit(jax.vmap(jax.grad(square), in_axes=(None, 0)))(Q.standard(), keys)
    exact = jax.jit(jax.grad(mean))(Q.standard())
    for sampled, expected in zip(jax.tree.leaves(drawn), jax.tree.leaves(exact), strict=True):
        sampled = np.asarray(sampled)
        if sampled.ndim == 3:  # a function of a symmetric matrix
            sampled = (sampled + sampled.transpose(0, 2, 1)) / 2
        error = np.abs(sampled.mean(0) - expected) / (sampled.std(0) / np.sqrt(len(keys)) + 1e-12)
        assert error.max() < 5.5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((MEAN, COVARIANCE, -1.0, 1.0), "The shape of a normal–gamma .* not -1."),
        ((MEAN, COVARIANCE, 1.0, 0.0), "The rate of a normal–gamma .* not 0."),
        ((MEAN, np.eye(3), 1.0, 1.0), r"\(2,\) and a covariance of shape \(3, 3\) do not match"),
    ],
)
def test_invalid_input_raises_one_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        NormalGamma.from_parameters(*arguments)
