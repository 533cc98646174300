"""Properties of every family of positive numbers and probabilities, in addition to the contract."""

import jax
import jax.numpy as jnp
import numpy as np


def natural_gradients_are_exact(q):
    """`prop:fixed-point-equations`: the natural gradient of a function of μ is its derivative by μ."""

    def function(r):
        return jnp.sum(jnp.stack([jnp.sum(jnp.sin(leaf / 3)) for leaf in jax.tree.leaves(r.mean_parameters())]))

    found = jax.jit(lambda r: r.natural_gradient(function))(q)
    for leaf, mean in zip(jax.tree.leaves(found), jax.tree.leaves(q.mean_parameters()), strict=True):
        np.testing.assert_allclose(leaf, np.cos(mean / 3) / 3, atol=1e-9)


def improper_factors_multiply_and_print(q, other):
    factor = q / other**20
    assert not factor.is_proper()
    assert "improper" in str(factor)
    assert not np.isfinite(factor.log_normaliser())
    back = factor * other**15 * other**5
    assert back.is_proper()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), back, q)  # sums of numbers up to 1e3


def draws_are_differentiable(q, mean, draws=1000):
    """The gradient of a mean of draws of θ^0.3 is that of its expectation, `mean` of the standard parameters."""

    def power(standard, key):
        return jnp.sum(q.with_standard(standard).sample(key) ** 0.3)

    keys = jax.random.split(jax.random.key(3), draws)
    drawn = jax.jit(jax.vmap(jax.grad(power), in_axes=(None, 0)))(q.standard(), keys)
    exact = jax.jit(jax.grad(mean))(q.standard())
    for sampled, expected in zip(jax.tree.leaves(drawn), jax.tree.leaves(exact), strict=True):
        sampled = np.asarray(sampled)
        error = np.abs(sampled.mean(0) - expected) / (sampled.std(0) / np.sqrt(draws) + 1e-12)
        assert error.max() < 5.5  # standard errors


def single_precision_stays_single(q, other):
    q, other = (jax.tree.map(lambda leaf: leaf.astype(jnp.float32), member) for member in (q, other))

    def everything(r):
        return (
            r * other,
            r.natural_gradient(lambda s: -s.kl(other)),
            r.with_mean_parameters(r.mean_parameters()),
            r.with_unconstrained(r.unconstrained()),
            [r.kl(other), r.entropy(), r.log_normaliser()],
            r.sample(jax.random.key(0), (2,)),
            r.moments(),
        )

    types = {str(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(everything, q))}
    assert types == {"float32"}


def kl_is_the_integral(q, other, reference, their_reference):
    """By the trapezoidal rule over log θ, whose error for such integrands is far below the tolerance."""
    log_theta = np.linspace(-40, 40, 20_001)
    theta = np.exp(log_theta).reshape(-1, *(1,) * np.ndim(reference.mean()))
    log_q, log_p = reference.logpdf(theta), their_reference.logpdf(theta)
    with np.errstate(invalid="ignore"):
        terms = np.where(log_q > -700, np.exp(log_q) * (log_q - log_p) * theta, 0.0)
    np.testing.assert_allclose(q.kl(other), terms.sum() * (log_theta[1] - log_theta[0]), rtol=1e-9)


def density_entropy_and_moments_are_scipys(q, reference):
    theta = reference.ppf(0.3)
    # Closed forms on both sides; JAX's gammaln and digamma are good to about 1e-13.
    np.testing.assert_allclose(q.log_prob(jnp.asarray(theta)), reference.logpdf(theta).sum(), rtol=1e-11)
    np.testing.assert_allclose(q.entropy(), reference.entropy().sum(), rtol=1e-11)
    mean, sd = q.moments()
    np.testing.assert_allclose(mean, reference.mean(), rtol=1e-11)
    np.testing.assert_allclose(sd, reference.std(), rtol=1e-11)
