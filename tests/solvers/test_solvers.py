"""What every solver has to do, on a small logistic regression."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_problems import KEY, X, Y, problem, scipy_optimum, solve

from partita import (
    LBFGS,
    Blockwise,
    Conjugate,
    FixedPoint,
    FullGaussian,
    Gradient,
    InputError,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    Newton,
    Table,
)
from partita.checks import check_solver
from partita.compiled import Compiled
from partita.objective import Factor
from partita.solvers import Outcome

PRIOR = MeanFieldGaussian.standard_normal(3)
BLOCKS = (("precision_mean",), ("precision",))
SOLVERS = {
    "fixed point": (FixedPoint(), 1e-6),
    "Newton": (Newton(), 1e-6),
    "L-BFGS": (LBFGS(), 1e-6),
    "Adam": (Gradient(learning_rate=0.05), 1e-4),
    # Plain steps in natural coordinates, not preconditioned: the mean rises by less than the tolerance long before
    # the optimum, hence a smaller one here.
    "natural sgd": (
        Gradient(
            optimiser=optax.sgd, coordinates="natural", learning_rate=0.4, max_steps=5000, tolerance=1e-6
        ),
        1e-4,
    ),
    "blockwise": (Blockwise(FixedPoint(), BLOCKS), 1e-6),
}
every_solver = pytest.mark.parametrize(("solver", "tolerance"), SOLVERS.values(), ids=SOLVERS.keys())


@pytest.fixture(scope="module")
def optimum():
    return scipy_optimum(X, Y, 1.0, "mean-field")


@pytest.mark.parametrize("name", SOLVERS)
def test_contract(name):
    check_solver(SOLVERS[name][0], LogisticRegression(), PRIOR, Table(X, Y))


def test_contract_of_the_conjugate_step():
    check_solver(Conjugate(), LinearRegression(0.5), FullGaussian.standard_normal(3), Table(X, Y))


@every_solver
def test_all_reach_the_optimum_that_scipy_finds(solver, tolerance, optimum):
    best, mean, covariance = optimum
    solution = solve(solver, problem(PRIOR), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert best - tolerance < solution.free_energy < best + 1e-9  # SciPy's own gradient tolerance is 1e-9
    # F is quadratic around its maximum, with a curvature of at least 1/2 in units of the standard deviation.
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((solution.q.mean - mean) / sd, 0, atol=2 * np.sqrt(tolerance))
    np.testing.assert_allclose(solution.q.sd / sd, 1, atol=2 * np.sqrt(tolerance))


@every_solver
def test_a_step_limit_is_reported(solver, tolerance):
    limited = jax.tree.map(lambda leaf: leaf, solver)
    object.__setattr__(limited, "max_steps", 2)
    solution = solve(limited, problem(PRIOR), KEY)
    assert (int(solution.outcome), int(solution.steps)) == (Outcome.STEP_LIMIT, 2)
    assert solution.free_energy > problem(PRIOR).free_energy(PRIOR, KEY)
