import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln, log_expit, log_ndtr

from partita import (
    FullGaussian,
    LinearRegression,
    LogisticRegression,
    MeanFieldGaussian,
    PoissonRegression,
    Status,
    Table,
    methods,
    run,
)
from partita.data import federate
from partita.errors import InputError
from partita.expectations import GaussHermite
from partita.families.factor import Factor
from partita.local.solvers import FixedPoint, Outcome, PowerEP
from partita.local.solvers.power_ep import MIN_DAMPING, Sites, tilted
from partita.models import NetworkClassifier, ProbitRegression
from partita.numerics.compiled import Compiled
from partita.server.monitor import Monitor
from support.small_problems import FAMILIES, KEY, X, Y, problem, solve

MODELS = {
    "logistic": LogisticRegression(GaussHermite(64)),
    "probit": ProbitRegression(GaussHermite(64)),
    "Poisson": PoissonRegression(),
}


@pytest.mark.parametrize("damping", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_as_alpha_vanishes_its_passes_are_the_fixed_points_steps(model, family, damping):
    """`prop:pep-fp`: three steps from elsewhere than the context differ by a multiple of α over five decades."""
    context = family.standard_normal(3, 0.5)
    start = family.from_mean_sd(jnp.full(3, 0.2), 0.4) if family is MeanFieldGaussian else context**1.3
    task = problem(context, start, model)
    limit = solve(FixedPoint(damping, max_steps=3, tolerance=0.0, backtrack=False), task, KEY).q
    alphas = 10.0 ** -np.arange(3, 9)
    apart = []
    for alpha in alphas:
        q = solve(PowerEP(alpha, damping, max_steps=3, tolerance=0.0, in_turn=False), task, KEY).q
        apart.append(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(leaves(q), leaves(limit), strict=True))))
    slopes = np.diff(np.log10(apart)) / np.diff(np.log10(alphas))
    np.testing.assert_allclose(slopes, 1, atol=0.01)


def test_as_alpha_vanishes_its_evidence_is_the_free_energy():
    task = problem(FullGaussian.standard_normal(3), model=MODELS["logistic"])
    bound = solve(FixedPoint(), task, KEY)
    found = solve(PowerEP(1e-6), task, KEY)
    assert found.free_energy == pytest.approx(float(bound.free_energy), abs=1e-5)


def plain_ep(x, y, precision, passes=200):
    """Expectation propagation for probit regression, row after row: Rasmussen and Williams (2006), algorithm 3.5."""
    rows = len(x)
    signs = 2 * y - 1
    shift, tau, log_mass = np.zeros((3, rows))
    for _ in range(passes):
        for n in range(rows):
            covariance = np.linalg.inv(precision + (x.T * tau) @ x)
            mean = covariance @ (x.T @ shift)
            variance = x[n] @ covariance @ x[n]
            cavity_precision = 1 / variance - tau[n]
            cavity_mean = (x[n] @ mean / variance - shift[n]) / cavity_precision
            cavity_variance = 1 / cavity_precision
            z = signs[n] * cavity_mean / np.sqrt(1 + cavity_variance)
            ratio = np.exp(-(z**2) / 2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
            new_mean = cavity_mean + signs[n] * cavity_variance * ratio / np.sqrt(1 + cavity_variance)
            new_variance = cavity_variance - cavity_variance**2 * ratio * (z + ratio) / (1 + cavity_variance)
            tau[n] = 1 / new_variance - cavity_precision
            shift[n] = new_mean / new_variance - cavity_mean * cavity_precision
            # the site's scale: log Z less the logarithm of E[exp(shift f − tau f²/2)] under the cavity
            before = cavity_mean**2 * cavity_precision - np.log(cavity_precision)
            log_mass[n] = log_ndtr(z) - (new_mean**2 / new_variance + np.log(new_variance) - before) / 2
    covariance = np.linalg.inv(precision + (x.T * tau) @ x)
    mean = covariance @ (x.T @ shift)
    log_evidence = (
        log_mass.sum() + ((x.T @ shift) @ mean + np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(precision)[1]) / 2
    )
    return mean, covariance, log_evidence


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_expectation_propagation_for_probit_regression_is_the_textbooks(scale):
    mean, covariance, log_evidence = plain_ep(X, Y, np.eye(3) / scale**2)
    task = problem(FullGaussian.standard_normal(3, scale), model=ProbitRegression())
    found = solve(PowerEP(tolerance=1e-20), task, KEY)
    np.testing.assert_allclose(found.q.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(found.q.covariance, covariance, rtol=1e-8)
    assert found.free_energy == pytest.approx(log_evidence, abs=1e-8)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.01])
