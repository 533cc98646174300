import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st
from jax.scipy.special import gammaln

from partita import InputError
from partita.checks import check_family
from partita.families import Family, Gamma, InverseGamma
from partita.families.gamma import Standard, shape_of
from partita.families.stirling import log_gap
from support import identities

SHAPE, RATE = np.array([[2.5, 0.9, 40.0], [7.0, 3.0, 2.2]]), np.array([[1.5, 3.0, 0.2], [10.0, 1.0, 5.0]])
GAMMA, INVERSE = Gamma.from_shape_rate(SHAPE, RATE), InverseGamma.from_shape_scale(SHAPE, RATE)
OTHER = Gamma.from_shape_rate(3.0, 2.0 * np.ones((2, 3)))
INVERSE_OTHER = InverseGamma.of(OTHER)
PAIRS = {"gamma": (GAMMA, OTHER), "inverse gamma": (INVERSE, INVERSE_OTHER)}
SCIPY = {
    "gamma": (st.gamma(SHAPE, scale=1 / RATE), st.gamma(3.0, scale=0.5)),
    "inverse gamma": (st.invgamma(SHAPE, scale=RATE), st.invgamma(3.0, scale=2.0)),
}
both = pytest.mark.parametrize("kind", PAIRS)


@both
def test_contract(kind):
    check_family(*PAIRS[kind])


@both
def test_density_entropy_moments_and_kl_are_scipys(kind):
    identities.density_entropy_and_moments_are_scipys(PAIRS[kind][0], SCIPY[kind][0])
    identities.kl_is_the_integral(*PAIRS[kind], *SCIPY[kind])


@both
def test_intervals_hold_their_mass(kind):
    for end, mass in zip(PAIRS[kind][0].interval(0.8), (0.1, 0.9), strict=True):
        np.testing.assert_allclose(SCIPY[kind][0].cdf(end), mass, atol=0.015)  # five standard errors of 10,000 draws


@both
def test_identities(kind):
    identities.natural_gradients_are_exact(PAIRS[kind][0])
    identities.improper_factors_multiply_and_print(*PAIRS[kind])
    identities.single_precision_stays_single(*PAIRS[kind])


def test_the_closed_natural_gradient_is_that_of_the_dense_solve():
    gradient = Standard(jnp.asarray(np.cos(SHAPE)), jnp.asarray(np.sin(SHAPE / RATE)))
    closed, dense = (jax.jit(family.pull_back)(GAMMA, gradient) for family in (Gamma, Family))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), closed, dense)


@both
def test_draws_are_differentiable(kind):
    power = 0.3 if kind == "gamma" else -0.3

    def mean(standard):
        shape, mean_of_u = standard
        return jnp.sum(jnp.exp(gammaln(shape + power) - gammaln(shape)) * (mean_of_u / shape) ** power)

    identities.draws_are_differentiable(PAIRS[kind][0], mean)


@both
def test_kl_of_large_shapes_holds_in_single_precision(kind):
    """Members a few standard deviations r apart, whose shapes are the same or of another size.

    Means then differ by a part r/√s of themselves, which arithmetic knows to a part eps √s/r, and KL to twice that:
    1e-4 at a shape s of 1e6. Where KL is small, an absolute error of a few eps · log Γ(10) is left.
    """
    shape = np.float32(np.tile(np.logspace(np.log10(0.5), 6, 30), (4, 1)))
    r, part = np.array([[1.5], [3.0], [-2.0], [3.0]]), np.array([[1.0], [1.0], [0.8], [3.0]])
    theirs = np.float32(shape * part)
    rate, their_rate = np.float32(shape / 1.7), np.float32(theirs / 1.7 * np.exp(r / np.sqrt(shape)))
    members = [Gamma(jnp.asarray(s - 1), jnp.asarray(b)) for s, b in ((shape, rate), (theirs, their_rate))]
    if kind == "inverse gamma":
        members = [InverseGamma.of(member) for member in members]
    found = jax.jit(jax.vmap(jax.vmap(lambda q, p: q.kl(p))))(*members)
    assert found.dtype == jnp.float32
    a, b, c, d = (np.float64(values) for values in (shape, rate, theirs, their_rate))
    expected = (a - c) * sp.digamma(a) - sp.gammaln(a) + sp.gammaln(c) + c * np.log(b / d) + a * (d / b - 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-6)


@both
def test_natural_gradients_at_large_shapes_hold_in_single_precision(kind):
    """Of 3 E[log u] − 2 E[u] it is (3, 2) at every shape."""
    shape = jnp.logspace(np.log10(0.5), 6, 30, dtype=jnp.float32)
    q = Gamma.from_shape_rate(shape, shape / 1.7)

    def function(r):
        log, negative = r.mean_parameters()
        return jnp.sum(3 * log + 2 * negative)

    found = jax.jit(lambda r: r.natural_gradient(function))(q if kind == "gamma" else InverseGamma.of(q))
    for leaf, exact in zip(jax.tree.leaves(found), (3, 2), strict=True):
        np.testing.assert_allclose(leaf, exact, rtol=1e-5)


