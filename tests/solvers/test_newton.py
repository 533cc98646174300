import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita import FullGaussian, InputError, LinearRegression, MeanFieldGaussian, Newton, PoissonRegression
from partita.expectations.blocks import BLOCK, over_blocks, rows_by_blocks
from partita.families import Product
from partita.families.factor import Factor
from partita.local.solvers import LBFGS, Outcome
from partita.models import NetworkClassifier
from partita.numerics.compiled import Compiled
from support.small_problems import FAMILIES, KEY, X, Y, problem, scipy_optimum, solve

both_families = pytest.mark.parametrize("family", FAMILIES)


@both_families
def test_reaches_the_optimum_of_either_family(family):
    best, mean, covariance = scipy_optimum(X, Y, 1.0, family)
    solution = solve(Newton(), problem(FAMILIES[family].standard_normal(3)), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert int(solution.steps) < 10
    assert solution.free_energy == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(solution.q.mean, mean, atol=1e-3)  # the root of that, times sds of a third
    np.testing.assert_allclose(solution.q.sd, np.sqrt(np.diag(covariance)), atol=1e-3)


@pytest.mark.parametrize(("family", "scale"), [("mean-field", 10.0), ("mean-field", 100.0), ("full", 10.0)])
def test_collinear_and_badly_scaled_columns_from_a_wide_prior(family, scale):
    """A constant and a category of two levels, one of which a single row has: standardised, that row stands at 6.2."""
    levels = np.eye(2)[np.repeat([0, 1], [39, 1])]
    x = np.concatenate([np.ones((40, 1)), (levels - levels.mean(0)) / levels.std(0)], axis=1)
    best, _, _ = scipy_optimum(x, Y, scale, family)
    task = problem(FAMILIES[family].standard_normal(3, scale), x=x)
    # F is flat along the collinear columns; with covariances convergence is then linear, and a last step of 1e-6 nats
    # leaves several times that.
    solution = solve(Newton(tolerance=1e-6 if family == "mean-field" else 1e-9), task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert solution.free_energy == pytest.approx(best, abs=1e-6)
    assert solution.free_energy >= solve(LBFGS(), task, KEY).free_energy - 1e-6


def test_linear_regression_is_solved_exactly():
    prior = FullGaussian.standard_normal(3, 2.0)
    solution = solve(Newton(), problem(prior, model=LinearRegression(0.5)), KEY)
    np.testing.assert_allclose(solution.q.precision, np.eye(3) / 4 + X.T @ X / 0.25, rtol=1e-9)
    np.testing.assert_allclose(solution.q.mean, np.linalg.solve(solution.q.precision, X.T @ Y / 0.25), rtol=1e-9)


def test_a_model_with_a_closed_form_ends_where_the_gradient_vanishes():
    """`eq:fixed-point-bi-simplified`: q = context · ∇_μ ell."""
    task = problem(MeanFieldGaussian.standard_normal(3), model=PoissonRegression())
    solution = solve(Newton(tolerance=1e-12), task, KEY)
    target = task.context.natural * task.likelihood_factor(solution.q, KEY)
    np.testing.assert_allclose(solution.q.precision, target.precision, rtol=1e-6)
    np.testing.assert_allclose(solution.q.precision_mean, target.precision_mean, rtol=1e-6, atol=1e-6)


def test_weights_stand_for_repeated_rows():
    """Rows of weight 2 and 0 are rows that occur twice and never."""
    weights = np.tile([2.0, 0.0], 20)
    prior = MeanFieldGaussian.standard_normal(3)
    weighted = solve(Newton(tolerance=1e-12), problem(prior, weights=[weights]), KEY)
    rows = np.repeat(np.arange(40), weights.astype(int))
    repeated = solve(Newton(tolerance=1e-12), problem(prior, x=X[rows], y=Y[rows]), KEY)
    np.testing.assert_allclose(weighted.q.mean, repeated.q.mean, rtol=1e-9)
    np.testing.assert_allclose(weighted.q.precision, repeated.q.precision, rtol=1e-9)


@pytest.mark.parametrize("length", [16, 20, 39, 40], ids="blocks of {}".format)
def test_sums_over_blocks_of_rows_count_each_row_once(length):
    """Where the length does not divide 40, the last block overlaps the one before."""
    shard = problem(MeanFieldGaussian.standard_normal(3)).shard
    total = over_blocks(lambda block: block.weights @ block.data.x, shard, length)
    np.testing.assert_allclose(total, X.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("length", [16, 40, 64], ids="blocks of {}".format)
@pytest.mark.parametrize("every", [1, 3, 100], ids="every {}".format)
def test_sums_over_chosen_rows_count_those_once(length, every):
    shard = problem(MeanFieldGaussian.standard_normal(3)).shard
    chosen = np.arange(40) % every == every - 1
    total = over_blocks(lambda block: block.weights @ block.data.x, shard, length, jnp.asarray(chosen))
    np.testing.assert_allclose(total, X[chosen].sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("length", [16, 40], ids="blocks of {}".format)
def test_numbers_of_rows_are_the_same_block_by_block(length):
    shard = problem(MeanFieldGaussian.standard_normal(3)).shard
    np.testing.assert_array_equal(rows_by_blocks(lambda block: block.data.x[:, 1], shard, length), X[:, 1])


def test_a_hessian_of_which_only_changed_rows_are_summed_again_is_near_the_right_one():
    """Each row is in it with a curvature within a tenth of its present one, and so is the sum in any direction."""
    task, newton, kept = problem(MeanFieldGaussian.standard_normal(3, 10.0)), Newton(tolerance=None), []
    step = Compiled(lambda task, progress: newton.step(task, progress, jnp.asarray(0), KEY))
    progress = Compiled(newton.init)(task, KEY)
    for _ in range(4):
        now = np.asarray(progress.memory.point.rows.mean_mean)
        progress = step(task, progress)
        held, sums = progress.memory.held, progress.memory.sums
        kept.append(int(np.sum(held[0] != now)))
        np.testing.assert_array_less(np.abs(held[0] - now), 0.1 * np.maximum(np.abs(held[0]), np.abs(now)) + 1e-15)
        for found, left, rows, right in zip(sums, (X, X, X**2), held, (X, X**2, X**2), strict=True):
            np.testing.assert_allclose(found, (left * np.asarray(rows)[:, None]).T @ right, rtol=1e-5, atol=1e-4)
        ratios = np.linalg.eigvals(np.linalg.solve((X * now[:, None]).T @ X, sums[0]))
        assert np.all((ratios > 0.9 - 1e-5) & (ratios < 1 / 0.9 + 1e-5))
    assert kept[0] == 0  # the first step sums all
    assert any(0 < count < 40 for count in kept)


@both_families
def test_the_answer_to_rows_in_several_blocks_is_a_fixed_point(family):
    """`eq:fixed-point-bi-simplified`, from the Laplace approximation near the mode, and by rows in single precision."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((BLOCK + 100, 2)), rng.random((BLOCK + 100, 1)) < 0.003], axis=1)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 5.0]))).astype(float)
    task = problem(FAMILIES[family].standard_normal(3, 10.0), x=x, y=y)
    solution = solve(Newton(tolerance=1e-11), task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert solution.q.length(task.target(solution.q, KEY) / solution.q) < 1e-11
    assert solution.free_energy == pytest.approx(float(task.free_energy(solution.q, KEY)), rel=1e-13)


def test_an_improper_context_is_left_at_the_trust_region_with_covariances():
    prior = FullGaussian.standard_normal(3)
    task = problem(prior, context=Factor(prior**-2.0, jnp.zeros(())))
    solution = solve(Newton(), task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.TRUST_REGION
    assert solution.q.is_proper()
    assert solution.q.kl(prior) <= prior.size()
    assert solution.free_energy >= task.free_energy(prior, KEY)


def test_a_network_is_refused():
    model = NetworkClassifier((3, 2))
    task = problem(MeanFieldGaussian.standard_normal(model.template()), model=model)
    with pytest.raises(InputError, match=r"Newton needs a generalised linear model, not NetworkClassifier"):
        jax.eval_shape(Newton().solve, task, KEY)


def test_a_product_is_refused():
    task = problem(Product(theta=MeanFieldGaussian.standard_normal(3)))
    with pytest.raises(InputError, match="Gaussian family, not Product"):
        jax.eval_shape(Newton().solve, task, KEY)