def test_gaussian_noise_is_matched_exactly_by_every_power(alpha):
    prior = FullGaussian.standard_normal(3, 2.0)
    found = solve(PowerEP(alpha, tolerance=1e-20), problem(prior, model=LinearRegression(0.5)), KEY)
    assert Outcome(int(found.outcome)) == Outcome.CONVERGED
    precision = np.eye(3) / 4 + X.T @ X / 0.25
    np.testing.assert_allclose(found.q.precision, precision, rtol=1e-9)
    np.testing.assert_allclose(found.q.mean, np.linalg.solve(precision, X.T @ Y / 0.25), rtol=1e-9)
    marginal = 4 * X @ X.T + 0.25 * np.eye(40)
    log_evidence = -(Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2
    assert found.free_energy == pytest.approx(log_evidence, abs=1e-8)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_at_convergence_every_tilted_density_has_the_posteriors_moments(family, alpha):
    """The fixed point of `alg:pep`, row by row, by sums over a grid in two dimensions."""
    x, y = X[:12, :2], Y[:12]
    task = problem(family.standard_normal(2, 2.0), model=LogisticRegression(), x=x, y=y)
    solver = PowerEP(alpha, tolerance=1e-22)
    q, sites = solve(solver, task, KEY).q, final_sites(solver, task)
    mean, covariance = full_moments(q)
    sd = np.sqrt(np.diagonal(covariance))
    axes = [np.linspace(m - 12 * s, m + 12 * s, 161) for m, s in zip(mean, sd, strict=True)]
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_q = -np.einsum("ni,ij,nj->n", theta - mean, np.linalg.inv(covariance), theta - mean) / 2
    for n in range(12):
        f = theta @ x[n]
        if family is MeanFieldGaussian:
            log_site = theta @ np.asarray(sites.shift[n]) - theta**2 @ np.asarray(sites.precision[n]) / 2
        else:
            log_site = float(sites.shift[n]) * f - float(sites.precision[n]) * f**2 / 2
        log_tilted = log_q + alpha * (-np.logaddexp(0, (1 - 2 * y[n]) * f) - log_site)
        mass = np.exp(log_tilted - log_tilted.max())
        mass /= mass.sum()
        first = mass @ theta
        second = (theta - first).T @ ((theta - first) * mass[:, None])
        np.testing.assert_allclose(first, mean, rtol=1e-8, atol=1e-8)
        if family is MeanFieldGaussian:
            np.testing.assert_allclose(np.diagonal(second), np.diagonal(covariance), rtol=1e-8)
        else:
            np.testing.assert_allclose(second, covariance, rtol=1e-8, atol=1e-8)


def test_a_row_with_weight_two_is_two_rows():
    prior = FullGaussian.standard_normal(3)
    twice = problem(prior, x=np.concatenate([X, X[:5]]), y=np.concatenate([Y, Y[:5]]))
    weighted = problem(prior, weights=[np.where(np.arange(40) < 5, 2.0, 1.0)])
    one, other = (solve(PowerEP(0.5, tolerance=1e-20), task, KEY) for task in (twice, weighted))
    np.testing.assert_allclose(one.q.precision, other.q.precision, rtol=1e-9)
    assert one.free_energy == pytest.approx(float(other.free_energy), abs=1e-8)


def test_weight_one_half_equals_the_square_root_of_the_likelihood():
    """Two halves of each row, each matched as a whole, are one row matched with the power 1/2."""
    prior = FullGaussian.standard_normal(3)
    halves = problem(prior, x=np.tile(X, (2, 1)), y=np.tile(Y, 2), weights=[np.full(80, 0.5)])
    one = solve(PowerEP(1.0, tolerance=1e-20), halves, KEY)
    other = solve(PowerEP(0.5, tolerance=1e-20), problem(prior), KEY)
    np.testing.assert_allclose(one.q.precision, other.q.precision, rtol=1e-7)
    assert one.free_energy == pytest.approx(float(other.free_energy), abs=1e-8)


def test_the_answer_does_not_depend_on_the_start():
    """Its sites are not known then; its answer depends on the context alone."""
    context = FullGaussian.standard_normal(3)
    start = FullGaussian.from_mean_covariance(jnp.array([1.0, 1.0, -1.0]), np.eye(3) / 10)
    one, other = solve(PowerEP(), problem(context), KEY), solve(PowerEP(), problem(context, start), KEY)
    np.testing.assert_allclose(one.q.precision, other.q.precision, rtol=1e-5)
    assert one.free_energy == pytest.approx(float(other.free_energy), abs=1e-8)


def rare():
    """Rows of which few, all of one class, have a category, whose standardised column is wide under the prior."""
    generator = np.random.default_rng(2)
    x = np.column_stack([np.ones(60), generator.normal(size=60), np.where(np.arange(60) % 5 == 0, 40.0, 0.0)])
    return x, ((generator.uniform(size=60) < 0.5) & (x[:, 2] == 0)).astype(float)


@pytest.mark.parametrize("alpha", [1.0, pytest.param(0.5, marks=pytest.mark.slow), 0.1])
def test_rare_categories_converge_with_sequential_and_not_with_parallel_passes(alpha):
    """In whatever order the rows come, since a fixed point knows none."""
    x, y = rare()
    prior = FullGaussian.standard_normal(3)
    solver = PowerEP(alpha, max_steps=300, tolerance=1e-20)
    found = [
        solve(solver, problem(prior, x=x[order], y=y[order]), KEY) for order in (slice(None), slice(None, None, -1))
    ]
    assert [Outcome(int(each.outcome)) for each in found] == [Outcome.CONVERGED] * 2
    np.testing.assert_allclose(found[0].q.precision, found[1].q.precision, rtol=1e-8)
    np.testing.assert_allclose(found[0].q.mean, found[1].q.mean, rtol=1e-8)
    assert found[0].free_energy == pytest.approx(float(found[1].free_energy), abs=1e-8)
    at_once = dataclasses.replace(solver, in_turn=False)
    near = solve(at_once, problem(prior, x=x, y=y), KEY)
    assert Outcome(int(near.outcome)) != Outcome.CONVERGED


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_an_improper_context_has_a_proper_answer_that_does_not_depend_on_the_start(alpha, family):
    context = Factor.one(family.standard_normal(3)) / Factor.of(family.standard_normal(3, 2.0))
    starts = family.standard_normal(3, 0.5), family.standard_normal(3, 0.3)
    solver = PowerEP(alpha, max_steps=300, tolerance=1e-20)
    found = [solve(solver, problem(start, context=context), KEY) for start in starts]
    assert [Outcome(int(each.outcome)) for each in found] == [Outcome.CONVERGED] * 2
    assert found[0].q.is_proper()
    np.testing.assert_allclose(found[0].q.precision, found[1].q.precision, rtol=1e-8, atol=1e-10)
    assert found[0].free_energy == pytest.approx(float(found[1].free_energy), abs=1e-8)


class Unknowable(LogisticRegression):
    """A likelihood that is no number where x₀ is 9."""

    def log_density_at(self, predictor, data):
        known = super().log_density_at(predictor, data)
        return jnp.where(data.x[:, 0].reshape(-1, *(1,) * (predictor.ndim - 1)) == 9, jnp.nan, known)


def test_rows_without_a_proper_site_are_skipped_counted_and_shown():
    prior = FullGaussian.standard_normal(3)
    bad = X.copy()
    bad[[3, 8], 0] = 9
    good = np.delete(np.arange(40), [3, 8])
    parts = federate([Table(bad, Y)], names=["ward"])
    result = run(methods.power_ep(), Unknowable(), prior, parts, rounds=1, monitor=Monitor(every=0))
    assert result.history.rows[0]["skipped"] == {"ward": 2}
    assert "2 rows of ward have no proper site" in result.message
    without = solve(PowerEP(0.5), problem(prior, x=X[good], y=Y[good]), KEY)
    np.testing.assert_allclose(result.state.posterior.precision, without.q.precision, rtol=1e-5)


def test_a_site_whose_cavity_is_improper_stays_as_it_is():
    task = problem(FullGaussian.standard_normal(3))
    solver = PowerEP()
    zeros = jnp.zeros(len(task.shard.weights))
    sites = Sites(zeros, zeros.at[5].set(1e6), zeros)
    new, proper = solver.pass_over(task.model, task.shard, task.start, sites)
    assert not proper[5]
    assert int(jnp.sum(~proper)) == 1
    assert (new.shift[5], new.precision[5]) == (0, 1e6)


@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.5, float("nan"), np.float32(1.5), jnp.asarray(0.0), "0.5", None])
def test_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        PowerEP(alpha)


