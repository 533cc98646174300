"""Linear regression with known noise: what every schedule must reach, and when undamped synchronous runs do not."""

import numpy as np
import pytest

from partita import (
    Asynchronous,
    Conjugate,
    Damped,
    FullGaussian,
    LinearRegression,
    MeanFieldGaussian,
    Method,
    Newton,
    Sequential,
    Status,
    Synchronous,
    run,
)
from partita.engines import LocalEngine
from partita.server.monitor import Monitor
from partita.server.schedules import RandomSubset
from partita.server.state import init
from support import reference
from support.steps import step
from support.trajectories import assert_equal, natural, shards, trajectory

NOISE = 0.7
MODEL = LinearRegression(NOISE)
X, Y = reference.linear_data(noise=NOISE)
CLIENTS = reference.divide(X, Y, reference.SIZES[3])
LIKELIHOODS = [(x.T @ y / NOISE**2, x.T @ x / NOISE**2) for x, y in CLIENTS]
PARTS = shards(CLIENTS)
SPEEDS = (10, 1, 1)
NEWTON = Newton(tolerance=1e-20)

SCHEDULES = [*map(Sequential, ("fixed", "random", "residual")), Synchronous(), RandomSubset(2), Asynchronous()]


def name(schedule):
    return getattr(schedule, "order", type(schedule).__name__)


def optimum(prior, clients, noise):
    """The mean-field optimum: the exact mean, and the diagonal of the exact precision."""
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    precision = np.diag(prior[1]) + x.T @ x / noise**2
    return np.diag(precision) * np.linalg.solve(precision, prior[0] + x.T @ y / noise**2), np.diag(precision)


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
def test_full_covariance_reaches_the_exact_posterior(schedule, damping):
    """Each answer takes a client's factor the share ρ of the way to its likelihood, whatever the others do."""
    prior, engine = FullGaussian.standard_normal(3), LocalEngine(PARTS, SPEEDS)
    state = init(prior, 3)
    visits = 1 if damping == 1.0 else 31  # 2^−31 is below 1e-9
    while min(state.versions) < visits:
        state, _ = step(Method(Conjugate(), schedule, Damped(damping)), MODEL, engine, state)
        for factor, likelihood, version in zip(state.factors, LIKELIHOODS, state.versions, strict=True):
            assert_equal(factor, reference.power(likelihood, 1 - (1 - damping) ** version), 1e-10)
    assert_equal(state.posterior, reference.product(natural(prior), *LIKELIHOODS), 1e-8)
    if damping == 1.0 and schedule not in (RandomSubset(2), Asynchronous()):
        assert state.answers == 3  # one pass, or one round


@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
def test_mean_field_reaches_its_optimum_when_damped(schedule):
    prior = MeanFieldGaussian.standard_normal(3)
    method = Method(NEWTON, schedule, Damped(0.5))
    # errors shrink by 0.81 a round, so those of 1e-17 nats that are left are of 1e-9 in natural parameters
    result = run(
        method, MODEL, prior, rounds=500, tolerance=1e-17, monitor=Monitor(every=0), engine=LocalEngine(PARTS, SPEEDS)
    )
    assert result.status is Status.CONVERGED
    assert_equal(result.state.posterior, optimum(natural(prior), CLIENTS, NOISE), 1e-8)


def alike(correlation):
    """Ten clients with the same three rows, whose columns have this correlation, and responses of their own."""
    x = np.linalg.cholesky(np.full((3, 3), correlation) + (1 - correlation) * np.eye(3)).T
    return [(x, y) for y in np.random.default_rng(4).normal(3.0, size=(10, 3))]


def unlike(share):
    """Ten clients of different sizes and rows, whose columns share a common part."""
    x, y = np.random.default_rng(5).normal(size=(2, 30, 3))
    return reference.divide(x + share * x.sum(axis=1, keepdims=True), y[:, 0], reference.SIZES[10])


def spectral_radius(prior, clients):
    return np.abs(np.linalg.eigvals(reference.undamped_jacobian(natural(prior), clients, noise=1.0))).max()


@pytest.mark.parametrize(
    ("clients", "status"),
    [
        (alike(0.5), Status.CONVERGED),
        (alike(0.9), Status.DIVERGED),
        (unlike(0.3), Status.CONVERGED),
        (unlike(3.0), Status.DIVERGED),
    ],
    ids=["alike 0.5", "alike 0.9", "unlike 0.3", "unlike 3.0"],
)
def test_mean_field_undamped_synchronous_converges_if_the_spectral_radius_is_below_one(clients, status):
    """Where columns are correlated it need not be; the run then diverges though every precision is the optimal one."""
    prior, model, parts = MeanFieldGaussian.standard_normal(3), LinearRegression(1.0), shards(clients)
    method = Method(NEWTON, Synchronous(), Damped(1.0))
    radius = spectral_radius(prior, clients)
    assert (radius < 1) == (status is Status.CONVERGED)

    states = trajectory(method, model, prior, parts, 30)
    factors = [reference.power(natural(prior), 0.0)] * 10
    for state in states:
        assert_equal(state.posterior, reference.product(natural(prior), *factors), 1e-10)
        factors = reference.undamped_round(natural(prior), factors, clients, noise=1.0)

    shift, precision = optimum(natural(prior), clients, 1.0)
    for state in states[1:]:
        np.testing.assert_allclose(natural(state.posterior)[1], precision, rtol=1e-10)
    errors = [np.linalg.norm(natural(state.posterior)[0] - shift) for state in states[-2:]]
    # by now the largest eigenvalue is all but alone
    assert errors[1] / errors[0] == pytest.approx(radius, rel=1e-2)
    assert run(method, model, prior, parts, rounds=100).status is status


@pytest.mark.parametrize("correlation", [0.2, 0.5, 0.9])
def test_spectral_radius_of_clients_alike(correlation):
    """It is (M − 1) ε / (M + ε), with ε the largest eigenvalue of D^(−½) O D^(−½): below one for ε < M / (M − 2)."""
    prior, clients = MeanFieldGaussian.standard_normal(3), alike(correlation)
    largest = 2 * correlation * 10 / 11  # the prior is one part in eleven of each precision
    radius = 9 * largest / (10 + largest)
    assert spectral_radius(prior, clients) == pytest.approx(radius, rel=1e-10)
    assert (radius < 1) == (largest < 10 / 8)
