"""Effects of groups: the bound at the best conditionals, its gradient, and what it is where all is Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import partita as pt
from partita.errors import InputError
from partita.expectations import LocalEffects
from partita.models import GroupEffects
from partita.tables.group_effects import responses
from support.groups import MODEL, PARTS, PRIOR, SOLVER, TABLE

KEY = jax.random.key(0)
ROWS = jax.tree.map(jnp.asarray, PARTS.shards[0])


@jax.jit
def bound(model, q, rows):
    return model.ell(q, rows.data, rows.weights, KEY)


@jax.jit
def gradient(model, q, rows):
    return q.natural_gradient(lambda at: model.ell(at, rows.data, rows.weights, KEY))


def shifted(rows, z=None):
    """Rows of a Gaussian response, by any numbers."""
    x, _, ones, group, offset = rows.data
    generator = np.random.default_rng(3)
    y = jnp.asarray(generator.normal(size=len(offset)))
    data = pt.data.GroupedTable(x, y, ones if z is None else z, group, jnp.asarray(generator.normal(size=len(offset))))
    return pt.data.shard.Shard(data, rows.weights, rows.rows)


def known_covariance(z, levels, covariances, noise=0.8):
    """cov(y | θ) of a linear model whose groups' effects have these covariances."""
    found, at = noise**2 * np.eye(len(z)), 0
    for groups, covariance in zip(levels, covariances, strict=True):
        own = z[:, at : at + len(covariance)]
        same = np.all(groups[:, None] == groups, axis=-1)
        found, at = found + same * (own @ covariance @ own.T), at + len(covariance)
    return found


@pytest.mark.slow
def test_the_gradient_is_that_of_the_best_conditionals_held_fixed():
    model = GroupEffects(pt.LogisticRegression(), expectation=LocalEffects(max_steps=300, tolerance=1e-18))
    q = PRIOR.from_mean_covariance(
        jnp.array([0.2, -0.1, -0.7]), jnp.array([[0.3, 0.05, 0.02], [0.05, 0.2, -0.04], [0.02, -0.04, 0.3]])
    )
    standard, found = q.standard(), gradient(model, q, ROWS)
    # natural gradient (b, P): the derivative in the covariance is −P/2, in the mean b − P m
    by_mean, by_variance = found.precision_mean - found.precision @ standard.mean, -found.precision / 2
    for way in range(3):
        step = 1e-4 * jnp.eye(3)[way]
        ends = [bound(model, q.with_standard(standard._replace(mean=standard.mean + s * step)), ROWS) for s in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, by_mean[way], rtol=1e-5)
        turn = jnp.outer(step, jnp.eye(3)[2]) + jnp.outer(jnp.eye(3)[2], step)
        wide = [standard._replace(variance=standard.variance + s * turn) for s in (1, -1)]
        ends = [bound(model, q.with_standard(each), ROWS) for each in wide]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, 2 * by_variance[way, 2], rtol=1e-5)


OUTER = np.asarray(ROWS.data.group) // 2
LINEAR = {
    "intercepts": ((1,), (0,), ()),
    "slopes": ((2,), (0, 1), ()),
    "groups in groups": ((1, 1), (0, 0), (OUTER,)),
    "slopes in groups": ((1, 2), (0, 0, 1), (OUTER,)),
    "slopes apart": ((1, 1), (0, 1), (np.asarray(ROWS.data.group),)),
    "three levels": ((1, 1, 1), (0, 0, 1), (OUTER, np.asarray(ROWS.data.group))),
}


NOT_QUICK = [pytest.param(name, marks=pytest.mark.slow) for name in LINEAR if name != "groups in groups"]


