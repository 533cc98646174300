import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st
from jax.scipy.special import gammaln

from partita import InputError
from partita.checks import check_family
from partita.families import Dirichlet, Family
from support import identities

ALPHA = np.array([[2.5, 0.7, 4.0], [1.0, 8.0, 3.0]])
Q, OTHER = Dirichlet.from_concentration(ALPHA), Dirichlet.from_concentration(np.full((2, 3), 2.0))


def test_contract():
    """With a member whose inverse, unlike Q's, is proper: its concentrations are 2 − α."""
    q = Dirichlet.from_concentration([[1.5, 0.7, 1.9], [1.0, 1.2, 0.5]])
    assert (q / q**2).is_proper()
    assert not (Q / Q**2).is_proper()
    check_family(q, OTHER)


def test_it_agrees_with_scipy():
    theta = np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]])
    references = [st.dirichlet(alpha) for alpha in ALPHA]
    expected = sum(reference.logpdf(t) for reference, t in zip(references, theta, strict=True))
    # Closed forms on both sides; JAX's gammaln and digamma are good to about 1e-13.
    np.testing.assert_allclose(Q.log_prob(jnp.asarray(theta)), expected, rtol=1e-11)
    np.testing.assert_allclose(Q.entropy(), sum(r.entropy() for r in references), rtol=1e-11)
    mean, sd = Q.moments()
    np.testing.assert_allclose(mean, [r.mean() for r in references], rtol=1e-12)
    np.testing.assert_allclose(sd, np.sqrt([r.var() for r in references]), rtol=1e-12)


def test_intervals_are_those_of_betas():
    marginals = st.beta(ALPHA, ALPHA.sum(1, keepdims=True) - ALPHA)
    for end, mass in zip(Q.interval(0.8), (0.1, 0.9), strict=True):
        np.testing.assert_allclose(marginals.cdf(end), mass, atol=0.015)  # five standard errors of 10,000 draws


def test_identities():
    identities.natural_gradients_are_exact(Q)
    identities.improper_factors_multiply_and_print(Q, OTHER)
    identities.single_precision_stays_single(Q, OTHER)


def test_the_closed_natural_gradient_is_that_of_the_dense_solve():
    gradient = jnp.asarray(np.cos(ALPHA))
    dense = jax.jit(Family.pull_back)(Q, gradient)
    np.testing.assert_allclose(jax.jit(Dirichlet.pull_back)(Q, gradient).exponent, dense.exponent, rtol=1e-9)


def test_large_concentrations_hold_in_single_precision():
    """Members whose probabilities are two standard deviations apart; see the gamma's test for the tolerance."""
    scale = np.logspace(0, 6, 25)[:, None]
    probabilities = np.array([0.2, 0.3, 0.5])
    moved = probabilities + np.array([1.0, 0.0, -1.0]) * np.sqrt(0.5 / scale) / 3
    alpha, theirs = np.float32(scale * probabilities), np.float32(scale * 1.5 * moved)
    q, other = Dirichlet(jnp.asarray(alpha - 1)), Dirichlet(jnp.asarray(theirs - 1))
    a, b = np.float64(alpha), np.float64(theirs)
    normalisers = (sp.gammaln(v.sum(1)) - sp.gammaln(v).sum(1) for v in (a, b))
    logs = sp.digamma(a) - sp.digamma(a.sum(1, keepdims=True))
    expected = np.subtract(*normalisers) + np.sum((a - b) * logs, axis=1)
    found = jax.jit(jax.vmap(lambda q, p: q.kl(p)))(q, other)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=3e-6)
    entropy = jax.jit(jax.vmap(lambda q: q.entropy()))(q)
    np.testing.assert_allclose(entropy, [st.dirichlet(v).entropy() for v in a], rtol=1e-5)
    # Solving with the Fisher matrix, whose condition is α, leads back from F · (1, 2, 3) rounded
    fisher = [np.diag(sp.polygamma(1, v)) - sp.polygamma(1, v.sum()) for v in a]
    back = q.pull_back(jnp.asarray(np.float32(fisher @ np.array([1.0, 2.0, 3.0]))))
    np.testing.assert_array_less(abs(back.exponent - np.array([1.0, 2.0, 3.0])), 1e-5 + 1e-6 * a)


def test_draws_are_differentiable():
    def mean(alpha):
        total = jnp.sum(alpha, -1, keepdims=True)
        return jnp.sum(jnp.exp(gammaln(alpha + 0.3) - gammaln(alpha) + gammaln(total) - gammaln(total + 0.3)))

    identities.draws_are_differentiable(Q, mean)


def test_small_concentrations_are_drawn_in_single_precision():
    """A gamma of shape 0.01 is often below the least positive number, and 0/0 no probability; its logarithm is not."""
    draws = Dirichlet.from_concentration(jnp.full(3, 0.01, jnp.float32)).sample(jax.random.key(0), (1000,))
    assert draws.dtype == jnp.float32
    np.testing.assert_allclose(draws.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("concentration", "sentence"),
    [
        ([1.0, np.nan], "The concentration of a Dirichlet .* not nan."),
        ([1.0, -0.5], "The concentration of a Dirichlet .* not -0.5."),
        ([2.0], "at least two categories"),
        (2.0, "at least two categories"),
    ],
)
def test_invalid_input_raises_one_sentence(concentration, sentence):
    with pytest.raises(InputError, match=sentence):
        Dirichlet.from_concentration(concentration)
