"""An in-memory link on a virtual clock that loses, duplicates, delays and reorders messages, with crashes."""

import heapq
import itertools

import numpy as np

from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import Delivery, Transport
from partita.io.wire import pack, unpack
from partita.storage.ledger import Ledger


class ServerKilled(BaseException):
    """Raised where the server is killed; like `kill -9`, nothing catches it."""


class CrashAfter:
    """Kills the server at its n-th operation on the link or the ledger."""

    def __init__(self, operations=np.inf):
        self.left = operations
        self.operations_done = 0

    def count_operation(self):
        self.operations_done += 1
        self.left -= 1
        if self.left < 0:
            raise ServerKilled


class CrashingLedger(Ledger):
    """A ledger whose server may be killed just before or just after each of its transactions."""

    def __init__(self, path, crash_after):
        self.crash_after = crash_after
        super().__init__(path, durable=False)

    def _transaction(self):
        self.crash_after.count_operation()
        return super()._transaction()


class FaultyLink(Transport):
    """No faults by default: every message takes a second, and all clients are present."""

    def __init__(self, endpoints, seed=0, loss=0.0, repeat=0.0, delay=1.0, crash=0.0, bounce=0.5, crash_after=None):
        self.endpoints: dict[str, ClientEndpoint] = dict(endpoints)
        self.generator = np.random.default_rng(seed)
        self.loss, self.repeat, self.delay, self.crash, self.bounce = loss, repeat, delay, crash, bounce
        self.crash_after = crash_after or CrashAfter()
        self.time = 0.0
        self.down: dict[str, float] = {}
        self.sent: list[bytes] = []
        self.faults_until = np.inf
        self._order = itertools.count()
        self._events: list[tuple] = []

    def _carry(self, what, name, content):
        faulty = self.time < self.faults_until
        copies = (
            1 + (faulty and self.generator.random() < self.repeat) - (faulty and self.generator.random() < self.loss)
        )
        for _ in range(max(copies, 0)):
            takes = self.generator.exponential(self.delay) if faulty and self.delay != 1.0 else 1.0
            heapq.heappush(self._events, (self.time + takes, next(self._order), what, name, content))

    def post(self, name, message):
        self.crash_after.count_operation()
        self.sent.append(pack(message))
        self._carry("task", name, self.sent[-1])

    def poll(self, timeout):
        self.crash_after.count_operation()
        until = self.time + timeout
        while self._events and self._events[0][0] <= until:
            self.time, _, what, name, content = heapq.heappop(self._events)
            if what == "letter":
                return Delivery(name, unpack(content) if content else None, "cannot be reached")
            if self.time < self.faults_until and self.generator.random() < self.crash:
                self.down[name] = self.time + self.generator.exponential(20.0)
            if self.down.get(name, -np.inf) <= self.time:
                answer = pack(self.endpoints[name].handle(unpack(content)))
                self.sent.append(answer)
                self._carry("letter", name, answer)
            elif self.generator.random() < self.bounce:
                self._carry("letter", name, None)
        self.time = until if np.isfinite(until) else self.time
        return None

    def present(self):
        return list(self.endpoints)

    def now(self):
        return self.time
