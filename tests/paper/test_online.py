"""One pass of sequential PVI is online VI (`sec:online`): each client's prior is the posterior before it."""

import numpy as np
import pytest

from partita import Conjugate, FullGaussian, LinearRegression, LogisticRegression, MeanFieldGaussian, Method, Sequential
from partita.local.context import Cavity, NoDeletion
from support import reference
from support.trajectories import EXACT, assert_equal, natural, shards, trajectory

M, NOISE = 3, 0.7


def test_it_agrees_with_the_reference_for_linear_regression():
    prior = FullGaussian.standard_normal(3)
    data = reference.divide(*reference.linear_data(noise=NOISE), reference.SIZES[M])
    states = trajectory(Method(Conjugate(), Sequential()), LinearRegression(NOISE), prior, shards(data), M)
    mean, covariance = np.zeros(3), np.eye(3)
    for state, (x, y) in zip(states[1:], data, strict=True):
        # the Kalman filter's update
        gain = covariance @ x.T @ np.linalg.inv(x @ covariance @ x.T + NOISE**2 * np.eye(len(y)))
        mean, covariance = mean + gain @ (y - x @ mean), covariance - gain @ x @ covariance
        precision = np.linalg.inv(covariance)
        assert_equal(state.posterior, (precision @ mean, precision), 1e-10)


@pytest.fixture(scope="module")
def logistic():
    """Two passes over logistic clients, PVI's and online VI's."""
    prior = MeanFieldGaussian.standard_normal(3)
    data = reference.divide(*reference.logistic_data(), reference.SIZES[M])
    runs = [
        trajectory(Method(EXACT, Sequential(), context=context), LogisticRegression(), prior, shards(data), 2 * M)
        for context in (Cavity(), NoDeletion())
    ]
    return data, *runs


def test_it_agrees_with_the_reference_for_logistic_regression(logistic):
    data, pvi, online = logistic
    eta = natural(pvi[0].posterior)
    for k, (x, y) in enumerate(data, start=1):
        eta = reference.solve(eta, x, y, reference.logistic)
        # the reference's posteriors are roots of a gradient to 1e-10
        assert_equal(pvi[k].posterior, eta, 1e-8)
        assert_equal(pvi[k].posterior, natural(online[k].posterior), 1e-12)


def test_a_second_pass_of_online_vi_counts_rows_twice(logistic):
    """Online VI then counts the rows twice; PVI takes a client's old factor out first."""
    _, pvi, online = logistic
    assert np.all(natural(online[-1].posterior)[1] > 1.3 * natural(pvi[-1].posterior)[1])
