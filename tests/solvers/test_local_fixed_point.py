"""A factor for each group of a client's rows: as clients one by one, and as plain NumPy."""

import numpy as np
import pytest

from partita import Damped, FullGaussian, LogisticRegression, MeanFieldGaussian, Method, Sequential, Synchronous, run
from partita.errors import InputError
from partita.local.solvers import FixedPoint, InFamily, InPredictor, LocalFixedPoint
from partita.server.monitor import Monitor
from support import reference
from support.small_problems import KEY, problem, solve
from support.trajectories import assert_equal, natural, shards, trajectory

X, Y = reference.logistic_data(rows=12, columns=2)
FULL, MEAN_FIELD = FullGaussian.standard_normal(2), MeanFieldGaussian.standard_normal(2)
CASES = {
    "full, in the predictor": (FULL, InPredictor()),
    "full, in the family": (FULL, InFamily()),
    "mean-field": (MEAN_FIELD, InFamily()),
}
STEP = FixedPoint(1.0, max_steps=1, backtrack=False)


def visit(prior, groups, at_once, passes, factors, damping=0.6, **settings):
    solver = LocalFixedPoint(groups, at_once, damping, factors, max_steps=passes, tolerance=None, **settings)
    return solve(solver, problem(prior, x=X, y=Y), KEY).q


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("groups", [4, pytest.param(None, marks=pytest.mark.slow)])
def test_groups_in_turn_have_the_history_of_clients_one_by_one(case, groups):
    prior, factors = CASES[case]
    clients = shards(reference.divide(X, Y, [3] * 4 if groups else [1] * 12))
    method = Method(STEP, Sequential(), Damped(0.6))
    states = trajectory(method, LogisticRegression(), prior, clients, 2 * len(clients))
    for passes in (1, 2):
        q = visit(prior, groups, 1, passes, factors, shuffled=False)
        assert_equal(q, natural(states[passes * len(clients)].posterior), 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_groups_all_at_once_have_the_history_of_a_synchronous_run(case):
    prior, factors = CASES[case]
    method = Method(STEP, Synchronous(), Damped(0.3))
    states = trajectory(method, LogisticRegression(), prior, shards(reference.divide(X, Y, [3] * 4)), 3)
    assert_equal(visit(prior, 4, None, 3, factors, 0.3), natural(states[3].posterior), 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_random_batch_of_per_datum_factors_is_the_papers(case):
    """`eq:stoch-fully-local` in NumPy: batches of five of twelve rows, so that the last one of a pass is short."""
    prior, factors = CASES[case]
    eta, sites = natural(prior), [reference.power(natural(prior), 0.0)] * 12
    for start in (0, 5, 10):
        at = eta
        for n in range(start, min(start + 5, 12)):
            target = reference.natural_gradient(at, X[n : n + 1], Y[n : n + 1], reference.logistic)
            new = reference.product(reference.power(sites[n], 0.4), reference.power(target, 0.6))
            eta = reference.product(eta, new, reference.power(sites[n], -1.0))
            sites[n] = new
    assert_equal(visit(prior, None, 5, 1, factors, shuffled=False), eta, 1e-12)
    shuffled = visit(prior, None, 5, 1, factors)
    assert np.abs(natural(shuffled)[0] - eta[0]).max() > 1e-6


@pytest.mark.parametrize("case", CASES)
def test_every_grouping_and_every_order_ends_at_the_optimum_of_global_vi(case):
    prior, factors = CASES[case]
    best = visit(prior, 1, 1, 200, factors, 0.5)
    for groups, at_once in ((4, 1), (None, 5)):
        assert_equal(visit(prior, groups, at_once, 200, factors, 0.5), natural(best), 1e-8)
    expected = reference.natural_gradient(natural(best), X, Y, reference.logistic)
    assert_equal(best / prior, expected, 1e-8)


def test_a_later_visit_begins_with_the_clients_factor_in_equal_shares():
    """With all rows at once the fixed point of one pass a visit is the clients'; in turn a visit has to converge."""
    clients = shards(reference.divide(X, Y, [5, 7]))
    settings = {"rounds": 40, "tolerance": None, "monitor": Monitor(every=0)}
    whole = run(Method(FixedPoint(tolerance=1e-20)), LogisticRegression(), FULL, clients, **settings).state.posterior
    for at_once, passes in ((None, 1), (4, 100)):
        solver = LocalFixedPoint(None, at_once, 0.7, InPredictor(), max_steps=passes, tolerance=1e-20)
        found = run(Method(solver), LogisticRegression(), FULL, clients, **settings)
        assert_equal(found.state.posterior, natural(whole), 1e-8)


def test_many_rows_in_turn_equal_a_plain_pass_over_them_whatever_their_weights():
    """Rank-one changes between factorisations of q, in NumPy with one for every row: 30 rows, of weights 0 to 3.

    The prior is wide, so that the first rows change the covariance a millionfold.
    """
    x, y = reference.logistic_data(rows=30, columns=2)
    weights = np.arange(30) % 4 * 1.0
    prior = FullGaussian.standard_normal(2, 1e3)
    eta = natural(prior)
    sites = [reference.power(eta, 0.0)] * 30
    for n in 2 * [*range(30)]:
        target = reference.power(reference.natural_gradient(eta, x[[n]], y[[n]], reference.logistic), weights[n])
        change = reference.power(reference.product(target, reference.power(sites[n], -1.0)), 0.6)
        eta, sites[n] = reference.product(eta, change), reference.product(sites[n], change)
    solver = LocalFixedPoint(None, 1, 0.6, InPredictor(), shuffled=False, max_steps=2, tolerance=None)
    assert_equal(solve(solver, problem(prior, x=x, y=y, weights=[weights]), KEY).q, eta, 1e-8)


def test_rows_of_a_mean_field_family_are_no_functions_of_their_predictors():
    with pytest.raises(InputError, match=r"use InFamily\(\)"):
        visit(MEAN_FIELD, None, 5, 1, InPredictor())
