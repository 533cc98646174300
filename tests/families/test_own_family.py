"""A gamma family, written as a user would with the abstract methods only: nothing in the base assumes a Gaussian."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
import scipy.stats as st

from partita import Conjugate, MeanFieldGaussian
from partita.checks import check_family
from partita.data import federate
from partita.expectations import Expectation
from partita.families import Family, Product
from partita.families.factor import Factor
from partita.local.objective import Problem
from partita.local.solvers import FixedPoint, Outcome
from partita.models import Model


class Gamma(Family):
    shape_minus_one: jax.Array
    minus_rate: jax.Array

    def statistics(self, theta):
        return jnp.log(theta), theta

    def log_normaliser(self):
        shape, rate = self.standard()
        return jnp.sum(jsp.special.gammaln(shape) - shape * jnp.log(rate))

    def is_proper(self):
        shape, rate = self.standard()
        return self.is_finite() & jnp.all((shape > 0) & (rate > 0))

    def sample(self, key, shape=()):
        a, rate = self.standard()
        return jax.random.gamma(key, a, shape + a.shape) / rate

    def standard(self):
        return self.shape_minus_one + 1, -self.minus_rate

    def with_standard(self, standard):
        return type(self)(standard[0] - 1, -standard[1])

    def unconstrained(self):
        return jax.tree.map(jnp.log, self.standard())

    def with_unconstrained(self, unconstrained):
        return self.with_standard(jax.tree.map(jnp.exp, unconstrained))


class ExpectedStatistics(Expectation):
    """For a density that is linear in the sufficient statistics."""

    def rows(self, model, q, data, key):
        expected_log, expected = q.mean_parameters()
        return jnp.sum(data * expected_log - expected - jsp.special.gammaln(data + 1), axis=1)


class Counts(Model):
    """y ~ Poisson(θ), elementwise."""

    expectation: Expectation = ExpectedStatistics()

    def log_density(self, theta, datum):
        return jnp.sum(datum * jnp.log(theta) - theta - jsp.special.gammaln(datum + 1))


SHAPE, RATE = np.array([2.5, 0.9]), np.array([1.5, 3.0])
Q = Gamma(jnp.asarray(SHAPE - 1), jnp.asarray(-RATE))
OTHER = Gamma(jnp.array([3.0, 2.0]), jnp.array([-2.0, -0.5]))
COUNTS = jnp.array([[3.0, 0.0], [1.0, 2.0], [4.0, 0.0]])


def test_contract():
    check_family(Q, OTHER)


def test_contract_of_a_product_with_a_gaussian():
    normal = MeanFieldGaussian.from_mean_sd(jnp.array([0.3]), 0.7)
    check_family(Product(rate=Q, level=normal), Product(rate=OTHER, level=normal.one() * normal**2))


def test_density_entropy_and_kl_are_scipys():
    reference = st.gamma(SHAPE, scale=1 / RATE)
    theta = jnp.array([1.2, 0.3])
    # Closed forms on both sides; JAX's gammaln and digamma are good to about 1e-13.
    np.testing.assert_allclose(Q.log_prob(theta), reference.logpdf(theta).sum(), rtol=1e-11)
    np.testing.assert_allclose(Q.entropy(), reference.entropy().sum(), rtol=1e-11)
    other = st.gamma([4.0, 3.0], scale=[0.5, 2.0])
    each = [
        st.gamma(SHAPE[i], scale=1 / RATE[i]).expect(lambda t, i=i: reference.logpdf(t)[i] - other.logpdf(t)[i])
        for i in range(2)
    ]
    np.testing.assert_allclose(Q.kl(OTHER), sum(each), rtol=1e-6)  # adaptive quadrature's own tolerance


@pytest.mark.parametrize("start", [OTHER, Gamma(jnp.array([200.0, -0.9]), jnp.array([-1.0, -50.0]))])
def test_mean_parameters_are_inverted_from_distant_starts(start):
    back = jax.jit(lambda s, mean: s.with_mean_parameters(mean))(start, Q.mean_parameters())
    np.testing.assert_allclose(back.standard(), (SHAPE, RATE), rtol=1e-9)


def test_default_moments_and_interval_are_those_of_draws():
    reference = st.gamma(SHAPE, scale=1 / RATE)
    mean, sd = Q.moments()
    # Five standard errors of 10,000 draws: of the mean, of the sd, and of a quantile.
    assert (abs(mean - reference.mean()) < 5 * reference.std() / 100).all()
    kurtosis = reference.stats("k") + 3
    assert (abs(sd - reference.std()) < 5 * reference.std() * np.sqrt((kurtosis - 1) / 4) / 100).all()
    for end, mass in zip(Q.interval(0.8), (0.1, 0.9), strict=True):
        assert (abs(reference.cdf(end) - mass) < 5 * 0.3 / 100).all()


def problem():
    shard = federate([np.asarray(COUNTS)]).shards[0]
    return Problem(Counts(), shard, Factor.of(OTHER), jnp.asarray(1.0), OTHER, jnp.asarray(1.0))


@pytest.mark.parametrize("solver", [Conjugate(), FixedPoint()])
def test_the_conjugate_posterior_is_the_textbooks(solver):
    """Gamma(a, b) and Poisson counts give Gamma(a + Σy, b + n), in one step from anywhere."""
    solution = jax.jit(lambda p: solver.solve(p, jax.random.key(0)))(problem())
    assert int(solution.outcome) == Outcome.CONVERGED
    shape, rate = OTHER.standard()
    np.testing.assert_allclose(solution.q.standard(), (shape + COUNTS.sum(0), rate + 3), rtol=1e-10)
