"""What the server holds for its clients: messages that wait for them, and answers as they come in.

All of it is in memory, and all of it is bounded: a client can hand in the answer to a message that it was sent, once,
of at most the message's own size. Times are of a clock that nobody sets.
"""

import collections
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from partita.engines.remote import Delivery, Transport
from partita.errors import InputError, MissingExtraError
from partita.federation.clock import awake
from partita.federation.flower.messages import ObjectTree
from partita.federation.flower.objects import MARGIN, Parcel, chain, unwrapped, wrapped
from partita.io.wire import Message

__all__ = ["Office", "TakenError"]

try:
    from flwr.app.metadata import Metadata
    from flwr.common.constant import SUPERLINK_NODE_ID
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_RUN = 1
"""Flower numbers runs; here there is one."""
_KIND = "train.partita"
_HEADER = 2**20
"""Bytes that an answer's header may have; read, they take thirty times as much memory."""
_SESSION = 15.0
"""Seconds without a call after which a client's place is free for another process with its key."""
_ABSENT = 60.0
"""Seconds without a call after which a client counts as away; one that is started again meanwhile misses nothing."""
_LOOK = 1.0
"""Seconds between two looks at who is away."""


class TakenError(Exception):
    """Another process with the same key is at work."""


class _Asked:
    """A message that is to be answered."""

    def __init__(self, parcel: Parcel, about: Metadata, task: str, size: int, until: float) -> None:
        self.parcel, self.about, self.task, self.size, self.until = parcel, about, task, size, until
        self.given = False
        """Whether the client has it."""
        self.tree: ObjectTree | None = None
        """The tree of its answer, once that is announced."""
        self.names: tuple[str, ...] = ()
        self.answer: dict[str, bytes] = {}

    @property
    def most(self) -> int:
        """Bytes that an answer may have."""
        return self.size + _HEADER + 3 * MARGIN

    @property
    def missing(self) -> list[str]:
        """The objects of the answer that have not come yet."""
        return [name for name in self.names if name not in self.answer]