@pytest.mark.parametrize("name", ["groups in groups", *NOT_QUICK])
def test_a_linear_model_has_its_marginal_likelihood_and_schur_complement(name):
    """Given s, E_q log N(y; Xβ, V) with V = σ² + Σ_l Z_lΣ_lZ_lᵀ, and β's factor has the precision XᵀV⁻¹X."""
    effects, columns, outer = LINEAR[name]
    x = np.asarray(ROWS.data.x)
    groups = np.stack([*outer, np.asarray(ROWS.data.group)], axis=1)
    data = shifted(ROWS, jnp.asarray(x[:, list(columns)]))
    data = pt.data.shard.Shard(data.data._replace(group=jnp.asarray(groups)), data.weights, data.rows)
    model = GroupEffects(pt.LinearRegression(0.8), effects)
    parts = [np.array([0.3, -0.4, 0.6])[: size * (size + 1) // 2] - 0.2 * k for k, size in enumerate(effects)]
    s = np.concatenate(parts)
    theta, spread = np.concatenate([[0.5, -0.2], s]), np.diag([0.3, 0.2] + [1e-12] * len(s))
    q = pt.FullGaussian.from_mean_covariance(theta, spread)
    halves = []
    for size, own in zip(effects, parts, strict=True):
        tau = np.log1p(np.exp(own[:size]))
        root = np.eye(1) if size == 1 else np.array([[1, 0], [np.tanh(own[2]), np.sqrt(1 - np.tanh(own[2]) ** 2)]])
        halves.append(tau[:, None] * root)
    levels = [groups[:, : level + 1] for level in range(len(effects))]
    covariance = known_covariance(np.asarray(data.data.z), levels, [half @ half.T for half in halves])
    mean = x @ theta[:2] + np.asarray(data.data.offset)
    known = stats.multivariate_normal(mean, covariance).logpdf(np.asarray(data.data.y))
    precision = x.T @ np.linalg.solve(covariance, x)
    np.testing.assert_allclose(bound(model, q, data), known - np.sum(precision * spread[:2, :2]) / 2, atol=1e-8)
    # the gradient's error is the square root of the bound's, which is 1e-12 nats a group
    np.testing.assert_allclose(gradient(model, q, data).precision[:2, :2], precision, rtol=1e-4, atol=1e-4)


def test_the_bound_is_below_quadrature_and_near_it():
    q = PRIOR.from_mean_covariance(jnp.array([0.2, -0.1, -0.7]), 1e-8 * jnp.eye(3))
    x, y, _, group, _ = (np.asarray(leaf) for leaf in ROWS.data)
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    f = (x @ [0.2, -0.1])[:, None] + np.log1p(np.exp(-0.7)) * nodes
    each = -np.log1p(np.exp(np.where(y[:, None] > 0, -f, f)))
    sums = np.stack([each[group == g].sum(axis=0) for g in np.unique(group)])
    known = np.log(np.exp(sums) @ (masses / masses.sum())).sum()
    gap = known - bound(MODEL, q, ROWS)
    # four groups of eight rows, whose conditionals are nearly Gaussian
    assert 0 < gap < 0.01


@pytest.mark.slow
def test_rows_share_the_total():
    q, data = PRIOR, ROWS.data
    each = jax.jit(lambda q, data: MODEL.expectation.rows(MODEL, q, data, KEY))(q, data)
    np.testing.assert_allclose(jnp.sum(each), bound(MODEL, q, ROWS), rtol=1e-10)


def test_numbers_of_groups_and_order_of_rows_do_not_matter():
    order = np.random.default_rng(0).permutation(len(ROWS.weights))
    data = jax.tree.map(lambda leaf: leaf[order], ROWS.data)
    other = pt.data.shard.Shard(data._replace(group=7.5 - 3 * data.group), ROWS.weights, ROWS.rows)
    np.testing.assert_allclose(bound(MODEL, PRIOR, other), bound(MODEL, PRIOR, ROWS), rtol=1e-12)


def test_a_row_without_weight_says_nothing():
    data = ROWS.data._replace(y=ROWS.data.y.at[-8:].set(1.0))
    weights = ROWS.weights.at[-8:].set(0)
    one, other = (bound(MODEL, PRIOR, pt.data.shard.Shard(each, weights, ROWS.rows)) for each in (data, ROWS.data))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
def test_groups_whose_rows_have_no_weight_have_the_prior_and_are_predicted_as_new_ones(sizes):
    model, count = GroupEffects(pt.LogisticRegression(), sizes), 2 + sum(size * (size + 1) // 2 for size in sizes)
    half = 0.3 * np.random.default_rng(1).normal(size=(count, count))
    q = pt.FullGaussian.from_mean_covariance(np.full(count, -0.3), half @ half.T + 0.05 * np.eye(count))
    z = np.concatenate([np.ones((96, 2)), TABLE.x[:, 1:]], axis=1)[:, : sum(sizes)]
    table = TABLE._replace(z=z, group=np.stack([TABLE.group // 2, TABLE.group % 2], axis=1))
    # of three outer groups, each with two inner ones, one is without weight, and so is an inner one of the first
    weights = np.where((np.arange(48) < 8) | (np.arange(48) >= 32), 0.0, 1.0)
    parts = pt.federate([jax.tree.map(lambda leaf: leaf[:48], table)], weights=[weights])
    shard = jax.tree.map(jnp.asarray, parts.shards[0])
    best = jax.jit(model.expectation.conditionals)(model, q, shard.data, shard.weights)
    theta = q.sample(KEY, (20_000,))
    prior = np.sqrt(np.mean(model.scales(theta[:, 2:])[0] ** 2, axis=0))
    for branches, groups, effects in ((best[0], [2], slice(0, 1)), (best[1], [0, 4, 5], slice(1, None))):
        drawn = np.asarray(model.effects_drawn(q, branches, theta, jax.random.key(1)))[:, :6]
        sds = np.sqrt(np.mean(drawn[:, :, effects] ** 2, axis=0))
        np.testing.assert_allclose(sds[groups], np.broadcast_to(prior[effects], sds[groups].shape), rtol=0.03)
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[:48:8], float), table)
    inner = rows._replace(group=rows.group.at[0, 1].set(7))
    new = inner._replace(group=inner.group.at[4:, 0].set(9))
    told, known = responses(model, q, parts, rows), responses(model, q, parts, new)
    np.testing.assert_array_equal(told, known)
    apart = responses(model, q, parts, rows._replace(group=jnp.full((6, 2), 9.0)))
    np.testing.assert_array_equal(told[4:], apart[4:])
    assert np.all(told[:4] != apart[:4])


def test_a_new_group_is_averaged():
    theta = jnp.array([0.2, -0.1, 1.0])
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    f = np.asarray(TABLE.x[:3] @ theta[:2])[:, None] + np.log1p(np.e) * nodes
    known = (1 / (1 + np.exp(-f))) @ (masses / masses.sum())
    few = jax.tree.map(lambda leaf: jnp.asarray(leaf[:3], float), TABLE)
    np.testing.assert_allclose(MODEL.response_of(theta, few), known, rtol=1e-6)
    told = jax.vmap(lambda row: MODEL.log_density(theta, row))(few)
    np.testing.assert_allclose(jnp.exp(told), np.where(few.y > 0, known, 1 - known), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t._replace(z=np.ones((96, 2))), "z has shape"),
        (lambda t: t._replace(group=np.ones(3)), "one row|group has shape|rows"),
        (lambda t: t._replace(y=t.y + 2), "labels are 0 or 1"),
        (lambda t: pt.Table(t.x, t.y), "GroupedTable"),
    ],
)
def test_bad_rows_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        pt.LocalEngine(pt.federate([change(TABLE)])).check(pt.methods.sequential(SOLVER).recipe(MODEL), PRIOR)


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [
        pt.solvers.FixedPoint(batch_size=5, backtrack=False),
        pt.Gradient(batch_size=5),
        pt.solvers.LocalFixedPoint(),
        pt.solvers.MomentMatching(),
        pt.solvers.AlphaDivergence(),
        pt.solvers.PowerEP(),
        pt.Newton(),
    ],
)
def test_solvers_that_take_rows_apart_are_refused(solver):
    with pytest.raises(InputError, match=r"rows one by one|generalised linear|predictor"):
        pt.run(pt.methods.sequential(solver), MODEL, PRIOR, PARTS, rounds=1)


def test_what_goes_row_by_row_is_refused():
    with pytest.raises(InputError, match="LocalEffects"):
        GroupEffects(pt.LogisticRegression(), expectation=pt.expectations.GaussHermite())
    with pytest.raises(InputError, match="GeneralisedLinear"):
        GroupEffects(pt.models.GaussianMixture())
    with pytest.raises(InputError, match="θ has 2 elements"):
        bound(MODEL, pt.FullGaussian.standard_normal(2), ROWS)
