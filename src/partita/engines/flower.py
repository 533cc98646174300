"""Clients at other organisations, over Flower. No other module uses Flower's API.

Flower starts the two apps below in its own processes: the server app once per run, the client app for every message.
"""

import collections
import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partita.engines.remote import Delivery, Transport
from partita.errors import FederationError, InputError, MissingExtraError
from partita.io.wire import HEADER, MAX_TEXT_LENGTH, Message, view

__all__ = ["LARGEST", "RAW", "FlowerLink", "Pending", "from_records", "to_records"]

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from flwr.app import Message as Envelope
    from flwr.serverapp import Grid
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_PULL_INTERVAL_SECONDS = 0.2
"""Seconds between two polls for answers."""
_ASK = 60.0
"""Timeout in seconds for a node to identify itself; then it is asked again."""
_TAKEN = "is not asked, since another client of this name is online: stop one of them, or give it its own name."
RAW = "partita.raw"
"""The array format in Flower's records: raw bytes."""
LARGEST = 2**31
"""The largest total size of a task's arrays, in bytes."""


def to_records(message: Message) -> RecordDict:
    """A message as Flower records: arrays as raw bytes and a JSON header."""
    arrays = {name: np.asarray(array) for name, array in message.arrays.items()}
    raw = {name: Array(array.dtype.str, array.shape, RAW, array.tobytes()) for name, array in arrays.items()}
    header = ConfigRecord({"json": json.dumps(message.header)})
    return RecordDict({"header": header, "arrays": ArrayRecord(raw)})


def from_records(records: RecordDict, largest: int = LARGEST) -> Message:
    """The message in Flower's records, with at most `largest` bytes of arrays; anything else raises an `InputError`.

    The sender controls the records' types, so reading them may fail with any exception.
    """
    try:
        header, found = str(records.config_records["header"]["json"]), records.array_records["arrays"]
        size = sum(len(array.data) for array in found.values())
        if size > largest or len(header) > HEADER:
            raise ValueError(f"it has {size} bytes of arrays and {len(header)} characters of header")
        arrays = {str(name): view(str(name), array.dtype, array.shape, array.data) for name, array in found.items()}
        about = json.loads(header)
    except Exception as error:
        why = str(error)[:MAX_TEXT_LENGTH]
        raise FederationError(f"This is not a partita message, or it is too large: {why}.") from None
    return Message(about if isinstance(about, dict) else {}, arrays)


class Pending(NamedTuple):
    """A message sent to a node and not yet answered."""

    node: int
    name: str | None
    """The client that it was sent to; None if it asks the node to identify itself."""
    task: str
    size: int
    """The size of its arrays in bytes."""
    only_tells: bool = False
    """Whether what comes back changes nothing."""


class FlowerLink(Transport):
    """Identifies nodes by their registered keys or, without keys, by asking them; asks again after every error."""

    def __init__(
        self, grid: Grid, names: Sequence[str], registered: Mapping[str, int] | None = None, ttl: float = 3600.0
    ) -> None:
        self.grid, self.names, self.ttl = grid, frozenset(names), ttl
        self.registered = registered
        """Every client's node id if nodes authenticate with keys; then a node's own claim is ignored."""
        self._nodes: dict[str, int] = {}
        self._asked: dict[int, float] = {}
        self._pending: dict[str, Pending] = {}
        """Unanswered messages by envelope id."""
        self._failed: dict[str, str] = {}
        """The exception type raised by Flower when the answer to an envelope was last pulled."""
        self._online: frozenset[int] = frozenset()
        self._looked = -np.inf
        self._come: collections.deque[Delivery] = collections.deque()

    def post(self, name: str, message: Message) -> None:
        if name in self._nodes:
            self._push(self._nodes[name], message, "train.partita", name, self.ttl)
        else:
            self._come.append(Delivery(name, None, "is offline"))

    def poll(self, timeout: float) -> Delivery | None:
        until = self.now() + timeout
        while True:
            if not self._come:
                self._look_around()
                self._come += filter(None, map(self._open, list(self._pending)))
            if self._come:
                return self._come.popleft()
            if self.now() >= until:
                return None
            time.sleep(min(_PULL_INTERVAL_SECONDS, max(until - self.now(), 0.0)))

    def present(self) -> Sequence[str]:
        self._look_around()
        return list(self._nodes)

    def now(self) -> float:
        return time.time()

    def _push(
        self, node: int, message: Message, kind: str, name: str | None, ttl: float, only_tells: bool = False
    ) -> None:
        envelope = Envelope(to_records(message), dst_node_id=node, message_type=kind, ttl=ttl)
        for identity in self.grid.push_messages([envelope]):
            self._pending[identity] = Pending(node, name, message.words("task", ""), message.size, only_tells)

    def _look_around(self) -> None:
        """Refreshes which nodes are online, and asks unknown nodes to identify themselves."""
        if self.now() < self._looked + 1.0:
            return
        self._looked = self.now()
        self._online = frozenset(self.grid.get_node_ids())
        if self.registered is not None:
            self._nodes = {name: node for name, node in self.registered.items() if node in self._online}
            return
        known = set(self._nodes.values())
        for node in self._online:
            if node not in known and self.now() >= self._asked.get(node, -np.inf) + _ASK:
                self._asked[node] = self.now()
                self._push(node, Message({"kind": "name"}, {}), "query.partita", None, _ASK)

    def _open(self, identity: str) -> Delivery | None:
        """The answer to one message, if it has arrived."""
        node, name, task, size, only_tells = self._pending[identity]
        try:
            envelope = self._pull(identity)
            if envelope is None:
                return None
            # a task holds a posterior and a factor, an answer one change of a factor: half the size
            message = None if envelope.has_error() else from_records(envelope.content, largest=size)
        except InputError as error:
            message = Message({"kind": "unreadable", "task": task, "reason": str(error)}, {})
        del self._pending[identity]
        if only_tells:
            return None
        if message is None:
            self._asked.pop(node, None)
        if name is not None:
            if message is None:
                self._nodes.pop(name, None)
            return Delivery(name, message, "" if message else "cannot be reached")
        claimed = message.words("name", "") if message else ""
        # the first node to claim a name owns it while it is online
        if claimed in self.names and self._nodes.get(claimed) not in self._online:
            self._nodes[claimed] = node
        elif claimed in self.names:
            told = Message({"kind": "refused", "reason": _TAKEN}, {})
            self._push(node, told, "train.partita", None, _ASK, only_tells=True)
        return None

    def _pull(self, identity: str) -> Envelope | None:
        """The envelope that answers one message, if it has arrived; an InputError if Flower cannot deserialise it.

        Deserialising a client's objects may raise anything, and Flower then drops all messages of that pull: so
        messages are pulled one at a time. An unsolicited message of another client may also cause the failure; a
        second pull then reports an error if the answer itself was lost.
        """
        try:
            pulled = list(self.grid.pull_messages([identity]))
        except Exception as error:
            self.grid.get_node_ids()  # raises if the connection is broken, rather than the message
            self._failed[identity] = type(error).__name__
            return None
        failed = self._failed.pop(identity, None)
        found = next((envelope for envelope in pulled if envelope.metadata.reply_to_message_id == identity), None)
        if failed is not None and found is not None and found.has_error():
            raise FederationError(f"This is not a partita message: Flower cannot deserialise it ({failed}).")
        return found
