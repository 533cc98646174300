"""`sec:stochastic-approx`, last paragraph: estimates of factors that are not there yet, on a hundred clients."""

import numpy as np
import pytest

from partita import Damped, FullGaussian, LogisticRegression, Method, Newton, Sequential, Table, federate
from partita.errors import InputError
from partita.server.aggregation import Amortised, Anticipating, GeometricMean, LastFactor
from support import reference
from support.trajectories import natural, trajectory

PRIOR = FullGaussian.standard_normal(3)
SIZES = np.random.default_rng(3).permutation(np.repeat([2, 4, 10, 24], 25))
X, Y = reference.logistic_data(rows=int(SIZES.sum()))
CLIENTS = reference.divide(X, Y, SIZES)
FEATURES = np.array([[len(y), *(x.T @ (y - 0.5)), *(x**2).sum(axis=0)] for x, y in CLIENTS])
"""What clients may agree to tell: how many rows, and sums over them."""
ESTIMATES = {"mean": GeometricMean(), "last": LastFactor(), "amortised": Amortised(FEATURES)}


@pytest.fixture(scope="module")
def paths():
    """KL to global VI's posterior during the first pass."""
    best = reference.solve_full(natural(PRIOR), X, Y, reference.logistic)
    products = {"none": Damped()} | {name: Anticipating(Damped(), one) for name, one in ESTIMATES.items()}
    parts, found = federate([Table(x, y) for x, y in CLIENTS], buckets=1), {}
    for name, aggregation in products.items():
        method = Method(Newton(max_steps=5), Sequential(), aggregation)
        states = trajectory(method, LogisticRegression(), PRIOR, parts, 100)
        found[name] = np.array([reference.kl(natural(state.posterior), best) for state in states])
        product = PRIOR
        for factor in states[40].factors:
            product = product * factor.natural
        np.testing.assert_allclose(natural(product)[0], natural(states[40].posterior)[0], rtol=1e-9)
    return found


@pytest.mark.slow
def test_estimates_of_unseen_factors_bring_the_posterior_nearer_from_the_first_answers_on(paths):
    early = slice(5, 40)
    typical = {name: np.median(path[early]) for name, path in paths.items()}
    assert typical["mean"] < typical["none"] / 2
    assert typical["amortised"] < typical["mean"] / 2
    assert typical["last"] > typical["mean"]


@pytest.mark.slow
def test_after_the_first_pass_no_estimate_is_left_but_what_clients_were_told(paths):
    """They answered to posteriors with estimates in them: to better ones, or to worse ones where these were noisy."""
    ends = {name: path[100] for name, path in paths.items()}
    assert ends["amortised"] < ends["mean"] < ends["none"] < ends["last"]
    assert ends["none"] < 0.1


def test_features_are_a_finite_row_for_each_client():
    with pytest.raises(InputError, match="a matrix of finite numbers"):
        Amortised(np.ones(3))
    with pytest.raises(InputError, match="features of 2 clients and not of 3"):
        Anticipating(Damped(), Amortised(np.ones((2, 1)))).check(3, 1, None)
