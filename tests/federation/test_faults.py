"""Crashes, loss, repetition, delay and reordering: after each, nothing is lost and nothing counted twice."""

import contextlib
import dataclasses
import heapq

import numpy as np
import pytest

import partita as pt
from partita.engines import LocalEngine
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import RemoteEngine
from partita.io.wire import unpack
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.state import init
from partita.server.step import LEFT_OUT, dispatch, receive
from partita.storage.ledger import Ledger
from support.remote_runs import EXACT, METHODS, MODEL, PARTS, PRIOR, assert_product, endpoints, serve
from support.weather import CrashAfter, CrashingLedger, FaultyLink, ServerKilled


@pytest.mark.parametrize("name", METHODS)
def test_without_network_faults_a_run_equals_that_in_one_process(name, tmp_path):
    method = METHODS[name]
    there = serve(method, FaultyLink(endpoints(method)), Ledger(tmp_path / "ledger"))
    here = pt.run(method, MODEL, PRIOR, PARTS, tolerance=1e-12, monitor=Monitor(every=0))
    np.testing.assert_allclose(there.posterior.q.precision, here.posterior.q.precision, rtol=1e-14)
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-12)
    assert there.status is here.status is pt.Status.CONVERGED


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("group", [0, *(pytest.param(group, marks=pytest.mark.slow) for group in range(1, 8))])
def test_random_network_faults_and_crashes_do_not_change_the_final_posterior(name, group, tmp_path):
    """Twenty-one random schedules a case, with clients and a server that crash: 1,008 in all, 126 by default."""
    method, there = METHODS[name], endpoints(METHODS[name])
    for index in range(21):
        generator = np.random.default_rng([group, index])
        loss, repeat, crash = generator.random(3) * [0.4, 0.4, 0.2]
        link = FaultyLink(there, [group, index], loss, repeat, generator.exponential(5.0), crash)
        link.faults_until = 1000.0
        path = tmp_path / f"{index}"
        result = None
        while result is None:
            link.crash_after = CrashAfter(generator.integers(1, 60) if link.time < link.faults_until else np.inf)
            with contextlib.suppress(ServerKilled):
                result = serve(method, link, CrashingLedger(path, link.crash_after))
        assert_product(result.state)
        assert result.status is pt.Status.CONVERGED, result.message
        np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-10)
        assert len(result.history) == len({row["step"] for row in result.history})


@pytest.mark.parametrize("name", METHODS)
def test_a_server_killed_at_any_operation_resumes_with_the_same_result(name, tmp_path):
    method, there = METHODS[name], endpoints(METHODS[name])
    link = FaultyLink(there)
    undisturbed = serve(method, link, CrashingLedger(tmp_path / "undisturbed", link.crash_after))
    for operations in range(link.crash_after.operations_done):
        path = tmp_path / f"{operations}"
        link = FaultyLink(there, crash_after=CrashAfter(operations))
        with pytest.raises(ServerKilled):
            serve(method, link, CrashingLedger(path, link.crash_after))
        link.crash_after = CrashAfter()
        result = serve(method, link, CrashingLedger(path, link.crash_after))
        assert_product(result.state)
        # answers that were under way may come in another order
        np.testing.assert_allclose(result.posterior.q.precision, undisturbed.posterior.q.precision, rtol=1e-13)
        assert name == "asynchronous" or result.state.answers == undisturbed.state.answers


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(pt.methods.sequential(pt.Conjugate(), damping=0.5), marks=pytest.mark.slow),
        pt.methods.synchronous(pt.Conjugate()),
    ],
)
def test_a_damped_run_whose_server_is_killed_ends_at_the_same_bits(method, tmp_path):
    """Its posterior is a product of many steps, which another order would round differently."""
    there = endpoints(method)
    link = FaultyLink(there)
    undisturbed = serve(method, link, CrashingLedger(tmp_path / "undisturbed", link.crash_after))
    for operations in range(9, link.crash_after.operations_done, 24):
        link = FaultyLink(there, crash_after=CrashAfter(operations))
        with pytest.raises(ServerKilled):
            serve(method, link, CrashingLedger(tmp_path / f"{operations}", link.crash_after))
        link.crash_after = CrashAfter()
        result = serve(method, link, CrashingLedger(tmp_path / f"{operations}", link.crash_after))
        for far, near in zip(result.posterior.q.moments(), undisturbed.posterior.q.moments(), strict=True):
            np.testing.assert_array_equal(far, near)


