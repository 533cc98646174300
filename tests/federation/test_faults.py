"""Crashes, loss, repetition, delay and reordering: after each, nothing is lost and nothing counted twice."""

import contextlib
import dataclasses
import functools
import operator

import numpy as np
import pytest

import partita as pt
from federation.weather import Fragile, Fuse, Killed, Weather
from partita.engines import LocalEngine
from partita.engines.remote import RemoteEngine
from partita.engines.site import Site
from partita.federation.ledger import Ledger
from partita.server import Rules, dispatch, init, receive

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
PARTS = pt.split(pt.Table(X, X @ [1.0, -2.0] + GENERATOR.normal(size=40)), pt.splits.equal_random(40, 3))
MODEL, PRIOR = pt.LinearRegression(), pt.FullGaussian.standard_normal(2)
METHODS = {
    "sequential": pt.methods.sequential(pt.Conjugate()),
    "random": pt.methods.sequential(pt.Conjugate(), "random"),
    "residual": pt.methods.sequential(pt.Conjugate(), "residual"),
    "synchronous": pt.methods.synchronous(pt.Conjugate(), damping=1.0),
    "subset": pt.Method(pt.Conjugate(), pt.RandomSubset(2), pt.Damped(1.0)),
    "asynchronous": pt.methods.asynchronous(pt.Conjugate(), damping=1.0),
}
EXACT = np.linalg.inv(np.eye(2) + X.T @ X)


def sites(method):
    return {
        name: Site(name, method.recipe(MODEL), PRIOR, shard)
        for name, shard in zip(PARTS.names, PARTS.shards, strict=True)
    }


def serve(method, link, ledger, **rules):
    """One life of a server."""
    rows = dict(zip(PARTS.names, PARTS.sizes, strict=True))
    engine = RemoteEngine(link, PRIOR, rows, ledger)
    limits = Rules(**{"deadline": 10.0, "quorum": 0.5, "until": 5000.0} | rules)
    return pt.run(
        method,
        MODEL,
        PRIOR,
        engine=engine,
        journal=ledger,
        rules=limits,
        evaluate_every=0,
        tolerance=1e-12,
        progress=False,
    )


def assert_product(state):
    """`q == prior · Π factors`, to the rounding of sums of a few numbers below a hundred."""
    product = PRIOR * functools.reduce(operator.mul, (factor.natural for factor in state.factors))
    np.testing.assert_allclose(state.posterior.precision, product.precision, atol=1e-12)
    np.testing.assert_allclose(state.posterior.precision_mean, product.precision_mean, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_in_fair_weather_it_is_the_run_in_one_process(name, tmp_path):
    method = METHODS[name]
    there = serve(method, Weather(sites(method)), Ledger(tmp_path / "ledger"))
    here = pt.run(method, MODEL, PRIOR, PARTS, evaluate_every=0, tolerance=1e-12)
    np.testing.assert_allclose(there.posterior.q.precision, here.posterior.q.precision, rtol=1e-14)
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-12)
    assert there.status is here.status is pt.Status.CONVERGED


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("group", [0, *(pytest.param(group, marks=pytest.mark.slow) for group in range(1, 8))])
def test_random_weather_changes_nothing_in_the_end(name, group, tmp_path):
    """Twenty-one random schedules a case, with clients and a server that crash: 126, and 1,008 with the slow ones."""
    method, there = METHODS[name], sites(METHODS[name])
    for index in range(21):
        generator = np.random.default_rng([group, index])
        loss, repeat, crash = generator.random(3) * [0.4, 0.4, 0.2]
        link = Weather(there, [group, index], loss, repeat, generator.exponential(5.0), crash)
        link.calm = 1000.0
        path = tmp_path / f"{index}"
        result = None
        while result is None:
            link.fuse = Fuse(generator.integers(1, 60) if link.time < link.calm else np.inf)
            with contextlib.suppress(Killed):
                result = serve(method, link, Fragile(path, link.fuse))
        assert_product(result.state)
        assert result.status is pt.Status.CONVERGED, result.message
        np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-10)
        assert len(result.history) == len({row["step"] for row in result.history})


