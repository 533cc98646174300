"""Power EP's estimate of log p(y): where it is exact, and when it is told."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import partita as pt

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(120, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.5 * GENERATOR.normal(size=120)
EXACT = multivariate_normal(np.zeros(120), X @ X.T + 0.25 * np.eye(120)).logpdf(Y)
MODEL, PRIOR = pt.LinearRegression(0.5), pt.FullGaussian.standard_normal(3)


def run(clients, rounds=300, **settings):
    parts = pt.split(pt.Table(X, Y), np.array_split(np.arange(120), clients))
    method = pt.methods.expectation_propagation(**settings)
    return pt.run(method, MODEL, PRIOR, parts, rounds=rounds, monitor=pt.Monitor(every=0))


@pytest.mark.parametrize("clients", [3, 8])
@pytest.mark.parametrize(
    ("schedule", "damping"), [("sequential", 1.0), ("sequential", 0.3), ("synchronous", None), ("asynchronous", 0.1)]
)
def test_damping_does_not_change_the_evidence(clients, schedule, damping):
    """Gaussian noise is matched exactly; what is left of q's way is less than a hundredth of a standard deviation."""
    result = run(clients, schedule=schedule, damping=damping)
    assert result.status is pt.Status.CONVERGED
    assert result.log_evidence == pytest.approx(EXACT, abs=1e-4)


def test_the_evidence_of_a_run_that_has_not_converged_is_not_told():
    result = run(8, rounds=4, schedule="synchronous")
    assert result.status is pt.Status.BUDGET_SPENT
    assert np.isnan(result.log_evidence)
    assert np.isfinite(result.history.rows[-1]["log_evidence"])
    assert "log evidence" not in repr(result)


@pytest.mark.parametrize(("rows", "participants"), [(True, 1), (False, 2), (False, 1)])
def test_a_factor_for_all_clients_tells_no_evidence(rows, participants):
    """Two clients whose answers agree to rounding, so that the run converges, though their rows are not equally likely.

    The scale of the one factor is of those who answered last, and lags behind q: told as log p(y), it was up to 2.7
    nats off. The history has it.
    """
    x, y = X[:40, :2], Y[:40]
    unseen = np.linalg.qr(np.c_[x, np.ones(40)])[0][:, 2]  # orthogonal to x
    clients = [pt.Table(x, y), pt.Table(x, y + 4 * unseen)]
    method = pt.methods.stochastic_power_ep(0.5, 0.3, "fixed", participants, rows)
    result = pt.run(method, MODEL, pt.FullGaussian.standard_normal(2), pt.federate(clients), rounds=99)
    assert result.status is pt.Status.CONVERGED
    both, told = np.tile(x, (2, 1)), np.concatenate([client.y for client in clients])
    exact = multivariate_normal(np.zeros(80), both @ both.T + 0.25 * np.eye(80)).logpdf(told)
    assert np.isnan(result.log_evidence)
    assert np.isfinite(result.history.rows[-1]["log_evidence"])
    assert result.free_energy == pytest.approx(exact, abs=1e-4)
    assert "log evidence" not in repr(result)