def test_a_client_with_an_unprocessed_answer_gets_no_new_task():
    """After a restart between an asynchronous answer's arrival and its being taken in, it must not count twice."""
    method = METHODS["asynchronous"]
    state = dispatch(method, init(PRIOR, PARTS.names), np.zeros(3, bool))
    engine = LocalEngine(PARTS)
    engine.bind(method.recipe(MODEL), PRIOR)
    for task in state.in_flight:
        engine.submit(task)
    state = receive(state, [engine.next()])
    again = dispatch(method, state, np.zeros(3, bool))
    assert [task.client for task, _ in again.arrived] == [0]
    assert [task.client for task in again.in_flight] == [1, 2]


def test_an_answer_to_a_stale_factor_version_is_ignored():
    method = METHODS["synchronous"]
    state = dispatch(method, init(PRIOR, PARTS.names), np.zeros(3, bool))
    engine = LocalEngine(PARTS)
    engine.bind(method.recipe(MODEL), PRIOR)
    engine.submit(state.in_flight[0])
    moved = dataclasses.replace(state, versions=(1, 0, 0))
    assert receive(moved, [engine.next()]).arrived == ()


def test_after_a_timeout_pending_answers_are_kept_for_the_next_run(tmp_path):
    method = METHODS["synchronous"]
    link = FaultyLink(endpoints(method))
    link.down["client 1"] = 100.0
    link.bounce = 0.0
    first = serve(method, link, Ledger(tmp_path / "ledger"), until=50.0, quorum=1.0)
    assert first.status is pt.Status.TIMED_OUT
    assert (first.state.answers, len(first.state.arrived), len(first.state.in_flight)) == (0, 2, 1)
    again = serve(method, link, Ledger(tmp_path / "ledger"), quorum=1.0)
    assert again.status is pt.Status.CONVERGED
    np.testing.assert_allclose(np.linalg.inv(again.posterior.q.precision), EXACT, rtol=1e-10)


def test_a_round_proceeds_with_a_quorum_when_clients_miss_the_deadline(tmp_path):
    method = METHODS["synchronous"]
    link = FaultyLink(endpoints(method))
    link.down["client 1"] = 25.0
    link.bounce = 0.0
    result = serve(method, link, Ledger(tmp_path / "ledger"))
    assert result.history.rows[0]["unanswered"] == {"client 1": "did not answer in time"}
    assert result.history.rows[0]["clients"] == ["client 0", "client 2"]
    assert result.status is pt.Status.CONVERGED
    np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-10)


class Deaf(FaultyLink):
    """The first task for one client is lost; everybody else answers again and again."""

    def __init__(self, endpoints, name):
        super().__init__(endpoints)
        self.name, self.lost = name, 0

    def _carry(self, what, name, content):
        if what == "task" and name == self.name and not self.lost:
            self.lost += 1
        else:
            super()._carry(what, name, content)


def test_a_client_that_misses_its_deadline_is_retried_while_others_answer(tmp_path):
    """Its own deadline counts, whatever the others do."""
    method = pt.methods.asynchronous(pt.Conjugate(), damping=0.5)
    link = Deaf(endpoints(method), "client 1")
    result = serve(method, link, Ledger(tmp_path / "ledger"), quorum=1.0)
    assert link.lost == 1
    assert result.status is pt.Status.CONVERGED
    assert result.state.versions[1] > 0
    # a residual of 1e-12 nats is a relative 1e-6 of a standard deviation
    np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-5)


class Uneven(FaultyLink):
    """Messages of a client that are sent in some time arrive at its end."""

    held = (("west", 8.0, 60.0), ("east", 60.0, 100.0), ("west", 100.0, 150.0))

    def _carry(self, what, name, content):
        takes = max(
            [1.0, *(end - self.time for held, start, end in self.held if held == name and start <= self.time < end)]
        )
        heapq.heappush(self._events, (self.time + takes, next(self._order), what, name, content))


