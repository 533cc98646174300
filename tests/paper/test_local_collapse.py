"""Hyperparameters by bounds that are collapsed: at one client (`sec:optim:analytic`), and with global VI's q."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize, minimize_scalar

from partita import Conjugate, FullGaussian, LinearRegression, Table, federate, methods, run
from partita.families.factor import Factor
from partita.local.collapsed import collapsed_bound
from partita.server.monitor import Monitor
from support import reference
from support.small_problems import KEY, problem
from support.trajectories import natural

X, Y = reference.linear_data(rows=12, columns=2)
CONTEXT = FullGaussian.from_mean_covariance(np.array([0.4, -0.2]), np.array([[0.5, 0.1], [0.1, 0.8]]))


def evidence(noise, context=CONTEXT, x=X, y=Y):
    """log ∫ context(θ) N(y; xᵀθ, noise²) dθ."""
    mean, covariance = reference.standard(natural(context))
    marginal, away = x @ covariance @ x.T + noise**2 * np.eye(len(y)), y - x @ mean
    return -(away @ np.linalg.solve(marginal, away) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2


def test_a_conjugate_clients_collapsed_bound_is_its_evidence_under_the_context():
    task = problem(CONTEXT, model=LinearRegression(1.0), x=X, y=Y, context=Factor.of(CONTEXT))
    for noise in (0.5, 0.9, 2.0):
        value, gradient = collapsed_bound(Conjugate(), task, {"noise": jnp.asarray(noise)}, KEY)
        assert value == pytest.approx(evidence(noise), rel=1e-10)
        slope = (evidence(noise + 1e-5) - evidence(noise - 1e-5)) / 2e-5
        assert gradient["noise"] == pytest.approx(slope, rel=1e-6)


def test_a_client_that_climbs_it_ends_at_the_maximum_of_its_evidence():
    task = problem(CONTEXT, model=LinearRegression(1.0), x=X, y=Y, context=Factor.of(CONTEXT))

    def fall(log_noise):
        noise = jnp.exp(log_noise[0])
        value, gradient = collapsed_bound(Conjugate(), task, {"noise": noise}, KEY)
        return -float(value), -np.array([gradient["noise"] * noise])

    found = minimize(fall, np.zeros(1), jac=True)
    best = minimize_scalar(lambda noise: -evidence(noise), (0.3, 1.0), method="brent").x
    # where BFGS stops, its gradient is below 1e-5
    assert np.exp(found.x[0]) == pytest.approx(best, rel=1e-5)


@pytest.mark.slow
def test_learning_with_global_vis_q_ends_at_the_maximum_of_the_evidence():
    """`sec:hyper_learning`: the collapsed gradient asks clients for derivatives, whatever q was found by."""
    prior = FullGaussian.standard_normal(2)
    parts = federate([Table(x, y) for x, y in reference.divide(X, Y, [3, 4, 5])])
    method = methods.global_vi(optax.adam, 0.02, learn=["noise"], how="stochastic")
    settings = {"rounds": 800, "tolerance": None, "monitor": Monitor(every=0)}
    found = run(method, LinearRegression(1.5), prior, parts, **settings).posterior.hyper["noise"]
    best = minimize_scalar(lambda noise: -evidence(noise, prior), (0.3, 1.0), method="brent").x
    assert float(found) == pytest.approx(best, rel=2e-3)
