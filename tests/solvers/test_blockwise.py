import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import LBFGS, Blockwise, Conjugate, FixedPoint, FullGaussian, InputError, MeanFieldGaussian, Product, Table
from partita.checks import check_solver
from partita.expectations import Expectation
from partita.families.factor import Factor
from partita.local.solvers import Outcome
from partita.local.solvers.blockwise import free_leaves
from partita.models import Model
from support.small_problems import KEY, X, Y, problem, scipy_optimum, solve


class TwoGroups(Expectation):
    """y ~ N(x[0:2]·level + x[2:3]·slope, 1), with independent groups of coefficients, in closed form."""

    def rows(self, model, q, data, key):
        moments = [q["level"].project(data.x[:, :2]), q["slope"].project(data.x[:, 2:])]
        mean, variance = moments[0][0] + moments[1][0], moments[0][1] + moments[1][1]
        return -((data.y - mean) ** 2 + variance + jnp.log(2 * jnp.pi)) / 2


class Factorised(Model):
    expectation: Expectation = TwoGroups()

    def log_density(self, theta, datum):
        mean = datum.x[:2] @ theta["level"] + datum.x[2:] @ theta["slope"]
        return -((datum.y - mean) ** 2 + jnp.log(2 * jnp.pi)) / 2


GROUPS = Product(level=FullGaussian.standard_normal(2), slope=FullGaussian.standard_normal(1))
SWEEPS = Blockwise(Conjugate(), (("level",), ("slope",)))
PRECISION = np.eye(3) + X.T @ X
MEAN = np.linalg.solve(PRECISION, X.T @ Y)


def test_contract():
    check_solver(SWEEPS, Factorised(), GROUPS, Table(X, Y))


def test_sweeps_of_conjugate_steps_reach_the_joint_optimum():
    """Variational message passing: the means are the exact posterior's, the precisions its diagonal blocks."""
    solution = solve(SWEEPS, problem(GROUPS, model=Factorised()), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    # A sweep of 1e-10 nats moves the mean by 1e-5 standard deviations, of about 0.15.
    np.testing.assert_allclose(jnp.concatenate([solution.q["level"].mean, solution.q["slope"].mean]), MEAN, atol=1e-5)
    np.testing.assert_allclose(solution.q["level"].precision, PRECISION[:2, :2], rtol=1e-10)
    np.testing.assert_allclose(solution.q["slope"].precision, PRECISION[2:, 2:], rtol=1e-10)


def test_a_single_block_is_solved_exactly_and_the_others_stay():
    solution = solve(Blockwise(Conjugate(), (("level",),), max_steps=1), problem(GROUPS, model=Factorised()), KEY)
    jax.tree.map(np.testing.assert_array_equal, solution.q["slope"], GROUPS["slope"])
    np.testing.assert_allclose(solution.q["level"].precision, PRECISION[:2, :2], rtol=1e-10)
    mean = np.linalg.solve(PRECISION[:2, :2], X[:, :2].T @ Y)  # given a slope of 0
    np.testing.assert_allclose(solution.q["level"].mean, mean, rtol=1e-10)


def test_means_alone_can_be_moved():
    """The block "precision_mean": each sd stays, and the means are the best for these sds."""
    prior = MeanFieldGaussian.standard_normal(3)
    sd = np.array([0.3, 0.5, 0.7])
    start = MeanFieldGaussian.from_mean_sd(np.array([-0.5, 0.5, 0.0]), sd)
    solution = solve(Blockwise(LBFGS(), (("precision_mean",),)), problem(prior, start), KEY)
    np.testing.assert_array_equal(solution.q.precision, start.precision)
    best, mean, _ = scipy_optimum(X, Y, 1.0, "mean-field", fixed_sd=sd)
    assert solution.free_energy == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(solution.q.mean, mean, atol=1e-3)


def test_a_block_may_be_a_key_of_theta():
    q = MeanFieldGaussian.standard_normal({"a": jnp.zeros(2), "b": jnp.zeros(1)})
    assert free_leaves(q, ("a",)) == (True, False, True, False)
    assert free_leaves(q, ("precision",)) == (False, False, True, True)
    assert free_leaves(q, ("a", "b")) == (True,) * 4
    assert free_leaves(GROUPS, ("slope",)) == (False, False, True, True)


def test_an_unknown_block_is_refused_with_the_names_there_are():
    task = problem(GROUPS, model=Factorised())
    with pytest.raises(InputError, match=r"'height'.*level, precision, precision_mean, slope"):
        jax.eval_shape(Blockwise(Conjugate(), (("level",), ("height",))).solve, task, KEY)


def test_many_short_sweeps_stay_in_the_trust_region():
    """Each sweep's own ball is around where it began; together they must not walk out of the one around q."""
    prior = MeanFieldGaussian.standard_normal(3)
    task = problem(prior, context=Factor(prior**-2.0, jnp.zeros(())))
    short = FixedPoint(damping=0.05, max_steps=5)
    solver = Blockwise(short, (("precision_mean", "precision"),), max_steps=100)
    solution = solve(solver, task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.TRUST_REGION
    assert solution.q.kl(prior) <= prior.size()
    assert solution.free_energy > task.free_energy(prior, KEY)
