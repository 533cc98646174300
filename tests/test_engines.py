"""Where do clients run?"""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import partita as pt
from partita.engines import LocalEngine, Task, local
from partita.engines.endpoint import BINDING, ClientEndpoint, _named
from partita.engines.remote import RemoteEngine
from partita.families.factor import Factor
from partita.io.digest import digest
from partita.io.wire import Message
from partita.local.client import client_key
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SCHEDULES, SOLVER, STOCHASTIC, faulty, not_finite
from support.steps import step
from support.weather import FaultyLink


@pytest.mark.parametrize("schedule", ["synchronous", "subset", "asynchronous"])
def test_numbers_do_not_depend_on_the_number_of_threads(schedule):
    turns, speeds = SCHEDULES[schedule]
    method, ends = pt.Method(STOCHASTIC, turns, pt.Damped(0.5)), []
    for threads in (1, 2):
        engine, state = LocalEngine(PARTS, speeds, threads), init(PRIOR, 3)
        for _ in range(6):
            state, _ = step(method, MODEL, engine, state)
        ends.append((state, engine.ell(state.posterior, jax.random.key(0))))
    (one, ell_one), (two, ell_two) = ends
    assert ell_one == ell_two
    assert all(eqx.tree_equal(value, vars(two)[name]) for name, value in vars(one).items())
    assert not eqx.tree_equal(one.posterior, PRIOR)


def tasks(clients, sent=0.0):
    """A task for each of these clients, in the first turn."""
    factor = Factor.one(PRIOR)
    return [
        Task(f"0.{k}", k, PARTS.names[k], PRIOR, PRIOR, factor, version=0, seed=0, updates=0, sent=sent, hyper={})
        for k in clients
    ]


def test_blas_has_one_thread_until_the_last_of_several_runs_has_ended():
    def threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        first, second = LocalEngine(PARTS).running(), LocalEngine(PARTS).running()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}


def test_answers_are_ordered_by_arrival_and_then_by_client():
    engine, recipe = LocalEngine(PARTS, (1.0, 2.0, 2.0)), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    engine.bind(recipe, PRIOR)
    for task in tasks((2, 0, 1), sent=0.25):
        engine.submit(task)
    assert [(answer.task, answer.time) for answer in iter(engine.next, None)] == [
        ("0.1", 0.75),
        ("0.2", 0.75),
        ("0.0", 1.25),
    ]


def test_a_task_in_flight_is_not_submitted_twice():
    engine, recipe = LocalEngine(PARTS), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    engine.bind(recipe, PRIOR)
    for task in tasks((0, 1, 0)):
        engine.submit(task)
    assert [answer.task for answer in iter(engine.next, None)] == ["0.0", "0.1"]


def test_no_answer_arrives_before_its_simulated_time():
    engine, recipe = LocalEngine(PARTS), pt.methods.asynchronous(STOCHASTIC).recipe(MODEL)
    engine.bind(recipe, PRIOR)
    engine.submit(*tasks((0,)))
    assert engine.next(0.75) is None
    assert engine.now() == 0.75
    assert engine.next(0.75).time == engine.now() == 1.0
    assert engine.next(0.5) is None
    assert engine.now() == 1.5


def test_a_random_key_is_a_function_of_seed_client_and_version():
    keys = [client_key(s, k, v) for s in range(3) for k in range(3) for v in range(3)]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == 27
    assert eqx.tree_equal(client_key(1, 2, 0), client_key(1, 2, 0))


def test_a_retry_repeats_the_answer_and_another_seed_does_not(monkeypatch):
    method = pt.methods.synchronous(STOCHASTIC, damping=1 / 3)
    engine, state = LocalEngine(PARTS), init(PRIOR, 3)
    with monkeypatch.context() as patch:
        patch.setattr(local, "client_update", faulty(not_finite))
        refused, _ = step(method, MODEL, engine, state)
    assert refused.versions.tolist() == [1, 0, 1]
    # client 1 is asked again with the same posterior
    again = dataclasses.replace(refused, posterior=state.posterior)
    first, retry = (step(method, MODEL, engine, s)[1].replies for s in (state, again))
    assert eqx.tree_equal(first[1], retry[1])
    assert not eqx.tree_equal(first[0], retry[0])
    other = step(method, MODEL, engine, init(PRIOR, 3, seed=1))[1].replies
    assert not eqx.tree_equal(first[1], other[1])


def test_the_sum_of_the_clients_expectations_is_that_of_all_rows():
    together, apart = (LocalEngine(parts) for parts in (PARTS.pooled(), PARTS))
    for engine in (together, apart):
        engine.bind(pt.methods.sequential(SOLVER).recipe(MODEL), PRIOR)
    # sixty terms of order one
    key = jax.random.key(0)
    assert apart.ell(PRIOR, key) == pytest.approx(together.ell(PRIOR, key), rel=1e-14)


