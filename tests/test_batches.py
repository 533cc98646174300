"""Many clients answered by one program: the same answers as one by one, whatever steps each of them takes."""

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.engines.base import Tasks
from partita.expectations import MonteCarlo
from partita.local import batch
from partita.server.state import init
from partita.server.step import dispatch

CLIENTS, COLUMNS = 9, 3
GENERATOR = np.random.default_rng(5)
PRIOR = pt.FullGaussian.standard_normal(COLUMNS)
SOLVERS = {
    "newton": (pt.Newton(tolerance=1e-9), pt.LogisticRegression()),
    "by draws": (pt.solvers.Gradient(max_steps=30), pt.LogisticRegression(MonteCarlo(4))),
}


def parts():
    """Clients of two lengths, with ever larger inputs, which take a solver ever more steps."""
    sizes = [4, 7] * (CLIENTS // 2) + [7]
    tables = [GENERATOR.normal(size=(size, COLUMNS)) * 1.3**k for k, size in enumerate(sizes)]
    return pt.federate([pt.Table(x, (x[:, 0] > 0).astype(float)) for x in tables])


def answers(partition, solver, model, together):
    """The replies to the first tasks of a synchronous run."""
    engine = LocalEngine(partition, together=together)
    method = pt.methods.synchronous(solver)
    engine.bind(method.recipe(model), PRIOR)
    state = dispatch(method, init(PRIOR, CLIENTS, seed=3), np.zeros(CLIENTS, bool))
    with engine.running():
        engine.submit_all(state.in_flight)
        found = {task.client: engine.next().reply for task in state.in_flight}
    return [found[k] for k in range(CLIENTS)]


@pytest.mark.parametrize("solver", ["newton", pytest.param("by draws", marks=pytest.mark.slow)])
def test_answers_in_batches_equal_those_one_by_one(solver, monkeypatch):
    monkeypatch.setattr(batch, "SIZE", 4)
    partition, (solver, model) = parts(), SOLVERS[solver]
    alone, together = (answers(partition, solver, model, number) for number in (0, 2))
    for one, other in zip(alone, together, strict=True):
        # rounding of sums over rows, carried through some dozen steps
        for found, expected in zip(jax.tree.leaves(other.delta), jax.tree.leaves(one.delta), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
        for name in ("steps", "outcome", "finite"):
            assert getattr(other.info, name) == getattr(one.info, name)
        np.testing.assert_allclose(other.info.ell, one.info.ell, rtol=1e-12)
    assert len({int(reply.info.steps) for reply in alone}) > 1 or solver.max_steps == 30


def test_expected_log_likelihoods_are_those_one_by_one():
    partition, (solver, model) = parts(), SOLVERS["newton"]
    found = []
    for together in (0, 2):
        engine = LocalEngine(partition, together=together)
        engine.bind(pt.methods.synchronous(solver).recipe(model), PRIOR)
        key, without = jax.random.key(0), (partition.names[2],)
        found.append((engine.ell(PRIOR, key, without), float(engine.estimate(PRIOR, key, without).value)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-13)


def test_few_clients_are_answered_one_by_one():
    engine = LocalEngine(parts())
    shape = ((7, COLUMNS), (7,), (7,), ())
    assert not engine._are_answered_together(shape, 63, PRIOR)
    assert engine._are_answered_together(shape, 64, PRIOR)
    assert not engine._are_answered_together(((2000, COLUMNS), (2000,)), 10_000, PRIOR)


def test_tasks_are_a_value_in_the_order_of_clients():
    method = pt.methods.synchronous()
    state = init(PRIOR, 200)
    every = dispatch(method, state, np.zeros(200, bool)).in_flight
    fewer = every.without([7, 150])
    assert (len(every), len(fewer)) == (200, 198)
    assert [task.client for task in every] == list(range(200))
    assert fewer.clients().tolist() == [k for k in range(200) if k not in (7, 150)]
    assert [(then.client, now) for then, now in fewer.changed_since(every)] == [(7, None), (150, None)]
    assert fewer.of(7) is None
    again = fewer.added([every.of(150), every.of(7)])
    assert list(again) == list(every)
    assert not Tasks()
