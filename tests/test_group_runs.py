"""Runs with effects of groups: fixed points are those of structured VI of all rows, and effects stay with clients."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import partita as pt
from partita.families.factor import Factor
from partita.local.client import Visit, client_key, client_update
from partita.server.membership import join, retire
from support.groups import MODEL, PARTS, PRIOR, SOLVER, TABLE, cut
from support.problems import SCHEDULES, assert_product

QUIET = pt.Monitor(progress=False)
SEQUENTIAL = pt.methods.sequential(SOLVER)


def run(method=SEQUENTIAL, parts=PARTS, **settings):
    return pt.run(method, MODEL, PRIOR, parts, monitor=QUIET, **{"tolerance": 1e-12} | settings)


@functools.cache
def reference():
    return run()


def assert_same(result, rtol=1e-6, other=None):
    # 1e-6 of a standard deviation: a run ends within 1e-12 nats, which are 1.4e-6 of them
    other = reference() if other is None else other
    np.testing.assert_allclose(result.posterior.q.mean, other.posterior.q.mean, atol=3 * rtol)
    np.testing.assert_allclose(result.posterior.q.sd, other.posterior.q.sd, rtol=3 * rtol)
    np.testing.assert_allclose(result.free_energy, other.free_energy, atol=1e-8)


def structured(parameters):
    """The free energy of q(θ) and conditionals of all groups, with nothing of the package's: each group's (θ, u) is one
    Gaussian of four numbers, conditioned on s by its covariance matrix."""
    groups = len(np.unique(TABLE.group))
    shapes = [3, 6, groups, 3 * groups, groups, groups]
    mean, lower, at, slope, log_variance, power = jnp.split(parameters, np.cumsum(shapes)[:-1])
    slope = slope.reshape(groups, 3)
    root = jnp.zeros((3, 3)).at[jnp.tril_indices(3)].set(lower)
    root = jnp.tril(root, -1) + jnp.diag(jnp.exp(jnp.diagonal(root)))
    covariance = root @ root.T
    nodes, masses = np.polynomial.hermite_e.hermegauss(12)
    inner, inner_masses = np.polynomial.hermite_e.hermegauss(20)
    masses, inner_masses = masses / masses.sum(), inner_masses / inner_masses.sum()
    x, y = (np.asarray(each).reshape(groups, -1, *np.shape(each)[1:]) for each in (TABLE.x, TABLE.y))

    def group(at, slope, log_variance, power, x, y):
        across = covariance @ slope
        variance = jnp.exp(log_variance)
        whole = jnp.block([[covariance, across[:, None]], [across[None], (variance + slope @ across)[None, None]]])
        middle = jnp.append(mean, at)
        left = whole - jnp.outer(whole[2], whole[2]) / whole[2, 2]

        def given(node):
            s = mean[2] + jnp.sqrt(whole[2, 2]) * node
            tau = jnp.log1p(jnp.exp(s))
            here = middle + whole[2] / jnp.sqrt(whole[2, 2]) * node
            way = jnp.concatenate([x, jnp.zeros((len(x), 1)), jnp.full((len(x), 1), tau**power)], axis=1)
            spread = jnp.sqrt(jnp.sum((way @ left) * way, axis=1))
            f = (way @ here)[:, None] + spread[:, None] * inner
            told = jnp.sum((y[:, None] * f - jnp.logaddexp(0, f)) @ inner_masses)
            width = tau ** (2 - 2 * power)
            return told - (here[3] ** 2 + left[3, 3]) / (2 * width) - jnp.log(2 * jnp.pi * width) / 2

        return masses @ jax.vmap(given)(jnp.asarray(nodes)) + (1 + jnp.log(2 * jnp.pi) + log_variance) / 2

    told = jnp.sum(jax.vmap(group)(at, slope, log_variance, power, jnp.asarray(x), jnp.asarray(y)))
    prior = jnp.diag(jnp.array([4.0, 4.0, 1.0]))
    away = mean - jnp.array([0.0, 0.0, -0.5])
    log_ratio = jnp.sum(jnp.log(jnp.diagonal(prior))) - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
    trace = jnp.trace(jnp.linalg.solve(prior, covariance))
    return told - (trace + away @ jnp.linalg.solve(prior, away) - 3 + log_ratio) / 2


def test_the_fixed_point_is_the_optimum_of_structured_vi():
    groups = len(np.unique(TABLE.group))
    value = jax.jit(jax.value_and_grad(lambda at: -structured(at)))
    start = np.concatenate([[0, 0, -0.5], [-0.5, 0, -0.5, 0, 0, -0.5], np.zeros(5 * groups), np.full(groups, 0.5)])
    bounds = [(None, None)] * (9 + 5 * groups) + [(0, 0.95)] * groups
    found = optimize.minimize(
        lambda at: tuple(np.asarray(each) for each in value(at)),
        start,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 50},
    )
    result = reference()
    # what L-BFGS leaves
    np.testing.assert_allclose(result.free_energy, -found.fun, atol=1e-8)
    np.testing.assert_allclose(result.posterior.q.mean, found.x[:3], atol=1e-4)
    assert result.status == pt.Status.CONVERGED
    assert_product(result.state)


ADAPTIVE = ["synchronous", "asynchronous"]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "synchronous"]


@pytest.mark.parametrize("schedule", ["synchronous", *OTHERS])
def test_every_schedule_finds_it(schedule):
    chosen, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, chosen, pt.Adaptive() if schedule in ADAPTIVE else pt.Damped(0.5))
    result = run(method, parts=None, engine=pt.LocalEngine(PARTS, speeds), rounds=300)
    assert_same(result, rtol=1e-5)
    assert_product(result.state)


@pytest.mark.slow
def test_all_rows_at_one_client_end_there():
    assert_same(run(parts=PARTS.pooled()))


def test_clients_leave_and_come_back():
    rest, aggregation = PARTS.without("client 2"), SEQUENTIAL.aggregation
    gone = retire(reference().state, "client 2", aggregation)
    assert_same(run(state=gone, parts=rest), other=run(parts=rest))
    assert_same(run(state=join(gone, "client 2", aggregation)))


@pytest.mark.slow
def test_bounds_judge_factors_as_those_of_any_client():
    # a group near its mean says that scales are small, without curvature: precision in s may be negative
    bounds = pt.Admission(deficit=10.0, dominance=1e6)
    result = run(rules=pt.Rules(admission=bounds))
    assert_same(result)
    assert not result.history.refusals


@pytest.mark.slow
def test_a_run_goes_on_from_a_file_to_the_bit(tmp_path):
    """Nothing of the conditionals is kept, so that nothing of them can be lost."""
    whole, path = run(rounds=3, tolerance=None), tmp_path / "run.npz"
    run(rounds=1, tolerance=None, store=pt.Checkpoint(path))
    resumed = run(rounds=3, tolerance=None, store=pt.Checkpoint(path))
    assert np.array_equal(resumed.posterior.q.mean, whole.posterior.q.mean)


@pytest.mark.slow
def test_no_message_ledger_or_history_has_effects(tmp_path):
    """What leaves a client has as many numbers for three groups as for twelve, and none of them is an effect's."""

    def said(parts):
        q, recipe = reference().posterior.q, SEQUENTIAL.recipe(MODEL)
        one = parts.shards[0]
        return client_update(recipe, Visit(PRIOR, q, Factor.of(PRIOR.one()), one, 1 / 3, client_key(0, 0, 0)))

    few = cut(pt.data.GroupedTable(*(leaf[:96] for leaf in TABLE._replace(group=np.repeat(np.arange(3), 32)))))
    sizes = [[np.shape(leaf) for leaf in jax.tree.leaves(said(parts))] for parts in (PARTS, few)]
    assert sizes[0] == sizes[1]
    ledger = pt.Ledger(tmp_path / "ledger")
    result = run(store=ledger)
    shard = PARTS.shards[0]
    best = MODEL.expectation.conditionals(MODEL, result.posterior.q, shard.data, shard.weights)
    effects = np.concatenate([np.ravel(leaf[:4]) for leaf in best])
    effects = effects[~np.isin(effects, [0, 0.95])]
    assert len(effects) > 16
    kept = [path.read_bytes() for path in tmp_path.iterdir()]
    told = json.dumps(result.history.rows, default=str).encode()
    sent = np.asarray(result.state.factors[0].natural.precision)[0, 0]
    assert any(np.float64(sent).tobytes() in text for text in kept)
    for number in effects:
        assert not any(np.float64(number).tobytes() in text for text in kept)
        assert f"{number:.6g}".encode() not in told