def test_entropy_and_moments_of_large_shapes_hold_in_single_precision():
    shape = np.float32(np.logspace(np.log10(0.5), 6, 30))
    q = Gamma.from_shape_rate(jnp.asarray(shape), jnp.asarray(shape / 1.7))
    exact = np.float64(shape)
    reference = st.gamma(exact, scale=1 / np.float64(np.float32(shape / 1.7)))
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda r: r.entropy()))(q), reference.entropy(), rtol=1e-5)
    expected_log = sp.digamma(exact) + np.log(reference.var() / reference.mean())
    np.testing.assert_allclose(q.expected_log, expected_log, rtol=1e-5)
    np.testing.assert_allclose(shape_of(log_gap(jnp.asarray(shape))), shape, rtol=1e-5)


def test_means_that_are_far_apart_have_a_finite_kl():
    """A ratio of 1e-9 is not 0, though in single precision it is −1 less one."""
    q, other = Gamma.from_shape_rate(jnp.float32(2.0), jnp.float32(2e9)), Gamma.from_shape_rate(jnp.float32(2.0), 2.0)
    np.testing.assert_allclose(q.kl(other), 2 * (1e-9 - 1 - np.log(1e-9)), rtol=1e-6)


def test_the_shape_is_recovered_from_the_mean_parameters():
    shape = np.logspace(-3, 4, 30)
    gap = np.log(shape) - sp.digamma(shape)
    # The gap is a difference of numbers of size log(shape), and about 1/(2 shape).
    assert (abs(shape_of(jnp.asarray(gap)) / shape - 1) < 1e-14 + 1e-14 * shape).all()


@pytest.mark.parametrize(("shape", "rate"), [(-2.5, 2.0), (0.0, 2.0), (2.0, 0.0), (2.0, -1.0), (np.nan, 1.0)])
def test_improper_factors_have_no_normaliser(shape, rate):
    """Also where log |Γ(shape)| is a number."""
    q = Gamma(jnp.asarray(shape - 1), jnp.asarray(rate))
    assert not q.is_proper()
    assert not np.isfinite(q.log_normaliser())
    assert not InverseGamma(q / InverseGamma.stretch(q)).is_proper()


def test_small_shapes_are_drawn_in_single_precision():
    single = jnp.asarray([0.01, 0.02], jnp.float32)
    draws = Gamma.from_shape_rate(single, single).sample(jax.random.key(0), (1000,))
    assert draws.dtype == jnp.float32
    assert np.isfinite(draws).all()


def test_moments_that_do_not_exist_are_infinite():
    mean, sd = InverseGamma.from_shape_scale([0.5, 1.5, 3.0], 1.0).moments()
    np.testing.assert_array_equal(mean, [np.inf, 2.0, 0.5])
    np.testing.assert_array_equal(sd, [np.inf, np.inf, 0.5])


def test_the_reciprocal_of_a_draw_has_the_inverse_law():
    key = jax.random.key(0)
    np.testing.assert_allclose(1 / INVERSE.sample(key), GAMMA.sample(key), rtol=1e-14)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Gamma.from_shape_rate(-1.0, 2.0), "The shape of a gamma must be finite and above 0, not -1."),
        (lambda: Gamma.from_shape_rate(np.ones(2), [1.0, 0.0]), "The rate of a gamma .* not 0."),
        (lambda: Gamma.from_shape_rate(np.inf, 1.0), "The shape of a gamma .* not inf."),
        (lambda: Gamma.from_shape_rate(np.ones(2), np.ones(3)), r"Shapes \(2,\) and rates \(3,\) .* do not broadcast"),
        (lambda: InverseGamma.from_shape_scale(0, 1), "The shape of an inverse gamma .* not 0."),
        (lambda: InverseGamma.from_shape_scale(1, [2, -3]), "The scale of an inverse gamma .* not -3."),
        (lambda: GAMMA * INVERSE, "cannot be combined"),
        (lambda: GAMMA * Gamma.from_shape_rate(1.0, 1.0), "different shape"),
    ],
)
def test_invalid_input_raises_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()


def test_a_distribution_can_be_built_inside_jit():
    assert jax.jit(lambda value: Gamma.from_shape_rate(value, 2.0).shape)(jnp.asarray(3.0)) == 3.0


def test_python_numbers_become_arrays_with_strong_dtypes():
    """A weak type, as Python's numbers have, turns strong on the way, and every program would be compiled twice."""
    for q in (Gamma.from_shape_rate(2.0, 3), InverseGamma.from_shape_scale(2, 3.0)):
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(q))
