"""Named methods, each a composition of the axes."""

import numpy as np
import pytest

import partita as pt
from test_pvi import MODEL, PARTS, PRIOR, SOLVER

FULL = pt.FullGaussian.standard_normal(3)


def exact(parts):
    """Precision I + 4 XᵀX and mean of the posterior of a linear regression with noise of variance 1/4."""
    x = np.concatenate([shard.data.x for shard in parts.shards])
    y = np.concatenate([shard.data.y for shard in parts.shards])
    precision = np.eye(3) + 4 * x.T @ x
    return precision, np.linalg.solve(precision, 4 * x.T @ y)


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        (pt.methods.alone(pt.Conjugate()), PARTS.alone(0)),
        (pt.methods.alone(pt.Conjugate()), PARTS.alone(2)),
        (pt.methods.sequential(pt.Conjugate()), PARTS),
        (pt.methods.sequential(pt.Conjugate(), order="residual"), PARTS),
        (pt.methods.synchronous(pt.Conjugate(), damping=1.0), PARTS),
    ],
)
def test_with_a_conjugate_model_a_pass_is_the_exact_posterior_of_the_rows(method, parts):
    """`sec:optim:analytic`: whoever holds the rows, one answer of each is enough."""
    result = pt.run(method, pt.LinearRegression(0.5), FULL, parts, rounds=1, evaluate_every=0)
    precision, mean = exact(parts)
    # sums of at most sixty products, and a solve with a condition number of about 2
    np.testing.assert_allclose(result.posterior.q.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=1e-11)


def test_global_vi_on_all_rows_is_the_fixed_point_that_sequential_pvi_reaches():
    """`prop:fixed-point`, on logistic regression with full covariance."""
    together = pt.run(pt.methods.global_vi(SOLVER), MODEL, FULL, PARTS.pooled(), evaluate_every=0)
    apart = pt.run(pt.methods.sequential(SOLVER), MODEL, FULL, PARTS, tolerance=1e-14, evaluate_every=0)
    assert (together.status, apart.status) == (pt.Status.CONVERGED, pt.Status.CONVERGED)
    np.testing.assert_allclose(apart.posterior.q.precision, together.posterior.q.precision, rtol=1e-6)
    np.testing.assert_allclose(apart.posterior.mean, together.posterior.mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "dampings", "clients"),
    [
        (pt.methods.sequential(SOLVER), {1.0}, [["client 0"], ["client 1"], ["client 2"]]),
        (pt.methods.sequential(SOLVER, damping=0.4), {0.4}, [["client 0"], ["client 1"], ["client 2"]]),
        (pt.methods.synchronous(SOLVER), {1 / 3}, [["client 0", "client 1", "client 2"]]),
        (pt.methods.asynchronous(SOLVER), {1 / 3}, [["client 0"], ["client 1"], ["client 2"]]),
    ],
)
def test_methods_damp_and_take_turns_as_their_names_say(method, dampings, clients):
    history = pt.run(method, MODEL, PRIOR, PARTS, rounds=1).history
    assert set(history["damping"]) == dampings
    assert history["clients"].tolist() == clients


def test_the_default_solver_solves_each_client_to_its_tolerance():
    result = pt.run(pt.methods.sequential(), MODEL, PRIOR, PARTS)
    precise = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-12)
    assert result.status is pt.Status.CONVERGED
    # both residual and Newton's tolerance are 1e-6 nats a client
    assert result.posterior.q.kl(precise.posterior.q) < 1e-5
