"""Likelihoods with several predictors: densities against SciPy's, expectations against draws, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from partita import FullGaussian, MeanFieldGaussian, Table
from partita.checks import check_model, check_solver
from partita.data.table import OffsetTable, Times, Trials
from partita.errors import InputError, SettingsError
from partita.expectations.predictors import PredictorQuadrature, normal_nodes, square_root
from partita.local.solvers import ModeFixedPoint
from partita.models.classes import MultinomialRegression, OrdinalRegression
from partita.models.continuous import (
    BetaRegression,
    GammaRegression,
    InferredNoiseRegression,
    StudentTRegression,
    WeibullRegression,
)
from partita.models.counts import (
    CloglogBinomial,
    LogitBinomial,
    NegativeBinomialCounts,
    PoissonCounts,
    ProbitBinomial,
    ZeroInflated,
)

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
ROWS = 12
COUNTS = np.array([0, 0, 1, 2, 5, 0, 3, 1, 0, 9, 4, 1.0])
POSITIVE = RNG.gamma(2, 1, ROWS)
EVENTS = Trials(np.minimum(COUNTS, 6), np.full(ROWS, 7.0))
LEVELS = np.arange(ROWS) % 4.0


def negative_binomial(y, f):
    size = np.exp(-f[1])
    return stats.nbinom.logpmf(y, size, size / (size + np.exp(f[0])))


def zero_inflated(counts):
    def log_density(y, f):
        share = special.expit(f[-1])
        return np.log(share * (y == 0) + (1 - share) * np.exp(counts(y, f[:-1])))

    return log_density


def ordinal(y, f):
    below = special.expit(np.concatenate([[-np.inf, 0.0], np.cumsum(np.exp(f[1:])), [np.inf]]) - f[0])
    return np.log(np.diff(below)[int(y)])


def weibull(y, f):
    law = stats.weibull_min(np.exp(f[1]), scale=np.exp(f[0]))
    return law.logpdf(y.time) if y.event else law.logsf(y.time)


def beta(y, f):
    mean, precision = special.expit(f[0]), np.exp(f[1])
    return stats.beta.logpdf(y, mean * precision, (1 - mean) * precision)


MEMBERS = {
    "logit": (LogitBinomial(), EVENTS, lambda y, f: stats.binom.logpmf(*y, special.expit(f[0]))),
    "probit": (ProbitBinomial(), EVENTS, lambda y, f: stats.binom.logpmf(*y, special.ndtr(f[0]))),
    "cloglog": (CloglogBinomial(), EVENTS, lambda y, f: stats.binom.logpmf(*y, -np.expm1(-np.exp(f[0])))),
    "poisson": (PoissonCounts(), COUNTS, lambda y, f: stats.poisson.logpmf(y, np.exp(f[0]))),
    "negative binomial": (NegativeBinomialCounts(), COUNTS, negative_binomial),
    "zero-inflated": (
        ZeroInflated(counts=PoissonCounts()),
        COUNTS,
        zero_inflated(lambda y, f: stats.poisson.logpmf(y, np.exp(f[0]))),
    ),
    "zero-inflated negative binomial": (
        ZeroInflated(counts=NegativeBinomialCounts()),
        COUNTS,
        zero_inflated(negative_binomial),
    ),
    "normal": (InferredNoiseRegression(), POSITIVE, lambda y, f: stats.norm.logpdf(y, f[0], np.exp(f[1]))),
    "student": (StudentTRegression(), POSITIVE, lambda y, f: stats.t.logpdf(y, np.exp(f[2]), f[0], np.exp(f[1]))),
    "gamma": (
        GammaRegression(),
        POSITIVE,
        lambda y, f: stats.gamma.logpdf(y, np.exp(f[1]), scale=np.exp(f[0] - f[1])),
    ),
    "beta": (BetaRegression(), special.expit(POSITIVE - 2), beta),
    "weibull": (WeibullRegression(), Times(POSITIVE, (np.arange(ROWS) % 3 > 0) * 1.0), weibull),
    "ordinal": (OrdinalRegression(classes=4), LEVELS, ordinal),
    "multinomial": (
        MultinomialRegression(classes=4),
        LEVELS,
        lambda y, f: special.log_softmax(np.concatenate([[0.0], f]))[int(y)],
    ),
}
X = np.column_stack([np.ones(ROWS), RNG.normal(size=ROWS)])
OFFSET = RNG.normal(0, 0.3, ROWS)


def table(name):
    return jax.tree.map(jnp.asarray, OffsetTable(X, MEMBERS[name][1], OFFSET))


def member(model, kind=FullGaussian, seed=1):
    """A posterior that is neither wide nor a point, with correlations where the family has them."""
    generator = np.random.default_rng(seed)
    size = 2 * model.linear + model.constants
    mean, turn = generator.normal(0, 0.3, size), generator.normal(size=(size, size))
    if kind is MeanFieldGaussian:
        return MeanFieldGaussian.from_mean_sd(jnp.asarray(mean), jnp.full(size, 0.2))
    return FullGaussian.from_mean_covariance(jnp.asarray(mean), 0.03 * (turn @ turn.T / size + 0.2 * np.eye(size)))


@pytest.mark.parametrize("name", MEMBERS)
def test_the_density_is_scipys(name):
    model, responses, expected = MEMBERS[name]
    for row in range(ROWS):
        y = jax.tree.map(lambda leaf, row=row: leaf[row], responses)
        f = np.random.default_rng(row).normal(0, 1, model.linear + model.constants)
        found = model.log_link_density(jnp.asarray(f), jax.tree.map(jnp.asarray, y))
        np.testing.assert_allclose(found, expected(y, f), rtol=1e-9, atol=1e-10)


QUICK = ("probit", "zero-inflated negative binomial", "student", "ordinal", "multinomial")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MEMBERS]
)
def test_a_model_keeps_its_contract(name):
    model = MEMBERS[name][0]
    check_model(model, member(model), table(name))


@pytest.mark.parametrize("name", ["gamma", "ordinal"])
@pytest.mark.parametrize("kind", [FullGaussian, MeanFieldGaussian])
def test_value_and_gradient_agree(name, kind):
    """Central differences in mean and covariance, so that a line search can rely on the natural gradient."""
    model = MEMBERS[name][0]
    q, weights = member(model, kind), jnp.linspace(0.5, 2, ROWS)

    @jax.jit
    def ell(standard):
        return model.ell(q.with_standard(standard), table(name), weights, KEY)

    standard = q.standard()
    gradient = jax.grad(ell)(standard)
    generator = np.random.default_rng(3)
    way = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape)), standard)
    if standard.variance.ndim == 2:
        way = way._replace(variance=way.variance + way.variance.T)
    moved = [ell(jax.tree.map(lambda leaf, by, s=s: leaf + s * 1e-6 * by, standard, way)) for s in (1, -1)]
    slope = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
    np.testing.assert_allclose((moved[0] - moved[1]) / 2e-6, slope, rtol=1e-6)


def test_the_closed_form_of_normal_noise_is_its_quadrature():
    model = MEMBERS["normal"][0]
    q = member(model)
    by_nodes = PredictorQuadrature(400).rows(model, q, table("normal"), KEY)
    np.testing.assert_allclose(model.expectation.rows(model, q, table("normal"), KEY), by_nodes, rtol=1e-9)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5, 7])
def test_nodes_have_the_moments_of_standard_normals(dimensions):
    nodes, masses = normal_nodes(dimensions, 256)
    assert (masses > 0).all()
    assert nodes.shape[1] <= 256
    np.testing.assert_allclose([masses.sum(), *(nodes @ masses)], [1] + dimensions * [0], atol=1e-12)
    np.testing.assert_allclose(nodes * masses @ nodes.T, np.eye(dimensions), atol=1e-12)
    if dimensions <= 5:
        np.testing.assert_allclose(nodes**4 @ masses, 3, rtol=1e-10)


def test_the_square_root_of_a_singular_covariance_has_finite_derivatives():
    part = np.array([[2.0, 0, 1], [0, 0, 0], [1, 0, 3]])
    np.testing.assert_allclose(square_root(part) @ square_root(part).T, part, atol=1e-12)
    assert np.isfinite(jax.jacobian(square_root)(jnp.asarray(part))).all()


def test_probabilities_of_classes_sum_to_one_and_agree_with_the_density():
    for name in ("ordinal", "multinomial"):
        model = MEMBERS[name][0]
        f = jnp.asarray(np.random.default_rng(5).normal(size=model.linear + model.constants))
        each = np.exp([model.log_link_density(f, jnp.asarray(float(k))) for k in range(4)])
        np.testing.assert_allclose(model.mean_response(f), each, rtol=1e-12)
        np.testing.assert_allclose(each.sum(), 1, rtol=1e-12)
        probabilities = model.expected_response(member(model), jnp.asarray(X))
        assert probabilities.shape == (ROWS, 4)
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("name", ["poisson", "negative binomial", "zero-inflated negative binomial"])
def test_counts_have_their_mean_and_sum_to_one(name):
    model = MEMBERS[name][0]
    f, values = jnp.asarray([0.5, -0.4, -1.0])[: 1 + model.constants], np.arange(400.0)
    masses = np.exp(jax.vmap(lambda y: model.log_link_density(f, y))(jnp.asarray(values)))
    np.testing.assert_allclose([masses.sum(), masses @ values], [1, model.mean_response(f)], rtol=1e-9)


@pytest.mark.parametrize("name", ["gamma", "beta", "weibull"])
def test_continuous_responses_have_their_mean(name):
    model, f = MEMBERS[name][0], jnp.asarray([0.3, 0.9])
    nodes, masses = np.polynomial.legendre.leggauss(500)
    low, high = {"gamma": (0, 40), "beta": (0, 1), "weibull": (0, 20)}[name]
    values, masses = low + (nodes + 1) / 2 * (high - low), masses * (high - low) / 2
    responses = Times(values, np.ones(len(values))) if name == "weibull" else values
    density = np.exp(jax.vmap(lambda y: model.log_link_density(f, y))(jax.tree.map(jnp.asarray, responses)))
    np.testing.assert_allclose([masses @ density, masses @ (density * values)], [1, model.mean_response(f)], rtol=1e-5)


def test_a_small_dispersion_is_poisson_to_the_last_digits():
    """Γ(y + 1/α) / Γ(1/α) would lose eleven digits at α = 1e-9."""
    f = jnp.asarray([1.0, np.log(1e-9)])
    for y in (0.0, 3.0, 40.0):
        found = NegativeBinomialCounts().log_link_density(f, jnp.asarray(y))
        np.testing.assert_allclose(found, stats.poisson.logpmf(y, np.e), atol=1e-6)


BAD = (
    ("logit", Trials(np.array([3.0]), np.array([2.0])), "events"),
    ("logit", Trials(np.array([1.0]), np.array([0.5])), "trials"),
    ("negative binomial", np.array([-1.0]), "counts"),
    ("zero-inflated", np.array([0.5]), "counts"),
    ("gamma", np.array([0.0]), "above 0"),
    ("beta", np.array([1.0]), "below 1"),
    ("weibull", Times(np.array([0.0]), np.array([1.0])), "times"),
    ("weibull", Times(np.array([1.0]), np.array([2.0])), "events"),
    ("ordinal", np.array([4.0]), "from 0 to 3"),
    ("multinomial", np.array([1.5]), "from 0 to 3"),
    ("gamma", np.array([np.nan]), "finite"),
)


@pytest.mark.parametrize(("name", "y", "said"), BAD)
def test_other_responses_are_refused(name, y, said):
    with pytest.raises(InputError, match=said):
        MEMBERS[name][0].check(Table(np.ones((1, 1)), y))


def test_the_solver_keeps_its_contract_from_a_wide_prior():
    check_solver(ModeFixedPoint(), MEMBERS["student"][0], FullGaussian.standard_normal(4, 3.0), table("student"))


def test_the_solver_needs_a_vector():
    prior = MeanFieldGaussian.standard_normal({"a": jnp.zeros(2)})
    with pytest.raises(SettingsError, match="one vector"):
        check_solver(ModeFixedPoint(), MEMBERS["gamma"][0], prior, table("gamma"))


CONTINUOUS = {
    "normal": lambda f: stats.norm(f[0], np.exp(f[1])),
    "student": lambda f: stats.t(np.exp(f[2]), f[0], np.exp(f[1])),
    "gamma": lambda f: stats.gamma(np.exp(f[1]), scale=np.exp(f[0] - f[1])),
    "beta": lambda f: stats.beta(special.expit(f[0]) * np.exp(f[1]), special.expit(-f[0]) * np.exp(f[1])),
    "weibull": lambda f: stats.weibull_min(np.exp(f[1]), scale=np.exp(f[0])),
}
DRAWN = 2000


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MEMBERS]
)
def test_draws_have_the_mean_and_the_distribution_of_the_density(name):
    """Means within five standard errors; the first rows by chi-square or Kolmogorov and Smirnov, against SciPy's."""
    model, responses, log_density = MEMBERS[name]
    data, theta = table(name), np.array(member(model).mean)
    if name == "student":
        theta[-1] = 2.0  # which has a variance
    theta = jnp.asarray(theta)
    drawn = np.asarray(jax.vmap(lambda key: model.simulated(theta, data, key))(jax.random.split(KEY, DRAWN)))
    expected = np.asarray(model.response_of(theta, data))
    if model.predicts_classes:
        found, errors = np.eye(4)[drawn.astype(int)].mean(axis=0), np.sqrt(expected * (1 - expected) / DRAWN)
    else:
        expected = expected * getattr(responses, "trials", 1)
        found, errors = drawn.mean(axis=0), drawn.std(axis=0) / np.sqrt(DRAWN)
    assert (np.abs(found - expected) < 5 * errors).all()
    for row in range(3):
        linear = np.asarray(theta)[: 2 * model.linear].reshape(model.linear, 2) @ X[row]
        linear[0] += OFFSET[row]
        f = np.concatenate([linear, np.asarray(theta)[2 * model.linear :]])
        if name in CONTINUOUS:
            assert stats.kstest(drawn[:, row], CONTINUOUS[name](f).cdf).pvalue > 1e-4
            continue
        most = int(drawn[:, row].max()) + 1
        trials = getattr(responses, "trials", None)
        values = [float(value) if trials is None else Trials(value, trials[row]) for value in range(most)]
        with np.errstate(divide="ignore"):
            chances = np.exp([log_density(value, f) for value in values])
        kept = chances * DRAWN > 5
        counts = np.array([(drawn[:, row] == value).sum() for value in range(most)])[kept]
        counts, chances = np.append(counts, DRAWN - counts.sum()), np.append(chances[kept], 1 - chances[kept].sum())
        used = chances > 1e-12
        assert stats.chisquare(counts[used], DRAWN * chances[used] / chances[used].sum()).pvalue > 1e-4
