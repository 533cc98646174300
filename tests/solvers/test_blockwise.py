import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import Conjugate, FullGaussian, InputError, LinearRegression, MeanFieldGaussian, Newton, Table
from partita.checks import check_solver
from partita.expectations import Expectation
from partita.families import Product
from partita.families.factor import Factor
from partita.local.solvers import LBFGS, Blockwise, FixedPoint, Outcome, PowerEP
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


def test_means_can_be_optimised_with_fixed_standard_deviations():
    """The block "precision_mean": each sd stays, and the means are the best for these sds."""
    prior = MeanFieldGaussian.standard_normal(3)
    sd = np.array([0.3, 0.5, 0.7])
    start = MeanFieldGaussian.from_mean_sd(np.array([-0.5, 0.5, 0.0]), sd)
    solution = solve(Blockwise(LBFGS(), (("precision_mean",),)), problem(prior, start), KEY)
    np.testing.assert_array_equal(solution.q.precision, start.precision)
    best, mean, _ = scipy_optimum(X, Y, 1.0, "mean-field", fixed_sd=sd)
    assert solution.free_energy == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(solution.q.mean, mean, atol=1e-3)


TURN = np.array([[1.0, 0.3, 0.0], [0.0, 0.8, -0.2], [0.0, 0.0, 0.5]])
AWAY = np.array([-0.5, 0.5, 0.0])
SPLIT = {
    "mean-field": MeanFieldGaussian.from_mean_sd(AWAY, np.array([0.3, 0.5, 0.7])),
    "mean-field, wide": MeanFieldGaussian.from_mean_sd(AWAY, 10.0),
    "full": FullGaussian.from_mean_covariance(AWAY, 0.3 * TURN @ TURN.T),
    "full, wide": FullGaussian.from_mean_covariance(AWAY, 100 * TURN @ TURN.T),
}
"""Starts of which one leaf stays; where it says that q is wide, whole steps overshoot and are halved."""


@pytest.mark.parametrize("block", ["precision_mean", "precision"])
@pytest.mark.parametrize("start", SPLIT.values(), ids=SPLIT.keys())
def test_natural_gradients_in_one_leaf_end_where_gradients_do(start, block):
    """Steps cut in two instead said CONVERGED up to 15 nats below."""
    task = problem(type(start).standard_normal(3), start)
    found = solve(Blockwise(FixedPoint(), ((block,),)), task, KEY)
    best = solve(Blockwise(LBFGS(tolerance=1e-15), ((block,),)), task, KEY)
    assert Outcome(int(found.outcome)) == Outcome.CONVERGED
    # A step of at most 1e-10 nats leaves a few times that.
    assert found.free_energy == pytest.approx(float(best.free_energy), abs=1e-8)
    stays = "precision" if block == "precision_mean" else "precision_mean"
    np.testing.assert_array_equal(getattr(found.q, stays), getattr(start, stays))


def test_natural_gradients_in_the_mean_alone_agree_with_scipy():
    sd = np.array([0.3, 0.5, 0.7])
    task = problem(MeanFieldGaussian.standard_normal(3), SPLIT["mean-field"])
    found = solve(Blockwise(FixedPoint(), (("precision_mean",),)), task, KEY)
    assert found.free_energy == pytest.approx(scipy_optimum(X, Y, 1.0, "mean-field", fixed_sd=sd)[0], abs=1e-8)


@pytest.mark.parametrize("damping", [1e-6, 1.0])
def test_convergence_is_judged_by_the_undamped_step(damping):
    """A millionth of the way is less than 1e-10 nats here, and far from any optimum."""
    task = problem(MeanFieldGaussian.standard_normal(3), SPLIT["mean-field"])
    found = solve(FixedPoint(damping), task, KEY)
    assert Outcome(int(found.outcome)) == (Outcome.STEP_LIMIT if damping < 1 else Outcome.CONVERGED)


def test_a_small_sweep_of_unconverged_blocks_does_not_count_as_converged():
    task = problem(MeanFieldGaussian.standard_normal(3), SPLIT["mean-field"])
    solver = Blockwise(FixedPoint(1e-6, max_steps=3), (("precision_mean", "precision"),), max_steps=2)
    assert Outcome(int(solve(solver, task, KEY).outcome)) == Outcome.STEP_LIMIT


@pytest.mark.parametrize("solver", [Conjugate(), Newton(), PowerEP()], ids=["conjugate", "Newton", "power EP"])
def test_solvers_that_cannot_solve_for_a_leaf_alone_are_refused(solver):
    task = problem(FullGaussian.standard_normal(3), model=LinearRegression(0.5))
    with pytest.raises(InputError, match=r"cannot solve for the block .* while its other leaves stay"):
        jax.eval_shape(Blockwise(solver, (("precision_mean",),)).solve, task, KEY)


def test_a_block_may_be_a_key_of_theta():
    q = MeanFieldGaussian.standard_normal({"a": jnp.zeros(2), "b": jnp.zeros(1)})
    assert free_leaves(q, ("a",)) == (True, False, True, False)
    assert free_leaves(q, ("precision",)) == (False, False, True, True)
    assert free_leaves(q, ("a", "b")) == (True,) * 4
    assert free_leaves(GROUPS, ("slope",)) == (False, False, True, True)


def test_an_unknown_block_is_refused_with_the_known_names():
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
