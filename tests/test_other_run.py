"""A store goes on with the run that it keeps, and with no other."""

import numpy as np
import pytest

import partita as pt
from support.problems import MODEL, PARTS, PRIOR, SOLVER, STOCHASTIC

SILENT = pt.Monitor(every=0)
METHOD = pt.methods.sequential(SOLVER)
STORES = {"checkpoint": pt.Checkpoint, "ledger": lambda path: pt.Ledger(path, durable=False)}
TURNED = pt.Partition(
    tuple(pt.data.Shard(pt.Table(shard.data.x, 1 - shard.data.y), shard.weights, shard.rows) for shard in PARTS.shards),
    PARTS.names,
    PARTS.sizes,
)


DENSITIES = [
    pt.LogDensity(lambda theta, row: -0.5 * (row.y - row.x @ theta) ** 2),
    pt.LogDensity(lambda theta, row: -0.5 * (row.y + row.x @ theta) ** 2),
]


def run(store, method=METHOD, model=MODEL, parts=PARTS, **settings):
    return pt.run(method, model, PRIOR, parts, store=store, monitor=SILENT, **{"rounds": 2} | settings)


@pytest.fixture(params=STORES)
def path(request, tmp_path):
    return lambda: STORES[request.param](tmp_path / "run")


OTHER = {
    "another method": {"method": pt.methods.synchronous(SOLVER)},
    "another method, damped": {"method": pt.methods.sequential(SOLVER, damping=0.5)},
    "another method, other solver": {"method": pt.methods.sequential(STOCHASTIC)},
    "another model": {"model": pt.models.ProbitRegression()},
    "other rows of client 0": {"parts": TURNED},
}


@pytest.mark.parametrize("other", OTHER)
def test_a_store_of_another_run_is_refused_with_the_remedy(path, other):
    kept = run(path())
    with pytest.raises(pt.errors.DamagedFileError, match=rf"run with {other.split(',')[0]}: .*state="):
        run(path(), **OTHER[other])
    np.testing.assert_array_equal(run(path()).posterior.mean, kept.posterior.mean)


def test_labels_turned_around_turn_the_posterior_around(path, tmp_path):
    """It was the old one, of the same sign."""
    kept = run(path(), rounds=20)
    with pytest.raises(pt.InputError, match="other rows of client 0"):
        run(path(), parts=TURNED, rounds=20)
    fresh = run(STORES["checkpoint"](tmp_path / "new"), parts=TURNED, rounds=20)
    np.testing.assert_allclose(fresh.posterior.mean, -kept.posterior.mean, atol=1e-3)


def test_a_function_with_another_body_is_another_model(path):
    run(path(), pt.methods.sequential(STOCHASTIC), DENSITIES[0], rounds=1)
    with pytest.raises(pt.InputError, match="another model"):
        run(path(), pt.methods.sequential(STOCHASTIC), DENSITIES[1], rounds=1)


def test_more_rounds_another_tolerance_and_another_monitor_go_on(path):
    run(path())
    seen = []
    monitor = pt.Monitor(every=1, callbacks=(lambda state, row: seen.append(row),))
    more = pt.run(METHOD, MODEL, PRIOR, PARTS, store=path(), rounds=20, tolerance=1e-9, monitor=monitor)
    assert more.status is pt.Status.CONVERGED
    assert seen


def test_a_client_that_joins_does_not_make_it_another_run(tmp_path):
    """Its rows may change how those of others are padded."""
    long = pt.Table(np.ones((77, 3)), np.ones(77))
    tables = [pt.Table(shard.data.x, shard.data.y) for shard in PARTS.shards]

    def ledger():
        return pt.Ledger(tmp_path / "run", durable=False)

    run(ledger())
    more = run(ledger(), parts=pt.federate([*tables, long], names=[*PARTS.names, "late"], buckets=1), rounds=4)
    assert more.state.names == (*PARTS.names, "late")


def test_another_run_is_adopted_explicitly(path, tmp_path):
    kept = run(path())
    adopted = run(STORES["checkpoint"](tmp_path / "new"), parts=TURNED, state=kept.state, rounds=30)
    fresh = run(None, parts=TURNED, rounds=30)
    np.testing.assert_allclose(adopted.posterior.mean, fresh.posterior.mean, atol=1e-3)
