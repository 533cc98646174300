"""Leaves are all there is to a member: equal leaves, equal bits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
from jax.flatten_util import ravel_pytree

from partita import MeanFieldGaussian
from partita.families import Dirichlet, Gamma, InverseGamma, LogNormal, NormalGamma, Product

RNG = np.random.default_rng(0)
FACTOR = np.cov(RNG.normal(size=(5, 40)))
NORMAL_GAMMA = [
    NormalGamma.from_parameters(np.arange(5.0) / 3, FACTOR, 37.3, 12.1),
    NormalGamma.from_parameters(np.zeros(5), np.eye(5), 2.0, 3.0),
]
GAMMA = [Gamma.from_shape_rate(*np.exp(RNG.normal(size=(2, 50)))) for _ in range(2)]
FIELD = [MeanFieldGaussian.from_mean_sd(*np.exp(RNG.normal(size=(2, 50)))) for _ in range(2)]
FULL = [member.gaussian for member in NORMAL_GAMMA]
DIRICHLET = [Dirichlet.from_concentration(np.exp(RNG.normal(size=(4, 5)))) for _ in range(2)]
PAIRS = {
    "mean-field Gaussian": FIELD,
    "full Gaussian": FULL,
    "gamma": GAMMA,
    "inverse gamma": [InverseGamma.of(member) for member in GAMMA],
    "log-normal": [LogNormal.of(member) for member in FIELD],
    "full log-normal": [LogNormal.of(member) for member in FULL],
    "Dirichlet": DIRICHLET,
    "normal-gamma": NORMAL_GAMMA,
    "product": [
        Product(joint=joint, inner=Product(scale=InverseGamma.of(gamma), weights=weights))
        for joint, gamma, weights in zip(NORMAL_GAMMA, GAMMA, DIRICHLET, strict=True)
    ],
}
every = pytest.mark.parametrize("name", PAIRS)


def same_bits(first, second):
    leaves = [[np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)] for tree in (first, second)]
    return leaves[0] == leaves[1]


def answers(q, other):
    return q.kl(other), q.entropy(), q.mean_parameters(), q.standard()


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_copy_rebuilt_from_leaves_equals_the_original(name, dtype):
    q, other = (jax.tree.map(lambda leaf: leaf.astype(dtype), member) for member in PAIRS[name])
    made = {"standard": q.with_standard(q.standard()), "unconstrained": q.with_unconstrained(q.unconstrained())}
    for way, member in made.items():
        copied = jax.tree.map(lambda leaf: leaf, member)
        assert eqx.tree_equal(copied, member)
        assert jax.tree.structure(copied) == jax.tree.structure(q), way
        assert same_bits(answers(copied, other), answers(member, other)), way


@every
def test_a_member_for_derivatives_keeps_its_coordinates_as_leaves(name):
    q, other = (jax.tree.map(lambda leaf: leaf.astype(jnp.float32), member) for member in PAIRS[name])
    for plain, member in (
        (q.with_standard(q.standard()), q.at_standard(q.standard())),
        (q.with_unconstrained(q.unconstrained()), q.at_unconstrained(q.unconstrained())),
    ):
        assert same_bits(answers(jax.tree.map(lambda leaf: leaf, member), other), answers(member, other))
        for found in (member.plain(), member * q.one(), other * member / other**1, member**1, member.one()):
            assert jax.tree.structure(found) == jax.tree.structure(q)
        assert same_bits(member.plain(), plain)
        assert member.size() == q.size()


@every
def test_natural_gradients_are_exact_for_functions_of_the_leaves(name):
    """At a member for derivatives: the Fisher matrix times ∇_μ f is ∇_η f, which is taken at plain members."""
    q, other = PAIRS[name]
    theta = other.sample(jax.random.key(0))

    def function(r):
        many = [other.cross(r), other.distance(r), (r**0.5 * other).log_normaliser(), r.log_prob(theta), other.kl(r)]
        return jnp.stack(many) @ jnp.arange(1.0, 6.0)

    value, found = jax.jit(lambda r: r.value_and_natural_gradient(function))(q)
    expected, gradient = jax.jit(jax.value_and_grad(function))(q)
    fisher = jax.jit(lambda r: r.fisher())(q)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    moved, gradient = fisher @ ravel_pytree(found)[0], ravel_pytree(gradient.symmetrised())[0]
    np.testing.assert_allclose(moved, gradient, rtol=1e-6, atol=1e-8 * np.abs(gradient).max())


@pytest.mark.parametrize("kind", ["gamma", "inverse gamma"])
def test_gradients_in_unconstrained_coordinates_hold_in_single_precision(kind):
    """Of 3 E[log u] − 2 E[u] in log(shape) it is 3 (s ψ′(s) − 1), about 3/(2 s), whatever the mean."""
    shape = np.float32(np.logspace(np.log10(0.5), 6, 30))
    q = Gamma.from_shape_rate(jnp.asarray(shape), jnp.asarray(shape / 1.7))
    q = q if kind == "gamma" else InverseGamma.of(q)

    def function(unconstrained):
        log, negative = q.at_unconstrained(unconstrained).mean_parameters()
        return jnp.sum(3 * log + 2 * negative)

    found = jax.jit(jax.grad(function))(q.unconstrained()).log_shape
    exact = np.float64(np.exp(np.asarray(q.unconstrained().log_shape)))
    trigamma = np.where(exact > 100, 1 / (2 * exact) + 1 / (6 * exact**2), exact * sp.polygamma(1, exact) - 1)
    np.testing.assert_allclose(found, 3 * trigamma, rtol=1e-4)
