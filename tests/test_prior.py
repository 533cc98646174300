"""A prior outside q's family is one more client: same fixed points, by every schedule, engine and store."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import partita as pt
from partita.engines import local
from partita.engines.prior import PriorEngine
from partita.engines.remote import RemoteEngine
from partita.errors import SettingsError
from partita.local.client import client_update
from partita.models import laws
from partita.models.prior import Group, IndependentPrior, OutsidePrior
from partita.models.prior_text import prior
from support.problems import MODEL, PARTS, SCHEDULES, SOLVER, assert_product, not_finite

QUIET = pt.Monitor(progress=False)
WIDE = prior("student_t(3, 0, 2.5)", 3)
NARROW = OutsidePrior(WIDE.density, pt.FullGaussian.standard_normal(3, 1.5))
SEQUENTIAL, SYNCHRONOUS = pt.methods.sequential(SOLVER), pt.methods.synchronous(SOLVER)
# a law, the density that SciPy knows, and where it is singular
KNOWN = {
    "normal": (laws.Normal(), stats.norm(scale=0.3).logpdf),
    "student_t": (laws.StudentT(3.0), stats.t(3, scale=0.3).logpdf),
    "laplace": (laws.Laplace(), stats.laplace(scale=0.3).logpdf),
    "half_normal": (laws.Folded(laws.Normal()), lambda u: stats.halfnorm(scale=0.3).logpdf(np.exp(u)) + u),
    "half_t": (laws.Folded(laws.StudentT(3.0)), lambda u: np.log(2) + stats.t(3, scale=0.3).logpdf(np.exp(u)) + u),
    "gamma": (laws.GammaLaw(2.0), lambda u: stats.gamma(2, scale=0.3).logpdf(np.exp(u)) + u),
    "inverse_gamma": (laws.InverseGammaLaw(2.0), lambda u: stats.invgamma(2, scale=0.3).logpdf(np.exp(u)) + u),
}


def run(method=SEQUENTIAL, given=WIDE, parts=PARTS, **settings):
    return pt.run(method, MODEL, given, parts, monitor=QUIET, **{"tolerance": 1e-12} | settings)


@functools.cache
def reference():
    """The fit of all rows at once."""
    return run(parts=PARTS.pooled())


def assert_same(result, other=None, rtol=1e-6):
    # 1e-6 of a standard deviation: a run ends within 1e-12 nats, which are 1.4e-6 of them
    other = reference() if other is None else other
    np.testing.assert_allclose(result.posterior.q.mean, other.posterior.q.mean, atol=3 * rtol)
    np.testing.assert_allclose(result.posterior.q.sd, other.posterior.q.sd, rtol=3 * rtol)
    np.testing.assert_allclose(result.free_energy, other.free_energy, rtol=1e-9)


@pytest.mark.parametrize("name", KNOWN)
def test_a_law_has_the_density_that_others_compute(name):
    law, known = KNOWN[name]
    at = np.array([-2.0, -0.4, 0.0, 0.7, 1.5])
    np.testing.assert_allclose(law.log_density(jnp.asarray(at), jnp.full(1, np.log(0.3))), known(at), rtol=1e-12)


def test_a_horseshoe_without_a_slab_has_its_closed_form():
    # log-scale mixtures in steps of a half: see `_STEP`
    at = np.array([1e-3, 0.1, 1.0, 5.0])
    known = at**2 / 2 + np.log(special.exp1(at**2 / 2)) - np.log(np.pi) * 1.5 - np.log(2) / 2
    np.testing.assert_allclose(laws.Horseshoe(1e9).log_density(jnp.asarray(at), jnp.zeros(1)), known, atol=5e-4)


def test_a_normal_gamma_is_laplace_at_shape_1():
    # ω ~ Gamma(1, 1) gives Laplace's law of scale 1/√2
    at = np.array([0.1, 1.0, 4.0])
    known = stats.laplace(scale=1 / np.sqrt(2)).logpdf(at)
    np.testing.assert_allclose(laws.NormalGamma(1.0).log_density(jnp.asarray(at), jnp.zeros(1)), known, atol=5e-4)


def test_the_rule_is_exact_for_moments_and_sees_a_logarithm():
    mean, variance = jnp.array([0.0, 0.3, 5.0, 20.0]), jnp.array([1.0, 0.5, 1.0, 0.01])
    values, masses = laws.split_rule(mean, variance)
    np.testing.assert_allclose(jnp.sum(values * masses, axis=1), mean, atol=1e-10)
    np.testing.assert_allclose(jnp.sum((values - mean[:, None]) ** 2 * masses, axis=1), variance, rtol=1e-8)
    # E log|z| = −(γ + log 2) / 2 for a standard normal z
    logarithm = jnp.sum(jnp.log(jnp.abs(values[0])) * masses[0])
    np.testing.assert_allclose(logarithm, -(np.euler_gamma + np.log(2)) / 2, atol=1e-5)


def test_an_expectation_with_a_scale_that_is_inferred_is_the_integral():
    mean, covariance = np.array([0.4, -1.0]), np.array([[0.3, 0.1], [0.1, 0.2]])
    q = pt.FullGaussian.from_mean_covariance(mean, covariance)
    found = jax.jit(Group(laws.Laplace(), (0,), 0.1, 0.0, 1).expected)(q)
    at = np.stack(np.meshgrid(*[np.linspace(-6, 6, 1201)] * 2, indexing="ij"), axis=-1)
    masses = stats.multivariate_normal(mean, covariance).pdf(at) * 0.01**2
    known = np.sum(masses * (-np.abs(at[..., 0] - 0.1) * np.exp(-at[..., 1]) - at[..., 1] - np.log(2)))
    # the kink between the nodes of the grid costs it about the square of their distance
    np.testing.assert_allclose(found, known, atol=1e-4)


TEXTS = ["horseshoe(0.5)", "r2d2()", "student_t(3, 0.1, 0.5)", "laplace(0, half_t(3, 1))", "cauchy(0.2, gamma(2, 3))"]
TEXTS += ["normal(0, half_cauchy(1))", "1: laplace(0, exponential(2)); 0: normal(0, inverse_gamma(3, 1))"]


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_expectations_are_those_of_draws(text):
    """By the check that models keep: of coefficients that are correlated with their scale, and one at the spike."""
    density = prior(text, 2).density
    size = prior(text, 2).base.mean.size
    root = jnp.tril(jnp.full((size, size), 0.2)) + 0.3 * jnp.eye(size)
    q = pt.FullGaussian.from_mean_covariance(jnp.array([0.02, -1.0, -0.5, 0.3])[:size], root @ root.T)
    pt.checks.check_model(density, q, np.zeros(1))


def test_a_normal_prior_as_a_client_is_the_prior_in_the_family():
    own = IndependentPrior((Group(laws.Normal(), (0, 1, 2), 0.0, np.log(2.5)),))
    client = run(given=OutsidePrior(own, pt.FullGaussian.standard_normal(3, 4.0)))
    assert_same(client, run(given=pt.FullGaussian.standard_normal(3, 2.5)))


def test_the_fixed_point_is_that_of_all_rows_and_does_not_depend_on_the_base():
    result = run()
    assert_same(result)
    assert_same(run(given=NARROW))
    state = result.state
    assert_product(state)
    # the prior's client costs nothing
    assert state.names == (*PARTS.names, "prior")
    assert state.hosted.tolist() == [False, False, False, True]
    assert state.communications == sum(len(set(row["clients"]) - {"prior"}) for row in result.history.rows)


FEW = ["synchronous", "asynchronous"]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name not in FEW]


@pytest.mark.parametrize("schedule", [*FEW, *OTHERS])
def test_every_schedule_finds_it(schedule):
    chosen, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, chosen, pt.Adaptive() if schedule in FEW else pt.Damped(0.5))
    result = run(method, parts=None, engine=pt.LocalEngine(PARTS, speeds), rounds=300)
    assert_same(result, rtol=1e-5)
    assert_product(result.state)


def test_an_asynchronous_run_asks_the_prior_as_often_as_a_client():
    result = run(pt.methods.asynchronous(SOLVER), rounds=20)
    times = sum("prior" in row["clients"] for row in result.history.rows)
    assert 0.1 < times / len(result.history) < 0.4


def test_bounds_do_not_judge_it():
    # a base that is as narrow as the data makes the factor's precision negative
    narrow = OutsidePrior(WIDE.density, pt.FullGaussian.standard_normal(3, 0.3))
    bounds = pt.Admission(deficit=1e-6, dominance=1e6)
    result = run(given=narrow, rules=pt.Rules(admission=bounds))
    assert_same(result, rtol=1e-5)
    assert float(np.linalg.eigvalsh(result.state.factors[3].natural.matrix()).min()) < -1
    assert not result.history.refusals


@pytest.mark.parametrize("store", [pt.Checkpoint, pytest.param(pt.Ledger, marks=pytest.mark.slow)])
def test_a_run_goes_on_from_a_file_to_the_bit(store, tmp_path):
    whole, path = run(rounds=3, tolerance=None), tmp_path / "run"
    run(rounds=1, tolerance=None, store=store(path))
    resumed = run(rounds=3, tolerance=None, store=store(path))
    assert np.array_equal(resumed.posterior.q.mean, whole.posterior.q.mean)
    with pytest.raises(pt.InputError, match="another prior"):
        run(given=prior("cauchy(0, 2.5)", 3), store=store(path))


@pytest.mark.parametrize("method", [SEQUENTIAL, SYNCHRONOUS], ids=["sequential", "synchronous"])
def test_a_run_in_which_all_clients_fail_says_so(monkeypatch, method):
    """That the prior's answers are accepted is no sign of life."""

    def failing(recipe, visit):
        reply = client_update(recipe, visit)
        return not_finite(reply) if isinstance(recipe.model, pt.LogisticRegression) else reply

    monkeypatch.setattr(local, "client_update", failing)
    result = run(method, rounds=10)
    assert result.status is pt.Status.DIVERGED
    said = r"No answer could be accepted: that of client \d is not finite\. Check that client's rows and the model\."
    assert re.match(said, result.message)
    # a round that is incomplete leaves the prior's answer out; one by one clients are asked again after its first
    assert result.state.answers == (4 if method is SYNCHRONOUS else 7)


