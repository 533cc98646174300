"""Visits that stop where E_q[log p(y_k | θ)] is flat (`sec:experiments:fmnist`), against a plain NumPy version."""

import jax.numpy as jnp
import numpy as np
import pytest

from partita import Gradient, MeanFieldGaussian
from partita.local.solvers import Outcome
from support.small_problems import KEY, X, Y, expected_log_likelihood, problem, solve

PRIOR = MeanFieldGaussian.standard_normal(3)
TIGHT = MeanFieldGaussian.from_mean_sd(jnp.zeros(3), 0.05)
RATE = 0.05


def climb(steps):
    """Adam on (mean, log sd) from the tight start: what is watched before each step, and (mean, sd) after it."""
    at = np.concatenate([np.zeros(3), np.full(3, np.log(0.05))])
    first, second, watched, reached = np.zeros(6), np.zeros(6), [], []
    for step in range(1, steps + 1):
        mean, sd = at[:3], np.exp(at[3:])
        ell, by_mean, by_covariance = expected_log_likelihood(X, Y, mean, np.diag(sd**2))
        divergence = 0.5 * np.sum(mean**2 + sd**2 - 1) - np.sum(at[3:])
        watched.append({"ell": ell, "free_energy": ell - divergence})
        down = -np.concatenate([by_mean - mean, 2 * np.diag(by_covariance) * sd**2 - sd**2 + 1])
        first, second = 0.9 * first + 0.1 * down, 0.999 * second + 0.001 * down**2
        at = at - RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        reached.append((at[:3], np.exp(at[3:])))
    return watched, reached


WATCHED, REACHED = climb(400)


def stop(values, window, patience, tolerance):
    """After how many steps whole windows have not raised the best window's mean `patience` times in a row."""
    means = [np.mean(values[end - window : end]) for end in range(window, len(values) + 1, window)]
    for last in range(patience, len(means)):
        flat = [means[k] - max(means[:k]) < tolerance for k in range(last - patience + 1, last + 1)]
        if all(flat):
            return (last + 1) * window
    raise AssertionError("never flat")


@pytest.mark.parametrize("watch", ["ell", "free_energy"])
@pytest.mark.parametrize(("window", "patience", "tolerance"), [(1, 5, 1e-3), (7, 1, 1e-3), (7, 3, 0.05), (10, 2, 0.5)])
def test_a_visit_stops_where_what_it_watches_is_flat(watch, window, patience, tolerance):
    solver = Gradient(
        learning_rate=RATE, window=window, patience=patience, tolerance=tolerance, watch=watch, keep_best=False
    )
    solution = solve(solver, problem(PRIOR, TIGHT), KEY)
    steps = stop([value[watch] for value in WATCHED], window, patience, tolerance)
    assert (int(solution.outcome), int(solution.steps)) == (Outcome.CONVERGED, steps)
    mean, sd = REACHED[steps - 1]
    np.testing.assert_allclose(solution.q.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(solution.q.sd, sd, rtol=1e-8)


def test_from_a_tight_start_the_likelihood_is_flat_while_the_free_energy_still_rises():
    rule = {"window": 7, "patience": 3, "tolerance": 1e-3}
    early, late = (stop([value[watch] for value in WATCHED], **rule) for watch in ("ell", "free_energy"))
    assert early < late
    assert WATCHED[late - 1]["free_energy"] > WATCHED[early - 1]["free_energy"]
