"""Ten random kills of server and clients over TLS in one process: the posterior is that of an undisturbed run.

`tests/federation/test_processes.py` kills real processes, which takes longer.
"""

import contextlib
import threading

import numpy as np
import pytest

from partita.federation.client import attend
from partita.storage.ledger import Ledger
from support.fleet import Place
from support.remote_runs import METHODS, PARTS, assert_product, endpoints, serve
from support.weather import CrashAfter, CrashingLedger, FaultyLink, ServerKilled


class Killed(BaseException):
    """A client is killed; nothing catches it."""


class Ended(BaseException):
    """The test is over."""


class Clients:
    """Clients in threads; one is killed every few calls, and started again with the same key."""

    def __init__(self, place, there, generator, kills):
        self.place, self.there = place, there
        self.calls, self.killed, self.fatal = 0, 0, set(np.cumsum(generator.integers(3, 9, kills)))
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=[name]) for name in there]

    def run(self, name):
        while not self.ended.is_set():
            with contextlib.suppress(Killed, Ended):
                link = self.place.link(name)
                link._call = self.mortal(link._call)
                try:
                    attend(self.there[name].handle, link, lambda line: None, rest=lambda seconds: self.ended.wait(0.05))
                finally:
                    link._closed.set()  # without good-bye, as the kernel closes a killed process's connections
                    link._http.close()

    def mortal(self, call):
        def called(*arguments):
            if self.ended.is_set():
                raise Ended
            with self.lock:
                self.calls += arguments[0] != "send-node-heartbeat"
                if self.calls in self.fatal:
                    self.fatal.remove(self.calls)
                    self.killed += 1
                    raise Killed
            return call(*arguments)

        return called


@pytest.mark.parametrize("method", ["sequential", "synchronous", "asynchronous"])
def test_ten_random_kills_do_not_change_the_posterior(method, tmp_path, monkeypatch):
    from partita.federation.flower import dialling, office

    monkeypatch.setattr(dialling, "_WAIT", 1)
    monkeypatch.setattr(office, "_SESSION", 0.5)  # a killed thread's connections may stay open for a while
    generator = np.random.default_rng(len(method))
    there, names = endpoints(METHODS[method]), tuple(PARTS.names)
    undisturbed = serve(METHODS[method], FaultyLink(there), Ledger(tmp_path / "undisturbed"))
    place = Place(tmp_path / "place", names)
    clients = Clients(place, there, generator, kills=5)
    for thread in clients.threads:
        thread.start()
    try:
        result, kills = None, 5
        while result is None:
            crash = CrashAfter(generator.integers(1, 4) if kills else np.inf)
            kills -= bool(kills)
            with place.server(expected=names) as server, contextlib.suppress(ServerKilled):
                until = server.now() + 120.0
                ledger = CrashingLedger(tmp_path / "ledger", crash)
                result = serve(METHODS[method], server, ledger, until=until, deadline=60.0, quorum=1.0)
    finally:
        clients.ended.set()
        for thread in clients.threads:
            thread.join()
    assert (kills, clients.killed) == (0, 5)
    assert_product(result.state)
    for far, near in zip(result.posterior.q.moments(), undisturbed.posterior.q.moments(), strict=True):
        if method == "asynchronous":
            np.testing.assert_allclose(far, near, rtol=1e-8, atol=1e-12)
        else:
            np.testing.assert_array_equal(far, near)
