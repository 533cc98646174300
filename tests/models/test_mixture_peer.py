"""A mixture of Gaussians beside scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from sklearn.mixture import BayesianGaussianMixture

import partita as pt
from partita.expectations import Expectation
from partita.models import Model


class Pair(Model):
    """A mixture of two Gaussians in one dimension, mean and precision of each jointly normal–gamma."""

    expectation: Expectation = pt.expectations.Assignments()

    def log_density(self, theta, datum):
        each = [norm.logpdf(datum[0], t["coefficients"][0], t["precision"] ** -0.5) for t in self._both(theta)]
        return jax.nn.logsumexp(jnp.log(theta["weights"]) + jnp.stack(each))

    def expected_joint_log_densities(self, q, data):
        table = pt.Table(jnp.ones_like(data), data[:, 0])
        each = [pt.models.UnknownNoiseRegression().expected_log_densities(part, table) for part in self._both(q)]
        return q["weights"].expected_log + jnp.stack(each, axis=1)

    @staticmethod
    def _both(of):
        return of["first"], of["second"]


@pytest.mark.slow
def test_the_mixture_agrees_with_scikit_learn_under_the_same_prior():
    """In one dimension, with normal–gamma components: scikit-learn's prior of a mean is in units of its precision.

    A product of independent means and precisions has another prior and another q, and in more dimensions scikit-learn
    takes E[log τ] of diagonal precisions from a full Wishart: neither can be matched.
    """
    generator = np.random.default_rng(1)
    x = np.concatenate([generator.normal(-2, 0.7, size=(40, 1)), generator.normal(1.5, 1.2, size=(60, 1))])
    concentration, mean_precision, degrees, covariance = 1.5, 0.2, 3.0, 1.4
    theirs = BayesianGaussianMixture(
        n_components=2,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=concentration,
        mean_prior=[0.0],
        mean_precision_prior=mean_precision,
        degrees_of_freedom_prior=degrees,
        covariance_prior=[covariance],
        reg_covar=0.0,
        tol=1e-13,
        max_iter=5000,
        random_state=0,
    ).fit(x)
    order = np.argsort(theirs.means_[:, 0])

    def component(mean):
        return pt.families.NormalGamma.from_parameters([mean], [[1 / mean_precision]], degrees / 2, covariance / 2)

    weights = pt.families.Dirichlet.from_concentration(np.full(2, concentration))
    prior = pt.families.Product(weights=weights, first=component(0.0), second=component(0.0))
    start = pt.families.Product(weights=weights, first=component(-2.0), second=component(2.0))
    parts = pt.federate(np.split(x[generator.permutation(100)], [8, 20, 45, 70]), buckets=1)
    q = pt.run(
        pt.methods.sequential(pt.solvers.FixedPoint(max_steps=300, tolerance=1e-22), start=start),
        Pair(),
        prior,
        parts,
        rounds=60,
        tolerance=None,
    ).posterior.q
    np.testing.assert_allclose(q["weights"].concentration, theirs.weight_concentration_[order], rtol=1e-6)
    for part, k in zip((q["first"], q["second"]), order, strict=True):
        (mean, variance), (shape, precision) = part.standard()
        np.testing.assert_allclose(mean, theirs.means_[k], rtol=1e-6)
        np.testing.assert_allclose(variance[0], 1 / theirs.mean_precision_[k], rtol=1e-6)
        np.testing.assert_allclose(shape, theirs.degrees_of_freedom_[k] / 2, rtol=1e-6)
        np.testing.assert_allclose(1 / precision, theirs.covariances_[k, 0], rtol=1e-6)
