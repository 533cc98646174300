"""Gaussians in blocks, against full ones with the same precision matrix."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

from partita import FullGaussian, InputError
from partita.checks import check_family
from partita.families import BlockGaussian, Family
from partita.families.description import describe, template

GENERATOR = np.random.default_rng(0)
SIZES = (2, 1, 3)
MEAN = GENERATOR.normal(size=6)
X = jnp.asarray(GENERATOR.normal(size=(4, 6)))
ROWS = jnp.asarray(GENERATOR.uniform(size=4))


def covariances(sizes, seed):
    generator = np.random.default_rng(seed)
    roots = [generator.normal(size=(size, size)) + 2 * np.eye(size) for size in sizes]
    return [root @ root.T for root in roots]


def member(sizes, mean=MEAN, seed=1):
    return BlockGaussian.from_mean_covariances(mean, covariances(sizes, seed))


def full(q):
    return FullGaussian.from_mean_covariance(q.mean, block_diag(*covariances_of(q)))


def covariances_of(q):
    dense, ends = np.asarray(q.covariance), np.cumsum(q.sizes)
    return [dense[end - size : end, end - size : end] for size, end in zip(q.sizes, ends, strict=True)]


@functools.cache
def first():
    return member(SIZES)


@functools.cache
def second():
    return member(SIZES, MEAN / 2 + 1, seed=2)


@pytest.mark.parametrize("sizes", [SIZES, pytest.param((2, 2), marks=pytest.mark.slow)])
def test_contract(sizes):
    check_family(member(sizes, MEAN[: sum(sizes)]), BlockGaussian.standard_normal(sizes, 1.5))


@pytest.mark.parametrize(
    "sizes", [SIZES, pytest.param((6,), marks=pytest.mark.slow)], ids=["three blocks", "one block"]
)
def test_it_is_the_full_gaussian_of_the_same_matrix(sizes):
    q, p = member(sizes), member(sizes, MEAN / 2 + 1, seed=2)
    key, scale = jax.random.key(3), jnp.arange(1.0, 7.0)

    def numbers(q, p):
        drawn = q.sample(key, (5,))
        return {
            "log density": jax.vmap(q.log_prob)(drawn),
            "draws": drawn if len(sizes) == 1 else drawn.shape,
            "normaliser, entropy, divergences": [q.log_normaliser(), q.entropy(), q.kl(p), q.distance(p), q.cross(p)],
            "length": q.length(p),
            "moments": [q.mean, q.sd, q.covariance, q.interval(0.9)],
            "predictors": q.project(X),
            "range": q.precision_range(p),
            "products": [(q * p / q**0.3).matrix(), (q * p / q**0.3).precision_mean],
            "stretched": [q.stretched(scale).matrix(), q.stretched(scale).precision_mean],
            "Λ": [q.matrix(), q.times(scale)],
        }

    found, expected = (jax.jit(numbers)(*pair) for pair in ((q, p), (full(q), full(p))))
    # Numbers of size 1 to 100 through Cholesky factors of condition numbers below 1e3.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected)
    assert q.independent_groups == len(sizes)
    assert q.size() == 6 + sum(size**2 for size in sizes)


def test_what_it_holds_of_a_matrix_is_its_blocks():
    matrix = np.asarray(X.T * ROWS) @ X
    blocks = block_diag(matrix[:2, :2], matrix[2:3, 2:3], matrix[3:, 3:])
    for held in (first().cut(jnp.asarray(matrix)), first().gram(X, ROWS)):
        assert held.shape == first().precision.shape
        np.testing.assert_allclose(BlockGaussian(first().precision_mean, held, SIZES).matrix(), blocks, rtol=1e-12)
        assert np.count_nonzero(held) == 4 + 1 + 9


def test_natural_gradients_are_the_blocks_of_the_full_ones():
    """The gradient in a covariance that has zeros is that of the full family, but for the elements that are zero."""

    def function(r):
        mean, variance = r.project(X)
        return jnp.sum(jnp.cos(mean) * jnp.exp(-variance / 9))

    found, dense = (jax.jit(lambda r: r.natural_gradient(function))(r) for r in (first(), full(first())))
    np.testing.assert_allclose(found.precision, first().cut(dense.precision), rtol=1e-9, atol=1e-10)
    by_mean = dense.precision_mean - dense.precision @ first().mean
    np.testing.assert_allclose(found.precision_mean, by_mean + found.times(first().mean), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("free", [(True, False), (False, True)])
def test_restricted_directions_are_the_dense_ones(free):
    """Blocks of one size, since a dense Fisher matrix is singular where a block is short."""
    q = member((2, 2), MEAN[:4])
    drawn = jax.tree.map(lambda leaf: jnp.asarray(GENERATOR.normal(size=leaf.shape)), q).symmetrised()
    mask = jax.tree.unflatten(jax.tree.structure(q), free)
    ways = (lambda: q.restricted(drawn, mask), lambda: Family.restricted(q, drawn, mask))
    found, dense = (jax.jit(way)() for way in ways)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), found, dense)


def test_what_came_from_elsewhere_is_made_symmetric_and_empty_where_a_block_is_short():
    noise = jnp.asarray(GENERATOR.normal(size=first().precision.shape))
    found = BlockGaussian(first().precision_mean, first().precision + noise, SIZES).symmetrised()
    np.testing.assert_array_equal(found.precision, jnp.swapaxes(found.precision, 1, 2))
    assert np.count_nonzero(found.precision) == 4 + 1 + 9


def test_an_improper_block_makes_it_improper():
    one = BlockGaussian(first().precision_mean, first().precision.at[1].multiply(-1), SIZES)
    assert not one.is_proper()
    assert "improper" in str(one)
    assert not np.isfinite(one.log_normaliser())


def test_its_description_goes_through_json():
    found = template(json.loads(json.dumps(describe(first()))))
    assert jax.tree.structure(found) == jax.tree.structure(first())
    assert found.sizes == SIZES
    np.testing.assert_array_equal((found * first()).precision, first().precision)


def test_a_batch_of_members_is_mapped_over():
    members = [first() ** power for power in (0.5, 2.0)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    other = second()
    divergence = jax.jit(lambda q: q.kl(other))
    expected = [divergence(q) for q in members]
    np.testing.assert_allclose(jax.jit(jax.vmap(divergence))(batch), expected, rtol=1e-12)


def test_single_precision_stays_single():
    single, other = (jax.tree.map(lambda leaf: leaf.astype(jnp.float32), q) for q in (first(), second()))

    def everything(q):
        return (
            [q * other, (q / other) ** 0.3, q.natural_gradient(lambda s: -s.kl(other))],
            [q.with_mean_parameters(q.mean_parameters()), q.with_unconstrained(q.unconstrained())],
            [q.kl(other), q.entropy(), q.log_normaliser(), q.moments(), q.sample(jax.random.key(0), (2,))],
            [q.stretched(q.sd), q.precision_range(other), q.covariance],
        )

    assert {str(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(everything, single))} == {"float32"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BlockGaussian.standard_normal([]), "at least one block"),
        (lambda: BlockGaussian.standard_normal([2, 0]), "size of a block"),
        (lambda: BlockGaussian.standard_normal(3), "sizes of blocks"),
        (lambda: BlockGaussian.standard_normal([2], -1.0), "scale"),
        (lambda: BlockGaussian.from_mean_sd(np.zeros(3), np.ones(3), [2]), "do not match"),
        (lambda: BlockGaussian.from_mean_sd(np.zeros(2), np.zeros(2), [2]), "above 0"),
        (lambda: BlockGaussian.from_mean_covariances(np.zeros(3), [np.eye(2)]), "do not match"),
        (lambda: BlockGaussian.from_mean_covariances(np.zeros(2), [np.ones((2, 1))]), "square"),
        (lambda: BlockGaussian.from_mean_covariances(np.zeros(2), [-np.eye(2)]), "positive definite"),
        (lambda: first() * BlockGaussian.standard_normal([2, 2, 2]), "different shape"),
    ],
)
def test_mistakes_are_one_sentence(make, said):
    with pytest.raises(InputError, match=said):
        make()