def linked(recipes, prior=PRIOR):
    """Clients of PARTS behind a link, each of whom was given one of these recipes, and their engine."""
    named = zip(PARTS.names, recipes, PARTS.shards, strict=True)
    link = FaultyLink({name: ClientEndpoint(name, recipe, prior, shard) for name, recipe, shard in named})
    return RemoteEngine(link, dict(zip(PARTS.names, PARTS.sizes, strict=True)))


LINEAR = [pt.LinearRegression(1.0), pt.LinearRegression(5.0)]
CONJUGATE = pt.methods.sequential(pt.Conjugate())


@pytest.mark.parametrize(
    ("there", "prior"),
    [
        (CONJUGATE.recipe(LINEAR[0]), PRIOR),
        (pt.methods.sequential(pt.solvers.FixedPoint()).recipe(LINEAR[1]), PRIOR),
        (dataclasses.replace(CONJUGATE, temperature=0.5).recipe(LINEAR[1]), PRIOR),
        (pt.methods.vcl(pt.Conjugate()).recipe(LINEAR[1]), PRIOR),
        (CONJUGATE.recipe(LINEAR[1]), pt.MeanFieldGaussian.standard_normal(3, 2.0)),
        (CONJUGATE.recipe(LINEAR[1]), jax.tree.map(lambda leaf: leaf.astype("float32"), PRIOR)),
    ],
    ids=["noise", "solver", "temperature", "context", "prior", "precision"],
)
def test_clients_with_another_configuration_than_the_server_refuse_tasks(there, prior, caplog):
    """Otherwise a run with noise 5 and clients with noise 1 would end converged, at another posterior."""
    engine = linked([there] * 3, prior)
    with pytest.raises(pt.InputError, match="client 0 has another method, model, prior or precision"):
        pt.run(CONJUGATE, LINEAR[1], PRIOR, engine=engine, rounds=5, monitor=Monitor(every=0))
    assert "client 0 has another method" in caplog.text


def test_a_client_with_another_configuration_is_excluded_and_named(caplog):
    right, wrong = (CONJUGATE.recipe(model) for model in LINEAR)
    method, rules = pt.methods.synchronous(pt.Conjugate(), damping=1.0), Rules(quorum=0.5, deadline=60.0)
    result = pt.run(
        method, LINEAR[0], PRIOR, engine=linked([right, right, wrong]), rounds=3, rules=rules, monitor=Monitor(every=0)
    )
    with pytest.raises(pt.InputError, match="Every client has another"):
        pt.run(method, LINEAR[0], PRIOR, engine=linked([wrong] * 3), rounds=3, rules=rules, monitor=Monitor(every=0))
    assert "client 2 has another method" in caplog.text
    assert all("another method" in row["unanswered"]["client 2"] for row in result.history)
    assert not np.any(result.state.factors[2].natural.precision)
    same = linked([right] * 3)
    found = pt.run(CONJUGATE, LINEAR[0], PRIOR, engine=same, monitor=Monitor(every=0))
    assert found.status is pt.Status.CONVERGED


def test_a_digest_depends_on_values_and_not_on_their_representation():
    """Numbers are the same whole or not, arrays count with their type, and functions with what they close over."""

    def scaled(by):
        return lambda theta, row: by * row

    assert digest(pt.LinearRegression(1)) == digest(pt.LinearRegression(1.0))
    assert digest(pt.LogDensity(scaled(1.0))) == digest(pt.LogDensity(scaled(1.0)))
    different = [
        pt.LinearRegression(1.0),
        pt.LinearRegression(2.0),
        pt.LogisticRegression(),
        pt.LogDensity(scaled(1.0)),
        pt.LogDensity(scaled(2.0)),
        pt.Gradient(optax.adam),
        pt.Gradient(optax.sgd),
        PRIOR,
        jax.tree.map(lambda leaf: leaf.astype("float32"), PRIOR),
        pt.FullGaussian.standard_normal(3),
    ]
    different += [{"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}, jax.random.key(0), jax.random.key(1)]
    different += [pt.LogDensity(jax.jit(scaled(3.0))), pt.LogDensity(jax.jit(scaled(4.0)))]
    assert len({digest(thing) for thing in different}) == len(different)
    assert digest({"x", "y", "z"}) == digest({"z", "x", "y"})

    def unfinished():
        return later

    assert digest(unfinished)


def test_error_replies_do_not_reveal_values_of_rows(caplog):
    def refuse(theta, row):
        raise pt.InputError("row 7 holds the value 123.456")

    recipe = pt.Method(pt.solvers.FixedPoint()).recipe(pt.LogDensity(refuse))
    end = ClientEndpoint("client 0", recipe, PRIOR, PARTS.shards[0])
    message = Message({"kind": "ell", "task": "a", "key": [0, 0], BINDING: end.binding}, _named("q", PRIOR))
    answer = end.handle(message)
    assert answer.header["kind"] == "error"
    assert "123.456" not in str(answer.header)
    assert "123.456" in caplog.text