@pytest.mark.parametrize("settings", [{"damping": 0.0}, {"damping": 2.0}, {"max_steps": 0}])
def test_invalid_damping_and_passes_are_refused(settings):
    with pytest.raises(InputError, match=r"above 0 and at most 1|1 or more"):
        PowerEP(**settings)


def test_a_single_parallel_pass_counts_as_converged():
    task = problem(FullGaussian.standard_normal(3))
    found = [solve(PowerEP(max_steps=1, in_turn=in_turn), task, KEY) for in_turn in (True, False)]
    assert [Outcome(int(each.outcome)) for each in found] == [Outcome.STEP_LIMIT, Outcome.CONVERGED]


def test_models_and_families_without_a_gaussian_predictor_are_refused():
    model = NetworkClassifier((3, 2, 2))
    with pytest.raises(InputError, match="generalised linear model"):
        solve(PowerEP(), problem(MeanFieldGaussian.standard_normal(model.template()), model=model), KEY)


def leaves(q):
    return np.asarray(q.precision_mean), np.asarray(q.precision)


def full_moments(q):
    mean, variance = q.standard()
    return np.asarray(mean), np.diag(variance) if variance.ndim == 1 else np.asarray(variance)


@Compiled
def final_sites(solver, task):
    """The sites after sixty of the solver's own passes."""
    start = solver.init(task, KEY)
    return jax.lax.fori_loop(0, 60, lambda i, progress: solver.step(task, progress, i, KEY), start).memory.sites