@pytest.mark.parametrize("name", METHODS)
def test_a_server_killed_at_any_operation_goes_on_to_the_same_end(name, tmp_path):
    method, there = METHODS[name], sites(METHODS[name])
    link = Weather(there)
    undisturbed = serve(method, link, Fragile(tmp_path / "undisturbed", link.fuse))
    for operations in range(link.fuse.burnt):
        path = tmp_path / f"{operations}"
        link = Weather(there, fuse=Fuse(operations))
        with pytest.raises(Killed):
            serve(method, link, Fragile(path, link.fuse))
        link.fuse = Fuse()
        result = serve(method, link, Fragile(path, link.fuse))
        assert_product(result.state)
        # answers that were under way may come in another order
        np.testing.assert_allclose(result.posterior.q.precision, undisturbed.posterior.q.precision, rtol=1e-13)
        assert name == "asynchronous" or result.state.answers == undisturbed.state.answers


def test_a_client_whose_answer_waits_is_not_asked_again():
    """After a restart between an asynchronous answer's arrival and its being taken in, it must not count twice."""
    method = METHODS["asynchronous"]
    state = dispatch(method, init(PRIOR, PARTS.names), np.zeros(3, bool))
    engine = LocalEngine(PARTS)
    for task in state.in_flight:
        engine.submit(task, method.recipe(MODEL))
    state = receive(state, engine.next())
    again = dispatch(method, state, np.zeros(3, bool))
    assert [task.client for task, _ in again.arrived] == [0]
    assert [task.client for task in again.in_flight] == [1, 2]


def test_an_answer_to_another_version_of_the_factor_changes_nothing():
    method = METHODS["synchronous"]
    state = dispatch(method, init(PRIOR, PARTS.names), np.zeros(3, bool))
    engine = LocalEngine(PARTS)
    engine.submit(state.in_flight[0], method.recipe(MODEL))
    moved = dataclasses.replace(state, versions=(1, 0, 0))
    assert receive(moved, engine.next()).arrived == ()


def test_when_the_time_is_up_answers_are_left_for_another_time(tmp_path):
    method = METHODS["synchronous"]
    link = Weather(sites(method))
    link.down["client 1"] = 100.0
    link.bounce = 0.0
    first = serve(method, link, Ledger(tmp_path / "ledger"), until=50.0, quorum=1.0)
    assert first.status is pt.Status.TIMED_OUT
    assert (first.state.answers, len(first.state.arrived), len(first.state.in_flight)) == (0, 2, 1)
    again = serve(method, link, Ledger(tmp_path / "ledger"), quorum=1.0)
    assert again.status is pt.Status.CONVERGED
    np.testing.assert_allclose(np.linalg.inv(again.posterior.q.precision), EXACT, rtol=1e-10)


def test_a_round_goes_on_without_those_who_do_not_answer_once_the_quorum_is_there(tmp_path):
    method = METHODS["synchronous"]
    link = Weather(sites(method))
    link.down["client 1"] = 25.0
    link.bounce = 0.0
    result = serve(method, link, Ledger(tmp_path / "ledger"))
    assert result.history.rows[0]["unanswered"] == {"client 1": "did not answer in time"}
    assert result.history.rows[0]["clients"] == ["client 0", "client 2"]
    assert result.status is pt.Status.CONVERGED
    np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-10)


def test_a_step_writes_the_factor_of_nobody_but_who_answered(tmp_path):
    method, ledger, written = METHODS["sequential"], Ledger(tmp_path / "ledger"), []
    ledger._db.set_trace_callback(lambda statement: written.append(statement.split(",")[0]))
    result = serve(method, Weather(sites(method)), ledger)
    factors = [statement for statement in written if "INTO factors" in statement]
    assert factors == [f"INSERT OR REPLACE INTO factors VALUES ({k % 3}" for k in range(3 + result.state.answers)]
