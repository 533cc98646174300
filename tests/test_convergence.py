"""*Converged* means near the run's own fixed point, and not that its last step was short."""

import re

import numpy as np
import pytest

import partita as pt

GENERATOR = np.random.default_rng(7)
DIMENSIONS, NOISE = 6, 0.7
FULL = pt.FullGaussian.standard_normal(DIMENSIONS)
MEAN_FIELD = pt.MeanFieldGaussian.standard_normal(DIMENSIONS)
MODEL = pt.LinearRegression(NOISE)


def table(rows, correlation):
    """Columns of which each pair has this correlation."""
    shared = GENERATOR.normal(size=(rows, 1))
    x = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * GENERATOR.normal(size=(rows, DIMENSIONS))
    return pt.Table(x, x @ GENERATOR.normal(size=DIMENSIONS) + NOISE * GENERATOR.normal(size=rows))


def clients(data, number):
    return pt.split(data, np.array_split(np.arange(len(data.y)), number))


def fixed_point(data, family):
    """Mean and standard deviation that exact inference has, or the best factorised Gaussian (Bishop 2006, 10.1.2)."""
    precision = np.eye(DIMENSIONS) + np.asarray(data.x.T @ data.x) / NOISE**2
    mean = np.linalg.solve(precision, np.asarray(data.x.T @ data.y) / NOISE**2)
    variance = np.diag(np.linalg.inv(precision)) if family is FULL else 1 / np.diag(precision)
    return mean, np.sqrt(variance)


def sds_away(posterior, data, family):
    """The largest error of a mean in standard deviations, or relative error of a standard deviation."""
    mean, sd = fixed_point(data, family)
    return max(np.abs((posterior.mean - mean) / sd).max(), np.abs(posterior.sd / sd - 1).max())


CORRELATED, PLAIN = table(300, 0.99), table(300, 0.2)
RUNS = {
    "many clients, damping 1/M": (pt.methods.synchronous(pt.Conjugate(), damping=1 / 20), FULL, PLAIN, 20, 500),
    "correlated columns": (pt.methods.sequential(pt.Conjugate()), MEAN_FIELD, CORRELATED, 3, 1000),
    "random subsets": (pt.Method(pt.Conjugate(), pt.schedules.RandomSubset(5), pt.Damped(0.2)), FULL, PLAIN, 10, 500),
    "asynchronous": (pt.methods.asynchronous(pt.Conjugate(), damping=0.1), FULL, PLAIN, 10, 500),
    "Bayesian ADMM": (pt.methods.bayesian_admm(solver=pt.Conjugate()), FULL, PLAIN, 10, 3000),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_says_converged_is_within_a_hundredth_of_a_standard_deviation(name):
    method, family, data, number, rounds = RUNS[name]
    result = pt.run(method, MODEL, family, clients(data, number), rounds=rounds, monitor=pt.Monitor(every=0))
    assert result.status is pt.Status.CONVERGED, result.message
    assert sds_away(result.posterior, data, family) <= 0.01


@pytest.mark.parametrize("name", ["correlated columns", "many clients, damping 1/M"])
def test_a_run_that_ends_before_says_how_far_it_is_away(name):
    method, family, data, number, _ = RUNS[name]
    result = pt.run(method, MODEL, family, clients(data, number), rounds=40, monitor=pt.Monitor(every=0))
    assert result.status is pt.Status.BUDGET_SPENT
    away = sds_away(result.posterior, data, family)
    assert away > 0.01
    assert result.history.rows[-1]["distance_left"] >= away
    assert "standard deviations" in result.message


SMALL_STEPS = {
    "global_vi": {"learning_rate": 0.01},
    "incremental_vi": {"learning_rate": 0.001},
    "bayesian_admm": {"penalty": 0.1, "mixing": 0.2},
}


@pytest.mark.parametrize("name", SMALL_STEPS)
def test_methods_that_need_tuning_say_that_they_have_not_arrived(name):
    """They are far from the optimum after a hundred rounds; so the bound is not called the best."""
    settings = SMALL_STEPS[name]
    parts = clients(pt.Table(10 * PLAIN.x, PLAIN.y), 4)
    result = pt.run(pt.methods.named(name, **settings), MODEL, FULL, parts)
    best = pt.run(pt.methods.sequential(pt.Conjugate()), MODEL, FULL, parts)
    assert best.status is pt.Status.CONVERGED
    if result.free_energy < best.free_energy - 0.1:
        assert result.status is not pt.Status.CONVERGED
        assert "so far" in repr(result)
    else:
        assert result.status is pt.Status.CONVERGED


@pytest.mark.parametrize("name", ["global_vi", "incremental_vi"])
def test_steps_of_natural_gradients_need_no_rate(name):
    """On columns for which no common rate serves: they differ a thousandfold in scale."""
    parts = clients(pt.Table(PLAIN.x * np.geomspace(0.03, 30, PLAIN.x.shape[1]), PLAIN.y), 4)
    result = pt.run(pt.methods.named(name), MODEL, FULL, parts, monitor=pt.Monitor(every=0))
    assert result.status is pt.Status.CONVERGED
    best = pt.run(pt.methods.sequential(pt.Conjugate()), MODEL, FULL, parts, monitor=pt.Monitor(every=0))
    assert result.posterior.q.kl(best.posterior.q) < 1e-4


def test_a_run_that_has_spent_its_budget_says_how_many_more_rounds_it_needs():
    parts, method = clients(PLAIN, 10), pt.methods.synchronous(pt.Conjugate(), damping=0.1)
    short, whole = (
        pt.run(method, MODEL, FULL, parts, rounds=rounds, monitor=pt.Monitor(every=0)) for rounds in (25, 1000)
    )
    assert whole.status is pt.Status.CONVERGED
    (said,) = re.findall(r"allow about (\d+) more rounds", short.message)
    assert 0.5 < int(said) / (len(whole.history) - 25) < 2


def test_a_run_whose_steps_are_too_small_says_by_how_much_to_raise_them():
    method = pt.methods.global_vi(learning_rate=1e-4)
    message = pt.run(method, MODEL, FULL, clients(PLAIN, 4), rounds=30, monitor=pt.Monitor(progress=False)).message
    assert "raise learning_rate from 0.0001 to about 0.001" in message