SCHEDULES = ("sequential", "synchronous", "asynchronous")


SLOW = pytest.mark.slow
WAYS = [
    pytest.param(
        schedule, family, id=f"{schedule}-{name}", marks=() if (schedule, name) == ("sequential", "full") else SLOW
    )
    for schedule, (name, family) in itertools.product(SCHEDULES, FAMILIES.items())
]


@pytest.mark.parametrize(("schedule", "family"), WAYS)
def test_clients_end_where_one_client_with_all_rows_does(schedule, family):
    """A fixed point of `alg:pep` does not depend on who holds which rows; nor does the evidence."""
    prior, model = family.standard_normal(3, 2.0), ProbitRegression()
    parts = federate([Table(X[:7], Y[:7]), Table(X[7:20], Y[7:20]), Table(X[20:], Y[20:])])
    solver = PowerEP(0.7, tolerance=1e-20, points=48)
    method = dataclasses.replace(methods.power_ep(0.7, schedule), solver=solver)
    # KL of almost equal members is rounding, of either sign: no tolerance, so that all rounds are run
    result = run(method, model, prior, parts, tolerance=None, rounds=80, monitor=Monitor(every=0))
    pooled = solve(solver, problem(prior, model=model), KEY)
    mean, covariance = full_moments(pooled.q)
    found_mean, found_covariance = full_moments(result.state.posterior)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-8)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-8, atol=1e-10)
    assert result.history.rows[-1]["log_evidence"] == pytest.approx(float(pooled.free_energy), abs=1e-8)
    invariant = prior
    for factor in result.state.factors:
        invariant = invariant * factor.natural
    np.testing.assert_allclose(result.state.posterior.precision, invariant.precision, rtol=1e-10)


def grid_moments(log_density, mean, variance, alpha, peak=None):
    """Mass, mean and variance of N(f; mean, variance) · p^α, where p peaks, by sums over ever finer values of f."""
    places = [mean, mean if peak is None else peak]
    low, high = min(places) - 10 * variance**0.5, max(places) + 10 * variance**0.5
    for _ in range(4):
        f = np.linspace(low, high, 400_001)
        heights = alpha * log_density(f) - (f - mean) ** 2 / (2 * variance)
        there = f[heights > heights.max() - 50]
        low, high = there[0] - (f[1] - f[0]), there[-1] + (f[1] - f[0])
    mass = np.exp(heights - heights.max())
    log_mass = heights.max() + np.log(mass.sum() * (f[1] - f[0]) / np.sqrt(2 * np.pi * variance))
    mass /= mass.sum()
    return log_mass, mass @ f, mass @ (f - mass @ f) ** 2


def poisson(y):
    return lambda f: y * f - np.exp(np.minimum(f, 700.0)) - gammaln(y + 1)


BINARY = list(itertools.product((0.01, 1.0, 100.0, 1e4), (-5, 0, 2, 5), (1.0, 0.1)))
COUNTS = list(itertools.product((0.01, 1.0, 25.0, 1e4), (-5, 0, 2, 5), (1.0, 0.1)))
LINKS = {
    "logistic": ("logistic", 1.0, log_expit, BINARY),
    "probit": ("probit", 1.0, log_ndtr, BINARY),
    **{f"{y} counted": ("Poisson", y, poisson(y), COUNTS) for y in (0.0, 1.0, 50.0, 1e5)},
}


