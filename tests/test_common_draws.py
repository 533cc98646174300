"""Draws that never change: exact for what is quadratic, near for the rest, and the same for all clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.errors import SettingsError

GENERATOR = np.random.default_rng(3)
X, KEY = GENERATOR.normal(size=(40, 3)), jax.random.key(0)
ROOT = np.tril(GENERATOR.normal(size=(3, 3))) / 3 + np.eye(3)
Q = pt.FullGaussian.from_mean_covariance(np.array([0.3, -0.5, 1.0]), ROOT @ ROOT.T / 4)
TABLE = pt.Table(X, X @ [0.5, -0.2, 0.1])
GAUSSIAN = pt.LogDensity(
    lambda theta, row: jax.scipy.stats.norm.logpdf(row.y, row.x @ theta, 0.5),
    expectation=pt.expectations.CommonDraws(8),
)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_mean_and_covariance_are_exact(size):
    mean = np.arange(size) / size
    q = pt.MeanFieldGaussian.from_mean_sd(mean, 0.5 * np.ones(size))
    drawn, log_masses = pt.expectations.CommonDraws(30).nodes(q, KEY)
    assert len(drawn) >= 30
    assert len(drawn) % (2 * size) == 0
    np.testing.assert_allclose(np.exp(log_masses).sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=1e-12)
    away = np.asarray(drawn) - mean
    np.testing.assert_allclose(away.T @ away / len(away), np.eye(size) / 4, atol=1e-12)


def test_what_is_quadratic_is_exact_with_few_draws():
    weights = jnp.ones(40)
    known = pt.LinearRegression(0.5).ell(Q, TABLE, weights, KEY)
    np.testing.assert_allclose(jax.jit(GAUSSIAN.ell)(Q, TABLE, weights, KEY), known, rtol=1e-10)
    rows = GAUSSIAN.expectation.rows(GAUSSIAN, Q, TABLE, KEY)
    np.testing.assert_allclose(rows.sum(), known, rtol=1e-10)


def test_other_expectations_are_near():
    """Of exp, whose expectation is known; 2,048 independent draws would be 2% off."""
    grown = pt.LogDensity(lambda theta, row: jnp.exp(row @ theta), expectation=pt.expectations.CommonDraws())
    mean, variance = Q.project(X)
    found = jax.jit(grown.ell)(Q, X, jnp.ones(40), KEY)
    np.testing.assert_allclose(found, jnp.exp(mean + variance / 2).sum(), rtol=5e-3)


def test_what_it_is_not_for():
    gamma = pt.families.Gamma.from_shape_rate(np.ones(2), np.ones(2))
    with pytest.raises(SettingsError, match="need a Gaussian, not a Gamma"):
        pt.expectations.CommonDraws().nodes(gamma, KEY)
    with pytest.raises(SettingsError, match="at most 2,000 parameters, not 2,001"):
        pt.expectations.CommonDraws().nodes(pt.MeanFieldGaussian.standard_normal(2001), KEY)