class _Node:
    """A client, as Flower's calls know it."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.session = ""
        self.held = self.heard = float("-inf")
        """When the process that has its place, and when any, was last heard of."""
        self.asked: collections.OrderedDict[str, _Asked] = collections.OrderedDict()
        self.told: Callable[[], object] = lambda: None
        """Tells whoever waits for a message that there is one."""


class _Given(NamedTuple):
    """A message that is handed to a client."""

    about: Metadata
    identity: str
    tree: ObjectTree


class Office(Transport):
    """Hands messages to clients and takes their answers, whichever thread calls."""

    def __init__(
        self,
        keys: Mapping[str, bytes],
        expected: Iterable[str] = (),
        life: float = 3600.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Clients that are `expected` count as online at first; a message is void after its `life` in seconds."""
        self._life, self._clock, self._lock = life, clock or awake(), threading.RLock()
        self._nodes = {name: _Node(name, _number(key)) for name, key in keys.items()}
        self._come: queue.SimpleQueue[tuple[str, _Asked] | Delivery] = queue.SimpleQueue()
        for name in set(expected) & set(self._nodes):
            self._nodes[name].heard = self.now()

    # ---- for the server's run

    def post(self, name: str, message: Message) -> None:
        if name not in self._nodes:
            return self._come.put(Delivery(name, None, "has no key here"))
        node, task, now = self._nodes[name], message.words("task", ""), self.now()
        about = Metadata(_RUN, "", SUPERLINK_NODE_ID, node.number, "", "", time.time(), self._life, _KIND)
        parcel = wrapped(message, about)
        with self._lock:
            if not self._online(node):
                return self._come.put(Delivery(name, None, "is offline"))
            self._tidy(node)
            for identity, other in list(node.asked.items()):
                if other.task == task and not other.given:
                    del node.asked[identity]  # the same again, which nobody has fetched
            node.asked[parcel.identity] = _Asked(parcel, about, task, message.size, now + self._life)
        node.told()

    def tell(self, name: str, message: Message) -> bool:
        self.post(name, message)
        return True

    def poll(self, timeout: float) -> Delivery | None:
        until = self.now() + timeout
        while True:
            try:
                come = self._come.get(timeout=max(min(until - self.now(), _LOOK), 0.0))
            except queue.Empty:
                self._look()
                if self.now() >= until and self._come.empty():
                    return None
                continue
            return come if isinstance(come, Delivery) else self._opened(*come)

    def present(self) -> Sequence[str]:
        with self._lock:
            return [name for name, node in self._nodes.items() if self._online(node)]

    def now(self) -> float:
        return self._clock()

    def _opened(self, name: str, asked: _Asked) -> Delivery:
        """An answer that is complete; what cannot be read is said in its place."""
        assert asked.tree is not None
        try:
            message = unwrapped(asked.tree, asked.answer, asked.size, _HEADER)
        except InputError as error:
            message = Message({"kind": "unreadable", "task": asked.task, "reason": str(error)}, {})
        return Delivery(name, message)

    def _look(self) -> None:
        """Says of clients that have gone that they cannot be reached; their messages are void."""
        with self._lock:
            for node in self._nodes.values():
                self._tidy(node)
                if node.asked and not self._online(node):
                    node.asked.clear()
                    self._come.put(Delivery(node.name, None, "cannot be reached"))

    def _online(self, node: _Node) -> bool:
        return self.now() < node.heard + _ABSENT

    def _tidy(self, node: _Node) -> None:
        """Drops messages whose life is over."""
        for identity, asked in list(node.asked.items()):
            if self.now() >= asked.until:
                del node.asked[identity]

    # ---- for the clients' calls

    def knows(self, name: str, key: bytes) -> None:
        """A call has come with a client's key: where it had another before, what was sent to that one is void."""
        with self._lock:
            node = self._nodes.get(name)
            if node is not None and node.number == _number(key):
                return
            self._nodes[name] = _Node(name, _number(key))
            if node is not None and node.asked:
                self._come.put(Delivery(name, None, "has another key than before"))

    def number(self, name: str) -> int:
        """The number by which Flower's calls know a client."""
        return self._nodes[name].number

    def enter(self, name: str, session: str) -> None:
        """A process takes its client's place, unless another has it; what it was given before, it may fetch again."""
        with self._lock:
            node = self._nodes[name]
            if node.session != session and self.now() < node.held + _SESSION:
                raise TakenError
            node.session = session
            node.held = node.heard = self.now()
            for asked in node.asked.values():
                asked.given = False

    def hear(self, name: str, session: str) -> None:
        """A call has come from a client's process; one whose server was started again takes its place anew."""
        with self._lock:
            node = self._nodes[name]
            if node.session != session or node.held == float("-inf"):
                return self.enter(name, session)
            node.held = node.heard = self.now()

    def lose(self, name: str, session: str) -> None:
        """A process has gone without a word: its place is free, and the client may be back soon."""
        with self._lock:
            node = self._nodes[name]
            if node.session == session:
                node.held = float("-inf")

    def leave(self, name: str, session: str) -> None:
        """A process says that it goes: its client is away."""
        with self._lock:
            node = self._nodes[name]
            if node.session == session:
                node.held = node.heard = float("-inf")

    def wait(self, name: str, told: Callable[[], object]) -> None:
        """Names whom to tell when there is a message for a client; there may be one already."""
        self._nodes[name].told = told

    def next(self, name: str) -> _Given | None:
        """The first message that a client has not fetched."""
        with self._lock:
            node = self._nodes[name]
            self._tidy(node)
            for identity, asked in node.asked.items():
                if not asked.given:
                    asked.given = True
                    return _Given(asked.about, identity, asked.parcel.tree)
        return None

    def content(self, name: str, identity: str) -> bytes | None:
        """An object of one of a client's own messages."""
        with self._lock:
            asked = self._nodes[name].asked.values()
            return next((found for one in asked if (found := one.parcel.contents.get(identity))), None)

    def announce(self, name: str, identity: str, tree: ObjectTree) -> list[str]:
        """A client has the answer to one of its messages: which objects it is to send, if the answer is awaited.

        ValueError where the tree is not that of a message.
        """
        names = chain(tree)
        with self._lock:
            asked = self._nodes[name].asked.get(identity)
            if asked is None:
                return []
            if asked.tree is None or asked.tree.object_id != tree.object_id:
                asked.tree, asked.names, asked.answer = tree, tuple(names), {}
            return asked.missing

    def room(self, name: str) -> int:
        """The longest object that a client may send now."""
        with self._lock:
            return max((one.most for one in self._nodes[name].asked.values() if one.tree is not None), default=0)

    def take(self, name: str, identity: str, content: bytes) -> bool:
        """An object of an answer has come; whether it was awaited. ValueError where it is another, or too long."""
        if hashlib.sha256(content).hexdigest() != identity:
            raise ValueError("the object is another than its name says")
        with self._lock:
            node = self._nodes[name]
            for message, asked in node.asked.items():
                if identity in asked.missing:
                    if sum(map(len, asked.answer.values())) + len(content) > asked.most:
                        raise ValueError("the answer is longer than it can be")
                    asked.answer[identity] = content
                    if not asked.missing:
                        del node.asked[message]
                        self._come.put((name, asked))
                    return True
        return False


def _number(key: bytes) -> int:
    """A client's number, which follows from its key: it is the same after a restart."""
    return int.from_bytes(hashlib.sha256(key).digest()[:7], "big") + 2
