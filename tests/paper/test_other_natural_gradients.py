"""What else natural gradients drive: the Fisher matrix by draws, conjugate directions, means alone, Adam beside."""

import jax
import numpy as np
import optax
import pytest

from partita import FullGaussian, LinearRegression, LogisticRegression, MeanFieldGaussian, Method, Table, federate, run
from partita.errors import InputError
from partita.expectations import MonteCarlo, Regression
from partita.hyper.learning import Stochastic
from partita.local.solvers import Blockwise, ConjugateDirections, FixedPoint, NaturalGradient, Outcome
from partita.server.monitor import Monitor
from support import reference
from support.small_problems import KEY, problem, scipy_optimum, solve
from support.trajectories import natural

X, Y = reference.logistic_data(rows=20, columns=2)
START = FullGaussian.from_mean_covariance(np.array([0.5, -0.3]), np.array([[0.4, 0.1], [0.1, 0.3]]))


def gradients(model, y, draws=120):
    """∇_μ of E_q[log p] by other draws each time: shift and precision, raveled."""
    task = problem(START, model=model, x=X, y=y)
    keys = jax.random.split(KEY, draws)
    found = jax.jit(jax.vmap(lambda key: NaturalGradient().solve(task, key).q))(keys)
    return np.concatenate([np.asarray(leaf).reshape(draws, -1) for leaf in jax.tree.leaves(found)], axis=1)


def test_with_draws_an_explicit_fisher_matrix_lowers_the_variance():
    """`prop:fixed-point-equations`, footnote; of a conjugate model there is no error at all.

    The cancelled gradient is right on average, and the regression, a ratio, within the spread of one estimate.
    """
    data = {"logistic": (Y, LogisticRegression), "linear": (X @ [1.0, -1.0], LinearRegression)}
    spread = {}
    for name, (y, model) in data.items():
        rows = reference.logistic if name == "logistic" else reference.linear(1.0)
        told = np.concatenate([part.ravel() for part in reference.natural_gradient(natural(START), X, y, rows)])
        # the context of the problem is START itself
        exact = told + np.concatenate([part.ravel() for part in natural(START)])
        for rule in (Regression(60), MonteCarlo(60)):
            found = gradients(model(expectation=rule), y)
            spread[name, type(rule)] = found.std(axis=0)
            error = found.std(axis=0) / np.sqrt(len(found))
            bias = found.std(axis=0) if isinstance(rule, Regression) else 0.0
            assert np.all(np.abs(found.mean(axis=0) - exact) < 5 * error + bias + 1e-8)
    assert np.all(spread["linear", Regression] < 1e-8)
    assert np.all(spread["linear", MonteCarlo] > 0.1)
    assert np.all(spread["logistic", Regression] < spread["logistic", MonteCarlo] / 2)


def test_a_regression_needs_more_draws_than_statistics():
    with pytest.raises(InputError, match=r"use Regression\(24\)"):
        gradients(LogisticRegression(Regression(6)), Y, 2)


def correlated():
    generator = np.random.default_rng(0)
    x = 2 * (np.sqrt(0.9) * generator.normal(size=(60, 1)) + np.sqrt(0.1) * generator.normal(size=(60, 6)))
    return x, (generator.uniform(size=60) < 1 / (1 + np.exp(-x[:, 0] + x[:, 1]))).astype(float)


def test_conjugate_directions_in_the_fisher_metric_need_fewer_steps():
    """Six correlated columns and a mean-field q, beside SciPy's optimum."""
    x, y = correlated()
    task = problem(MeanFieldGaussian.standard_normal(6), x=x, y=y)
    plain = solve(FixedPoint(max_steps=2000), task, KEY)
    conjugate = solve(ConjugateDirections(max_steps=2000), task, KEY)
    bound, mean, _ = scipy_optimum(x, y, 1.0, "mean-field")
    assert Outcome(int(conjugate.outcome)) == Outcome.CONVERGED
    assert conjugate.free_energy == pytest.approx(bound, abs=1e-7)
    np.testing.assert_allclose(conjugate.q.mean, mean, atol=1e-4)
    assert int(conjugate.steps) < int(plain.steps) / 3


@pytest.mark.parametrize("solver", [FixedPoint(tolerance=1e-18), ConjugateDirections(tolerance=1e-18)])
def test_natural_gradients_of_the_mean_alone_reach_the_best_mean(solver):
    """Honkela et al. 2010: standard deviations stay."""
    sd = np.full(2, 0.3)
    start = MeanFieldGaussian.from_mean_sd(np.zeros(2), sd)
    task = problem(MeanFieldGaussian.standard_normal(2), start=start, x=X, y=Y)
    found = solve(Blockwise(solver, (("precision_mean",),)), task, KEY)
    _, mean, _ = scipy_optimum(X, Y, 1.0, "mean-field", fixed_sd=sd)
    np.testing.assert_allclose(found.q.mean, mean, atol=1e-6)
    np.testing.assert_array_equal(found.q.precision, start.precision)


def test_natural_gradients_for_q_beside_adam_for_the_rest():
    """Salimbeni et al. 2018: steps for q and of Adam for ε in turn, to the evidence's maximum."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(40, 2))
    y = x @ [1.0, -2.0] + 0.5 * generator.normal(size=40)
    learning = Stochastic(("noise",), optax.adam(optax.exponential_decay(0.1, 1, 0.98)))
    method = Method(FixedPoint(max_steps=1, backtrack=False), learning=learning)
    prior, parts = FullGaussian.standard_normal(2), federate([Table(x, y)])
    settings = {"rounds": 350, "tolerance": None, "monitor": Monitor(every=0)}
    found = run(method, LinearRegression(1.0), prior, parts, **settings).posterior.hyper["noise"]

    def evidence(noise):
        marginal = x @ x.T + noise**2 * np.eye(40)
        return -(y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(marginal)[1]) / 2

    grid = np.linspace(0.4, 0.7, 3001)
    assert float(found) == pytest.approx(grid[np.argmax([evidence(noise) for noise in grid])], abs=1e-3)