def test_an_asynchronous_run_ends_where_all_answers_are_about_its_posterior(tmp_path):
    """Not where one has settled while another was silent, whose last answer was about a posterior of long ago."""
    x = np.random.default_rng(1).normal(size=(60, 2))
    rows = [pt.Table(part, (part @ [2.0, sign] > 0.3).astype(float)) for part, sign in ((x[:30], 3.0), (x[30:], -3.0))]
    parts, prior = pt.federate(rows, names=["east", "west"]), pt.FullGaussian.standard_normal(2)
    model, method = pt.LogisticRegression(), pt.methods.asynchronous(pt.Newton(), damping=0.5)
    there = {
        name: ClientEndpoint(name, method.recipe(model), prior, shard)
        for name, shard in zip(parts.names, parts.shards, strict=True)
    }
    engine = RemoteEngine(Uneven(there), dict(zip(parts.names, parts.sizes, strict=True)))
    rules = Rules(deadline=1000.0, until=5000.0)
    settings = {"tolerance": 1e-10, "rounds": 400, "monitor": Monitor(every=0)}
    uneven = pt.run(method, model, prior, engine=engine, rules=rules, **settings)
    even = pt.run(method, model, prior, parts, **settings)
    assert uneven.status is even.status is pt.Status.CONVERGED
    assert uneven.state.answers > even.state.answers
    # answers within 1e-10 nats are within 1.4e-5 sds
    np.testing.assert_allclose((uneven.posterior.mean - even.posterior.mean) / even.posterior.sd, 0.0, atol=1e-4)


def test_a_repeatedly_failing_client_does_not_delay_the_retry_of_a_silent_one(tmp_path):
    method = METHODS["synchronous"]
    link = Deaf(endpoints(method), "client 1")
    link.down["client 2"], link.bounce = 40.0, 1.0
    result = serve(method, link, Ledger(tmp_path / "ledger"), quorum=1.0)
    asked = [message for message in map(unpack, link.sent) if message.header.get("client") == 1]
    assert link.lost == 1
    assert len(asked) > 1
    assert result.history.rows[0]["clock"] < 50.0
    np.testing.assert_allclose(np.linalg.inv(result.posterior.q.precision), EXACT, rtol=1e-10)


@pytest.mark.parametrize("gone", [["client 1"], ["client 1", "client 2"]])
def test_clients_can_be_removed_while_the_server_waits_for_them(gone, tmp_path):
    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")

    class Waiting(FaultyLink):
        def poll(self, timeout):
            if 20.0 < self.time < 20.0 + 2 * timeout and not self.asked:
                self.asked = True
                for name in gone:
                    Ledger(tmp_path / "ledger").request(name, "leave")
            return super().poll(timeout)

    link = Waiting(endpoints(method))
    link.asked, link.bounce = False, 0.0
    link.down = dict.fromkeys(gone, np.inf)
    result = serve(method, link, ledger, quorum=1.0)
    assert link.asked
    assert result.status is pt.Status.CONVERGED
    assert result.state.inactive_names == tuple(gone)
    assert link.time < 100.0
    assert np.isfinite(result.history.rows[-1]["residual"])
    assert np.isfinite(result.history.rows[-1]["reported_free_energy"])


def test_a_run_that_all_clients_have_left_stalls_with_a_message(tmp_path):
    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")
    ledger.load(init(PRIOR, PARTS.names))
    for name in PARTS.names:
        ledger.request(name, "leave")
    result = serve(method, FaultyLink(endpoints(method)), ledger)
    assert result.status is pt.Status.STALLED
    assert "All clients have left" in result.message


def test_the_run_continues_when_a_refused_client_leaves_and_another_is_active(tmp_path):
    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")
    state, _ = ledger.load(init(PRIOR, PARTS.names))
    ledger.keep(dataclasses.replace(state, refused={0: LEFT_OUT}))
    for name in PARTS.names[:2]:
        ledger.request(name, "leave")
    result = serve(method, FaultyLink(endpoints(method)), ledger)
    assert result.status is pt.Status.CONVERGED
    assert result.state.versions[2] > 0


def test_a_step_writes_the_factors_of_its_clients_once(tmp_path):
    method, ledger, written = METHODS["sequential"], Ledger(tmp_path / "ledger"), []
    ledger._db.set_trace_callback(lambda statement: written.append(statement.split(",")[0]))
    result = serve(method, FaultyLink(endpoints(method)), ledger)
    # before a chunk is written, its predecessor is looked for; here one holds all three clients
    assert len([statement for statement in written if "SELECT rowid FROM chunks" in statement]) == result.state.answers
