"""What every solver has to do, on a small logistic regression."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from partita import (
    Conjugate,
    FullGaussian,
    Gradient,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    Newton,
    Table,
)
from partita.checks import check_solver
from partita.expectations import MonteCarlo
from partita.families.factor import Factor
from partita.local.solvers import LBFGS, Blockwise, FixedPoint, Outcome
from support.small_problems import KEY, X, Y, problem, scipy_optimum, solve

PRIOR = MeanFieldGaussian.standard_normal(3)
SOLVERS = {
    "fixed point": (FixedPoint(), 1e-6),
    "Newton": (Newton(), 1e-6),
    "L-BFGS": (LBFGS(), 1e-6),
    "Adam": (Gradient(learning_rate=0.05), 1e-4),
    # Plain steps in natural coordinates, not preconditioned: the mean rises by less than the tolerance long before
    # the optimum, hence a smaller one here.
    "natural sgd": (
        Gradient(optimiser=optax.sgd, coordinates="natural", learning_rate=0.4, max_steps=5000, tolerance=1e-6),
        1e-4,
    ),
    "blockwise": (Blockwise(FixedPoint(max_steps=1), (("precision_mean", "precision"),)), 1e-6),
}
every_solver = pytest.mark.parametrize(("solver", "tolerance"), SOLVERS.values(), ids=SOLVERS.keys())


@pytest.fixture(scope="module")
def optimum():
    return scipy_optimum(X, Y, 1.0, "mean-field")


@pytest.mark.parametrize("name", SOLVERS)
def test_contract(name):
    check_solver(SOLVERS[name][0], LogisticRegression(), PRIOR, Table(X, Y))


@pytest.mark.parametrize("solver", [LBFGS(max_steps=20), Gradient(max_steps=20, batch_size=8)])
def test_contract_where_the_expectation_is_drawn(solver):
    check_solver(solver, LogisticRegression(expectation=MonteCarlo(5)), PRIOR, Table(X, Y))


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
    solution = solve(dataclasses.replace(solver, max_steps=2), problem(PRIOR), KEY)
    assert (int(solution.outcome), int(solution.steps)) == (Outcome.STEP_LIMIT, 2)
    assert solution.free_energy > problem(PRIOR).free_energy(PRIOR, KEY)


@every_solver
def test_changing_a_number_does_not_recompile(solver, tolerance):
    """A new step size, tolerance or limit is no new program."""
    changes = {"max_steps": 3, "tolerance": 0.5, "learning_rate": 0.01, "window": 2, "patience": 2, "damping": 0.7}
    known = {name: value for name, value in changes.items() if hasattr(solver, name)}
    solve(solver, problem(PRIOR), KEY)
    programs = solve.traces
    solve(dataclasses.replace(solver, **known), problem(PRIOR, trust_region=2.0), KEY)
    assert solve.traces == programs


def test_changing_a_static_field_recompiles():
    """So that the count above can rise."""
    solve(FixedPoint(), problem(PRIOR), KEY)
    programs = solve.traces
    solve(FixedPoint(halvings=3), problem(PRIOR), KEY)
    assert solve.traces == programs + 1


@every_solver
def test_single_precision_stays_single(solver, tolerance):
    """Also where double precision is switched on, and for a model with a number of its own."""
    small = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PRIOR)
    for model in (LogisticRegression(), LinearRegression(0.5)):
        shapes = jax.eval_shape(
            solver.solve, problem(small, model=model, x=X.astype(np.float32), y=Y.astype(np.float32)), KEY
        )
        assert {str(leaf.dtype) for leaf in jax.tree.leaves((shapes.q, shapes.free_energy))} == {"float32"}


IMPROPER = Factor(PRIOR**-2.0, jnp.zeros(()))
"""So negative a precision that 40 rows of a likelihood with linear tails cannot hold q: F has no maximum."""


@pytest.mark.parametrize("name", ["fixed point", "Newton", "L-BFGS", "Adam", "blockwise"])
@pytest.mark.parametrize("trust_region", [0.1, 1.0])
def test_an_improper_context_is_left_at_the_trust_region(name, trust_region):
    unbounded = problem(PRIOR, context=IMPROPER, trust_region=trust_region)
    far = MeanFieldGaussian.from_mean_sd(jnp.array([100.0, 0.0, 0.0]), 10.0)
    assert unbounded.free_energy(far, KEY) > 1000  # there is no maximum
    solution = solve(SOLVERS[name][0], unbounded, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.TRUST_REGION
    assert solution.q.is_proper()
    assert solution.q.kl(PRIOR) <= trust_region * PRIOR.size()
    assert solution.free_energy >= unbounded.free_energy(PRIOR, KEY)
    np.testing.assert_allclose(solution.free_energy, unbounded.free_energy(solution.q, KEY), rtol=1e-12)


@pytest.mark.parametrize("name", ["fixed point", "Newton", "L-BFGS", "Adam"])
def test_an_improper_context_that_the_data_outweigh_is_solved(name):
    bounded = problem(PRIOR, context=Factor(PRIOR**-0.5, jnp.zeros(())))
    solution = solve(SOLVERS[name][0], bounded, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    # `eq:fixed-point-bi-simplified`: q = context · ∇_μ ell, to the square root of the tolerance in F.
    target = bounded.context.natural * bounded.likelihood_factor(solution.q, KEY)
    assert target.kl(solution.q) < 1e-4


@pytest.mark.parametrize("name", ["fixed point", "Newton"])
def test_a_proper_context_has_no_trust_region(name, optimum):
    solution = solve(SOLVERS[name][0], problem(PRIOR, trust_region=1e-6), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert solution.free_energy == pytest.approx(optimum[0], abs=1e-6)


def test_every_outcome_has_a_sentence():
    assert all(outcome.sentence.endswith(".") for outcome in Outcome)
