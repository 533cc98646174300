"""An in-memory link on a virtual clock that loses, duplicates, delays and reorders messages, with crashes."""

import heapq
import itertools

import numpy as np

from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import Delivery, Transport
from partita.io.wire import pack, unpack
from partita.storage.ledger import Ledger


class Killed(BaseException):
    """Raised where the server is killed; like `kill -9`, nothing catches it."""


class Fuse:
    """Kills the server at its n-th operation on the link or the ledger."""

    def __init__(self, operations=np.inf):
        self.left = operations
        self.burnt = 0

    def burn(self):
        self.burnt += 1
        self.left -= 1
        if self.left < 0:
            raise Killed


class Fragile(Ledger):
    """A ledger whose server may be killed just before or just after each of its transactions."""

    def __init__(self, path, fuse):
        self.fuse = fuse
        super().__init__(path, durable=False)

    def _transaction(self):
        self.fuse.burn()
        return super()._transaction()


class Weather(Transport):
    """No faults by default: every message takes a second, and all clients are present."""

    def __init__(self, sites, seed=0, loss=0.0, repeat=0.0, delay=1.0, crash=0.0, bounce=0.5, fuse=None):
        self.sites: dict[str, ClientEndpoint] = dict(sites)
        self.generator = np.random.default_rng(seed)
        self.loss, self.repeat, self.delay, self.crash, self.bounce = loss, repeat, delay, crash, bounce
        self.fuse = fuse or Fuse()
        self.time = 0.0
        self.down: dict[str, float] = {}
        self.sent: list[bytes] = []
        self.calm = np.inf
        self._order = itertools.count()
        self._events: list[tuple] = []

    def _carry(self, what, name, content):
        rough = self.time < self.calm
        copies = 1 + (rough and self.generator.random() < self.repeat) - (rough and self.generator.random() < self.loss)
        for _ in range(max(copies, 0)):
            takes = self.generator.exponential(self.delay) if rough and self.delay != 1.0 else 1.0
            heapq.heappush(self._events, (self.time + takes, next(self._order), what, name, content))

    def post(self, name, message):
        self.fuse.burn()
        self.sent.append(pack(message))
        self._carry("task", name, self.sent[-1])

    def poll(self, timeout):
        self.fuse.burn()
        until = self.time + timeout
        while self._events and self._events[0][0] <= until:
            self.time, _, what, name, content = heapq.heappop(self._events)
            if what == "letter":
                return Delivery(name, unpack(content) if content else None, "cannot be reached")
            if self.time < self.calm and self.generator.random() < self.crash:
                self.down[name] = self.time + self.generator.exponential(20.0)
            if self.down.get(name, -np.inf) <= self.time:
                answer = pack(self.sites[name].handle(unpack(content)))
                self.sent.append(answer)
                self._carry("letter", name, answer)
            elif self.generator.random() < self.bounce:
                self._carry("letter", name, None)
        self.time = until if np.isfinite(until) else self.time
        return None

    def present(self):
        return list(self.sites)

    def now(self):
        return self.time