@pytest.mark.parametrize(("model", "y", "log_density", "cavities"), LINKS.values(), ids=LINKS.keys())
def test_tilted_densities_are_integrated_accurately_for_wide_cavities(model, y, log_density, cavities):
    """Against sums over a grid; Adult's rare categories have variances in the thousands under N(0, I)."""
    integrate = jax.jit(lambda *row: tilted(MODELS[model], Table(jnp.ones(1), jnp.asarray(y)), *row, 96))
    for variance, away, alpha in cavities:
        mean = away * variance**0.5
        log_mass, centre, spread = grid_moments(log_density, mean, variance, alpha, np.log(y) if y > 1 else None)
        found = integrate(mean, variance, alpha)
        assert float(found.log_mass) == pytest.approx(log_mass / alpha, rel=1e-10, abs=1e-5)
        assert mean + alpha * variance * float(found.slope) == pytest.approx(centre, abs=1e-6 * spread**0.5)
        assert variance * (1 - alpha * variance * float(found.curvature)) == pytest.approx(spread, rel=1e-5)


class Unbounded(LogisticRegression):
    """exp(20 f²): no tilted density where a cavity's variance is above 1/40, which all of them are here."""

    def log_density_at(self, predictor, data):
        return 20 * predictor**2


def test_a_row_whose_tilted_density_has_no_moments_is_skipped_and_not_taken():
    task = problem(FullGaussian.standard_normal(3), model=Unbounded())
    found = solve(PowerEP(), task, KEY)
    assert int(found.skipped) == 40
    np.testing.assert_array_equal(found.q.precision, task.context.natural.precision)


def test_large_counts_have_the_posterior_that_a_grid_has():
    """An intercept of log 200, five prior sds away, by a single row that has all the counts."""
    counts = np.random.default_rng(3).poisson(200, 1).astype(float)
    task = problem(FullGaussian.standard_normal(1), model=PoissonRegression(), x=np.ones((1, 1)), y=counts)
    found = solve(PowerEP(), task, KEY)
    log_mass, centre, spread = grid_moments(poisson(counts[0]), 0.0, 1.0, 1.0, np.log(counts[0]))
    assert (int(found.skipped), Outcome(int(found.outcome))) == (0, Outcome.CONVERGED)
    assert found.free_energy == pytest.approx(log_mass, abs=1e-8)
    assert float(found.q.mean[0]) == pytest.approx(centre, rel=1e-8)
    assert float(found.q.covariance[0, 0]) == pytest.approx(spread, rel=1e-7)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_rows_of_zeros_change_the_evidence_and_not_the_posterior(family):
    """Their predictor is 0 for every θ, as that of a row with the base category of every column."""
    prior, model = family.standard_normal(3), LogisticRegression()
    without = solve(PowerEP(), problem(prior, model=model), KEY)
    rows, labels = np.concatenate([X, np.zeros((2, 3))]), np.concatenate([Y, [0.0, 1.0]])
    found = solve(PowerEP(), problem(prior, model=model, x=rows, y=labels), KEY)
    assert (int(found.skipped), Outcome(int(found.outcome))) == (0, Outcome.CONVERGED)
    np.testing.assert_allclose(found.q.precision, without.q.precision, rtol=1e-12)
    assert found.free_energy == pytest.approx(float(without.free_energy) + 2 * np.log(0.5), abs=1e-10)


def test_clients_that_hit_the_step_limit_do_not_count_as_converged():
    """They begin again at their contexts, so that they answer the same again, wherever the fixed point is."""
    generator = np.random.default_rng(1)
    common = generator.normal(size=(30, 1))
    x = common + 0.1 * generator.normal(size=(30, 3))
    parts = federate([Table(x[part], Y[:30][part]) for part in (slice(0, 10), slice(10, 20), slice(20, 30))])
    prior = MeanFieldGaussian.standard_normal(3, 2.0)
    short = run(
        methods.power_ep(1.0, passes=1), LogisticRegression(), prior, parts, rounds=40, monitor=Monitor(every=0)
    )
    assert short.status is Status.BUDGET_SPENT
    assert "3 clients" in short.message
    assert Outcome.STEP_LIMIT.sentence in short.message
    whole = run(
        methods.power_ep(1.0, passes=1000), LogisticRegression(), prior, parts, rounds=40, monitor=Monitor(every=0)
    )
    assert whole.status is Status.CONVERGED


def test_rounding_errors_do_not_reduce_the_damping_to_zero():
    """At a fixed point passes go to and fro by rounding; a ρ of nothing would make any place look like one."""
    x, y = rare()
    task, solver = problem(FullGaussian.standard_normal(3), x=x, y=y), PowerEP(0.1, tolerance=0.0, points=48)
    start = solver.init(task, KEY)
    memory = jax.lax.fori_loop(0, 250, lambda i, progress: solver.step(task, progress, i, KEY), start).memory
    assert float(memory.damping) >= MIN_DAMPING
