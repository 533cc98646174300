import jax.numpy as jnp
import numpy as np
import pytest

from partita import Conjugate, FullGaussian, LinearRegression, MeanFieldGaussian, PoissonRegression
from partita.families import Gamma, NormalGamma, Product
from partita.families.factor import Factor
from partita.local.solvers import FixedPoint, Outcome
from partita.models import UnknownNoiseRegression
from support.small_problems import KEY, X, Y, problem, scipy_optimum, solve

WIDE = MeanFieldGaussian.standard_normal(3, 10.0)


def test_the_conjugate_step_is_the_exact_posterior():
    """`sec:optim:analytic`: precision Λ₀ + XᵀX/σ², and F is then log p(y)."""
    prior = FullGaussian.standard_normal(3, 2.0)
    start = FullGaussian.from_mean_covariance(jnp.array([3.0, -2.0, 1.0]), np.eye(3) + 0.5)
    solution = solve(Conjugate(), problem(prior, start, LinearRegression(0.5)), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    precision = np.eye(3) / 4 + X.T @ X / 0.25
    np.testing.assert_allclose(solution.q.precision, precision, rtol=1e-10)
    np.testing.assert_allclose(solution.q.mean, np.linalg.solve(precision, X.T @ Y / 0.25), rtol=1e-10)
    marginal = 4 * X @ X.T + 0.25 * np.eye(40)
    log_evidence = -(Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2
    np.testing.assert_allclose(solution.free_energy, log_evidence, rtol=1e-10)


@pytest.mark.parametrize(
    ("model", "prior"),
    [(LinearRegression(0.5), MeanFieldGaussian), (None, FullGaussian)],
    ids=["linear, mean-field", "logistic, full"],
)
def test_a_model_that_is_not_conjugate_is_reported(model, prior):
    """A mean-field family is not conjugate to correlated columns, nor any Gaussian to a logistic likelihood."""
    task = problem(prior.standard_normal(3), model=model)
    solution = solve(Conjugate(), task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.NOT_CONJUGATE
    assert solution.free_energy > task.free_energy(task.start, KEY)


@pytest.mark.parametrize(("points", "noise"), [(60, 0.1), (100, 0.01)])
def test_a_gaussian_process_is_conjugate(points, noise):
    """A kernel matrix with a jitter of 1e-6 has a condition number of 1e8: ∇_μ ell at the prior is rounded by 1e-8."""
    t = np.linspace(0, 1, points)
    kernel = np.exp(-((t[:, None] - t) ** 2) / 0.18) + 1e-6 * np.eye(points)
    y = np.sin(6 * t) + noise * np.random.default_rng(1).normal(size=points)
    prior = FullGaussian.from_mean_covariance(np.zeros(points), kernel)
    solution = solve(Conjugate(), problem(prior, model=LinearRegression(noise), x=np.eye(points), y=y), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    marginal = kernel + noise**2 * np.eye(points)
    log_evidence = -(y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2
    # F is a difference of terms of about 1e3, in which the prior's condition number counts.
    np.testing.assert_allclose(solution.free_energy, log_evidence, rtol=1e-6)


def test_many_rows_in_single_precision_are_conjugate():
    """Three clients of 66,666 rows are visited twice; sums over rows are rounded by 1e-6 and more of their size.

    Compared leaf by leaf, the natural gradients of the last visit differed by more than the root of the precision.
    """
    generator = np.random.default_rng(2)
    x = np.float32(generator.normal(size=(200_000, 3)))
    y = np.float32(x @ [1.0, -0.5, 0.2] + 0.7 * generator.normal(size=200_000))
    prior = NormalGamma.from_parameters(*[np.float32(value) for value in (np.zeros(3), np.eye(3), 2.0, 1.5)])
    q, factors = Factor.of(prior), [Factor.one(prior)] * 3
    for k in (0, 1, 2, 0, 1, 2):
        rows = slice(66_666 * k, 66_666 * (k + 1))
        context = q / factors[k]
        task = problem(prior, q.natural, UnknownNoiseRegression(), x[rows], y[rows], context)
        solution = solve(Conjugate(), task, KEY)
        assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
        q = Factor.of(solution.q)
        factors[k] = q / context


def test_a_mild_lack_of_conjugacy_is_reported():
    """Three counts under a tight prior, from 1e-5 nats below the optimum: a third step still goes 2e-10 nats."""
    prior = FullGaussian.standard_normal(3, 0.3)
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * X[:3, 0])).astype(float)
    task = problem(prior, model=PoissonRegression(), x=X[:3], y=counts)
    best = solve(FixedPoint(tolerance=1e-28), task, KEY).q
    start = best**0.99 * prior**0.01
    solution = solve(Conjugate(), problem(prior, start, PoissonRegression(), X[:3], counts), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.NOT_CONJUGATE


def test_unknown_noise_is_not_conjugate_to_a_product():
    prior = Product(coefficients=FullGaussian.standard_normal(3), precision=Gamma.from_shape_rate(2.0, 1.5))
    solution = solve(Conjugate(), problem(prior, model=UnknownNoiseRegression()), KEY)
    assert Outcome(int(solution.outcome)) == Outcome.NOT_CONJUGATE


def test_a_conjugate_step_to_an_improper_member_is_held_back():
    prior = FullGaussian.standard_normal(3)
    task = problem(prior, model=LinearRegression(0.5), context=Factor(prior**-1000.0, jnp.zeros(())))
    solution = solve(Conjugate(), task, KEY)
    assert Outcome(int(solution.outcome)) == Outcome.TRUST_REGION
    assert solution.q.is_proper()
    assert solution.q.kl(prior) <= prior.size()


# From each of these the undamped iteration ends lower than it began.
HOSTILE = {
    "wide": WIDE,
    "far and tight": MeanFieldGaussian.from_mean_sd(jnp.array([10.0, 10.0, -10.0]), 0.1),
    "on the wrong side": MeanFieldGaussian.from_mean_sd(jnp.array([-20.0, 20.0, 20.0]), 0.3),
}


@pytest.mark.parametrize("start", HOSTILE.values(), ids=HOSTILE.keys())
def test_backtracking_never_lowers_the_free_energy(start):
    task = problem(WIDE, start)
    before = task.free_energy(start, KEY)
    plain = solve(FixedPoint(backtrack=False), task, KEY)
    assert plain.free_energy < before
    values = [float(before)]
    for steps in (1, 2, 3, 5, 10, 100):
        solution = solve(FixedPoint(max_steps=steps), task, KEY)
        values.append(float(solution.free_energy))
    # Never lower, to the rounding of a sum of about 1e3.
    assert (np.diff(values) >= -1e-11).all()
    assert Outcome(int(solution.outcome)) == Outcome.CONVERGED
    assert solution.free_energy == pytest.approx(scipy_optimum(X, Y, 10.0, "mean-field")[0], abs=1e-6)


def test_without_backtracking_a_step_is_the_papers():
    """`eq:fixed-point-bi-damp`: q^(1−ρ) · (context · ∇_μ ell)^ρ."""
    start = HOSTILE["far and tight"]
    task = problem(WIDE, start)
    found = solve(FixedPoint(damping=0.3, max_steps=1, backtrack=False), task, KEY).q
    target = WIDE * task.likelihood_factor(start, KEY)
    expected = start**0.7 * target**0.3
    np.testing.assert_allclose(found.precision, expected.precision, rtol=1e-12)
    np.testing.assert_allclose(found.precision_mean, expected.precision_mean, rtol=1e-12)