def test_clients_leave_and_come_back_and_the_prior_cannot():
    from partita.server.membership import join, retire

    rest, aggregation = PARTS.without("client 2"), SEQUENTIAL.aggregation
    gone = retire(run().state, "client 2", aggregation)
    assert_same(run(state=gone, parts=rest), run(parts=rest))
    back = join(gone, "client 2", aggregation)
    assert_same(run(state=back))
    with pytest.raises(SettingsError, match="prior's own client"):
        retire(gone, "prior", aggregation)


@pytest.mark.slow
def test_clients_elsewhere_find_it():
    from partita.engines.endpoint import ClientEndpoint
    from support.weather import FaultyLink

    recipe = SEQUENTIAL.recipe(MODEL)
    ends = {
        name: ClientEndpoint(name, recipe, WIDE.base, shard)
        for name, shard in zip(PARTS.names, PARTS.shards, strict=True)
    }
    rows = dict(zip(PARTS.names, PARTS.sizes, strict=True))
    engine = RemoteEngine(FaultyLink(ends, loss=0.2, repeat=0.2), rows)
    assert_same(run(parts=None, engine=engine, rules=pt.Rules(deadline=10.0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["global_vi", "synchronous", "bayesian_admm"])
def test_methods_find_it(name):
    result = run(pt.methods.named(name), rounds=300, tolerance=1e-10)
    assert_same(result, rtol=1e-4)


@pytest.mark.slow
def test_mean_field_by_way_of_full_covariance_settles_at_its_own_optimum():
    near = prior("student_t(3, 0, 2.5)", 3, pt.NearestMeanField.from_mean_sd)
    plain = prior("student_t(3, 0, 2.5)", 3, pt.MeanFieldGaussian.from_mean_sd)
    first = run(given=near)
    settled = run(given=plain, state=first.state)
    assert_same(settled, run(given=plain, rounds=200), rtol=1e-4)
    # at mean field's optimum precisions are the diagonal of rows' and the prior density's curvatures
    engine, q = PriorEngine(pt.LocalEngine(PARTS), plain), settled.state.posterior
    engine.bind(SEQUENTIAL.recipe(MODEL), plain.base)
    whole = engine.curvature(MODEL, q) + plain.base.matrix()
    np.testing.assert_allclose(np.diagonal(whole), np.asarray(q.sd) ** -2, rtol=1e-3)
    assert np.array_equal(settled.posterior.mean_field.found, np.ones(3))


@pytest.mark.slow
def test_noise_is_learned_beside_it():
    model = pt.LinearRegression()
    method = pt.methods.sequential(learn=["noise"])
    one, three = (pt.run(method, model, WIDE, parts, monitor=QUIET, rounds=200) for parts in (PARTS.pooled(), PARTS))
    np.testing.assert_allclose(one.state.hyper["noise"], three.state.hyper["noise"], rtol=1e-3)


def cut(size):
    """The first columns of all rows."""
    pairs = zip(PARTS.shards, PARTS.sizes, strict=True)
    return [pt.Table(np.asarray(shard.data.x)[:n, :size], np.asarray(shard.data.y)[:n]) for shard, n in pairs]


def error_of_evidence(given, model, size):
    """What power EP tells of log p(y), minus log ∫ p(y | θ) p(θ) dθ on a grid that is finer than anything in it."""
    rows = cut(size)
    x, y = np.concatenate([table.x for table in rows]), np.concatenate([table.y for table in rows])
    at = np.linspace(-6, 6, 4001 if size == 1 else 801)
    grid = jnp.asarray(np.stack(np.meshgrid(*[at] * size, indexing="ij"), axis=-1).reshape(-1, size))
    told = jnp.sum(model.log_link_density(grid @ x.T, y), axis=1) + jax.vmap(given.log_prob)(grid)
    known = special.logsumexp(told) + size * np.log(at[1] - at[0])
    return pt.run(pt.methods.power_ep(1.0), model, given, pt.federate(rows), monitor=QUIET).log_evidence - known


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_evidence_is_that_of_quadrature(size):
    given = prior("student_t(3, 0, 2.5)", size)
    # with a likelihood that is Gaussian EP's factors are exact but for the prior's, of which there is one
    assert abs(error_of_evidence(given, pt.LinearRegression(0.7), size)) < 1e-3
    # EP's own error of a logistic likelihood is that beside a Gaussian prior
    own = error_of_evidence(pt.FullGaussian.standard_normal(size, 2.5), MODEL, size)
    assert abs(error_of_evidence(given, MODEL, size) - own) < 1e-3


@pytest.mark.slow
def test_a_scale_that_is_inferred_has_its_distribution():
    """q(θ, ε) of coefficients and the logarithm of their scale, beside the posterior of that on a grid."""
    given, rows = prior("normal(0, half_normal(1))", 3), cut(3)
    x, y = np.concatenate([table.x for table in rows]), np.concatenate([table.y for table in rows])
    wide = [pt.Table(np.column_stack([table.x, np.zeros(len(table.x))]), table.y) for table in rows]
    federated, pooled = (run_on(given, parts) for parts in (pt.federate(wide), pt.federate(wide).pooled()))
    assert_same(federated, pooled, rtol=1e-5)
    at = np.linspace(-8, 4, 1201)
    scales, spread = np.exp(at), np.linalg.svd(x, full_matrices=False)
    log = stats.halfnorm.logpdf(scales) + at
    for size, along in zip(spread[1] ** 2, spread[0].T @ y, strict=True):
        log += stats.norm.logpdf(along, 0, np.sqrt(0.49 + size * scales**2))
    masses = np.exp(log - special.logsumexp(log))
    mean = masses @ at
    sd = np.sqrt(masses @ (at - mean) ** 2)
    q = federated.posterior.q
    assert abs(q.mean[3] - mean) < 0.1 * sd
    assert abs(q.sd[3] / sd - 1) < 0.1


def run_on(given, parts):
    return pt.run(SEQUENTIAL, pt.LinearRegression(0.7), given, parts, monitor=QUIET, tolerance=1e-12)


@pytest.mark.slow
def test_a_density_of_ones_own_on_a_grid():
    given = OutsidePrior(
        pt.LogDensity(
            lambda theta, row: jnp.sum(jax.scipy.stats.t.logpdf(theta, 3, 0, 2.5)),
            expectation=pt.expectations.GridQuadrature(40),
        ),
        WIDE.base,
    )
    # Gauss–Hermite over θ instead of the rule by name
    assert_same(run(given=given), rtol=1e-4)
