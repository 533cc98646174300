"""Gaussian-process regression is a conjugate model (`sec:optim:analytic`): θ is a function at inputs that all know."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from partita import Conjugate, FullGaussian, LinearRegression, Monitor, run
from partita.methods import sequential
from support.trajectories import shards

NOISE = 0.3
GENERATOR = np.random.default_rng(0)
KNOWN = np.linspace(0, 3, 6)
"""Where θ is the function's values."""
CLIENTS = 3


def kernel(a, b):
    """Matérn's with ν = 3/2."""
    distance = np.sqrt(3) * np.abs(a[:, None] - b)
    return (1 + distance) * np.exp(-distance)


@pytest.mark.parametrize(
    "inputs", [GENERATOR.choice(KNOWN, 12), GENERATOR.uniform(0, 3, 12)], ids=["shared", "inducing"]
)
def test_one_pass_of_pvi_is_gaussian_process_regression(inputs):
    """At shared inputs exactly; elsewhere with f = K_xz K_zz⁻¹ u, a process of which u at inducing inputs tells all."""
    y = np.sin(2 * inputs) + NOISE * GENERATOR.normal(size=len(inputs))
    own = kernel(KNOWN, KNOWN)
    weights = np.linalg.solve(own, kernel(KNOWN, inputs)).T
    parts = shards([(weights[k::CLIENTS], y[k::CLIENTS]) for k in range(CLIENTS)])
    prior = FullGaussian.from_mean_covariance(np.zeros(len(KNOWN)), own)
    result = run(
        sequential(Conjugate()), LinearRegression(NOISE), prior, parts, rounds=1, monitor=Monitor(progress=False)
    )
    process = weights @ own @ weights.T
    at_known = own @ weights.T
    of_y = process + NOISE**2 * np.eye(len(y))
    gain = np.linalg.solve(of_y, at_known.T).T
    np.testing.assert_allclose(result.posterior.q.mean, gain @ y, atol=1e-9)
    np.testing.assert_allclose(result.posterior.q.covariance, own - gain @ at_known.T, atol=1e-9)
    np.testing.assert_allclose(result.free_energy, multivariate_normal.logpdf(y, np.zeros(len(y)), of_y), rtol=1e-9)
    if np.isin(inputs, KNOWN).all():
        np.testing.assert_allclose(process, kernel(inputs, inputs), atol=1e-9)
