"""A link to clients in this process: the messages of a real run, in their order, with a count of what is sent."""

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from partita.engines.remote import Delivery, Transport
from partita.io.wire import Message, pack, unpack

__all__ = ["Loop", "Sent"]


class Sent:
    """What a client has sent: how many messages of each kind, and their bytes."""

    def __init__(self) -> None:
        self.messages: dict[str, int] = {}
        self.bytes: dict[str, int] = {}

    def add(self, answer: Message, size: int) -> None:
        """Counts a message."""
        kind = str(answer.header.get("kind"))
        self.messages[kind] = self.messages.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + size


class _Answering(Protocol):
    """What answers a client's messages."""

    def handle(self, message: Message) -> Message:
        """The answer to a message."""


class Loop(Transport):
    """Every message is packed, answered at once, and read as if it had come over a network."""

    def __init__(self, clients: Mapping[str, _Answering]) -> None:
        self.clients, self.sent = dict(clients), {name: Sent() for name in clients}
        self._come: collections.deque[Delivery] = collections.deque()
        self._began, self._skipped = time.monotonic(), 0.0

    def post(self, name: str, message: Message) -> None:
        answer = self.clients[name].handle(unpack(pack(message)))
        written = pack(answer)
        self.sent[name].add(answer, len(written))
        self._come.append(Delivery(name, unpack(written)))

    def poll(self, timeout: float) -> Delivery | None:
        if not self._come:
            self._skipped += timeout  # nobody else could come meanwhile
            return None
        return self._come.popleft()

    def present(self) -> Sequence[str]:
        return list(self.clients)

    def now(self) -> float:
        return time.monotonic() - self._began + self._skipped
