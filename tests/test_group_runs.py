"""Runs with effects of groups: fixed points are those of structured VI of all rows, and effects stay with clients."""

import functools
import json

import jax
import numpy as np
import pytest
from scipy import optimize

import partita as pt
from partita.families.factor import Factor
from partita.local.client import Visit, client_key, client_update
from partita.server.membership import join, retire
from support.groups import NESTED, PLAIN, SOLVER, cut
from support.problems import SCHEDULES, assert_product
from support.structured import structured

QUIET = pt.Monitor(progress=False)
SEQUENTIAL = pt.methods.sequential(SOLVER)


CASES = {"plain": PLAIN, "nested": NESTED}
BOTH = pytest.mark.parametrize("name", ["plain", pytest.param("nested", marks=pytest.mark.slow)])


def run(name, method=SEQUENTIAL, parts=None, **settings):
    model, prior, _, own = CASES[name]
    parts = own if parts is None and "engine" not in settings else parts
    return pt.run(method, model, prior, parts, monitor=QUIET, **{"tolerance": 1e-12} | settings)


@functools.cache
def reference(name):
    return run(name)


def assert_same(result, other, rtol=1e-6):
    # 1e-6 of a standard deviation: a run ends within 1e-12 nats, which are 1.4e-6 of them
    np.testing.assert_allclose(result.posterior.q.mean, other.posterior.q.mean, atol=3 * rtol)
    np.testing.assert_allclose(result.posterior.q.sd, other.posterior.q.sd, rtol=3 * rtol)
    np.testing.assert_allclose(result.free_energy, other.free_energy, atol=1e-8)


@BOTH
def test_the_fixed_point_is_the_optimum_of_structured_vi(name):
    free_energy, start, bounds = structured(CASES[name])
    value = jax.jit(jax.value_and_grad(lambda at: -free_energy(at)))
    found = optimize.minimize(
        lambda at: tuple(np.asarray(each) for each in value(at)),
        start,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 50},
    )
    result = reference(name)
    # what L-BFGS leaves
    np.testing.assert_allclose(result.free_energy, -found.fun, atol=1e-8)
    mean = result.posterior.q.mean
    np.testing.assert_allclose(mean, found.x[: len(mean)], atol=1e-4)
    assert result.status == pt.Status.CONVERGED
    assert_product(result.state)


ADAPTIVE = ["synchronous", "asynchronous"]
OTHERS = [pytest.param("plain", name, marks=pytest.mark.slow) for name in SCHEDULES if name != "synchronous"]
INSIDE = [pytest.param("nested", name, marks=pytest.mark.slow) for name in ADAPTIVE]


@pytest.mark.parametrize(("name", "schedule"), [("plain", "synchronous"), *OTHERS, *INSIDE])
def test_every_schedule_finds_it(name, schedule):
    chosen, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, chosen, pt.Adaptive() if schedule in ADAPTIVE else pt.Damped(0.5))
    result = run(name, method=method, engine=pt.LocalEngine(CASES[name].parts, speeds), rounds=300)
    assert_same(result, reference(name), rtol=1e-5)
    assert_product(result.state)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_rows_at_one_client_end_there(name):
    assert_same(run(name, parts=CASES[name].parts.pooled()), reference(name))


@BOTH
def test_clients_leave_and_come_back(name):
    rest, aggregation = CASES[name].parts.without("client 2"), SEQUENTIAL.aggregation
    gone = retire(reference(name).state, "client 2", aggregation)
    assert_same(run(name, state=gone, parts=rest), run(name, parts=rest))
    assert_same(run(name, state=join(gone, "client 2", aggregation)), reference(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bounds_judge_factors_as_those_of_any_client(name):
    # a group near its mean says that scales are small, without curvature: precision in s may be negative
    bounds = pt.Admission(deficit=10.0, dominance=1e6)
    result = run(name, rules=pt.Rules(admission=bounds))
    assert_same(result, reference(name))
    assert not result.history.refusals


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_from_a_file_to_the_bit(name, tmp_path):
    """Nothing of the conditionals is kept, so that nothing of them can be lost."""
    whole, path = run(name, rounds=3, tolerance=None), tmp_path / "run.npz"
    run(name, rounds=1, tolerance=None, store=pt.Checkpoint(path))
    resumed = run(name, rounds=3, tolerance=None, store=pt.Checkpoint(path))
    assert np.array_equal(resumed.posterior.q.mean, whole.posterior.q.mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_message_ledger_or_history_has_effects(name, tmp_path):
    """What leaves a client has as many numbers for a few groups as for many, and none of them is an effect's."""
    model, prior, table, parts = CASES[name]

    def said(parts):
        q, recipe = reference(name).posterior.q, SEQUENTIAL.recipe(model)
        one = parts.shards[0]
        return client_update(recipe, Visit(prior, q, Factor.of(prior.one()), one, 1 / 3, client_key(0, 0, 0)))

    few = np.broadcast_to(np.repeat(np.arange(3.0), 32).reshape(-1, *(1,) * (table.group.ndim - 1)), table.group.shape)
    sizes = [
        [np.shape(leaf) for leaf in jax.tree.leaves(said(each))] for each in (parts, cut(table._replace(group=few)))
    ]
    assert sizes[0] == sizes[1]
    ledger = pt.Ledger(tmp_path / "ledger")
    result = run(name, store=ledger)
    shard = parts.shards[0]
    best = model.expectation.conditionals(model, result.posterior.q, shard.data, shard.weights)
    # two outer groups or four inner ones at a client
    effects = np.concatenate([np.ravel(leaf[: 4 if level else 2]) for level, of in enumerate(best) for leaf in of])
    effects = effects[~np.isin(effects, [0, 0.95])]
    assert len(effects) > 8
    kept = [path.read_bytes() for path in tmp_path.iterdir()]
    told = json.dumps(result.history.rows, default=str).encode()
    sent = np.asarray(result.state.factors[0].natural.precision)[0, 0]
    assert any(np.float64(sent).tobytes() in text for text in kept)
    for number in effects:
        assert not any(np.float64(number).tobytes() in text for text in kept)
        assert f"{number:.6g}".encode() not in told
