"""BCM (same), Π q_m / p^(M−1) of posteriors fitted apart, is one undamped round of synchronous PVI."""

import pytest

from partita import (
    Conjugate,
    FullGaussian,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    Method,
    Synchronous,
)
from partita.local.context import Cavity, Prior
from support import reference
from support.trajectories import EXACT, assert_equal, natural, shards, trajectory

NOISE = 0.7


def committee(prior, posteriors):
    return reference.product(*posteriors, reference.power(prior, 1 - len(posteriors)))


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_it_agrees_with_the_reference_for_linear_regression(clients):
    prior = FullGaussian.standard_normal(3)
    data = reference.divide(*reference.linear_data(noise=NOISE), reference.SIZES[clients])
    posteriors = [reference.product(natural(prior), (x.T @ y / NOISE**2, x.T @ x / NOISE**2)) for x, y in data]
    state = trajectory(Method(Conjugate(), Synchronous()), LinearRegression(NOISE), prior, shards(data), 1)[-1]
    assert_equal(state.posterior, committee(natural(prior), posteriors), 1e-10)


@pytest.mark.parametrize("context", [Cavity(), Prior()])
def test_it_agrees_with_the_reference_for_logistic_regression(context):
    prior = MeanFieldGaussian.standard_normal(3)
    data = reference.divide(*reference.logistic_data(), reference.SIZES[3])
    posteriors = [reference.solve(natural(prior), x, y, reference.logistic) for x, y in data]
    state = trajectory(Method(EXACT, Synchronous(), context=context), LogisticRegression(), prior, shards(data), 1)[-1]
    # the reference's posteriors are roots of a gradient to 1e-10
    assert_equal(state.posterior, committee(natural(prior), posteriors), 1e-9)
