"""Clients of other organisations, by Flower: the only module that knows it.

Flower starts the two apps below in processes of its own: the server's once for a run, the client's for every message.
"""

import collections
import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partita.engines.remote import Letter, Link
from partita.errors import FederationError, InputError, MissingExtraError
from partita.io.wire import HEADER, SHOWN, Message, view

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from flwr.app import Message as Envelope
    from flwr.serverapp import Grid
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

PULL = 0.2
"""Seconds between two looks for answers."""
ASK = 60.0
"""Seconds that a node has to say who it is; then the question is void, and it is asked again."""
RAW = "partita.raw"
"""How arrays are written down in Flower's records: as their bytes."""
LARGEST = 2**31
"""Bytes of arrays beyond which a task is not read."""


def to_records(message: Message) -> RecordDict:
    """A message as Flower carries it: arrays in its own records, as the bytes they are, and a header of JSON."""
    arrays = {name: np.asarray(array) for name, array in message.arrays.items()}
    return RecordDict(
        {
            "header": ConfigRecord({"json": json.dumps(message.header)}),
            "arrays": ArrayRecord(
                {name: Array(array.dtype.str, array.shape, RAW, array.tobytes()) for name, array in arrays.items()}
            ),
        }
    )


def from_records(records: RecordDict, largest: int = LARGEST) -> Message:
    """The message in Flower's records, with at most so many bytes of arrays; anything else is refused.

    Whoever wrote them chose their types too, and so in which way they fail.
    """
    try:
        header, found = str(records.config_records["header"]["json"]), records.array_records["arrays"]
        size = sum(len(array.data) for array in found.values())
        if size > largest or len(header) > HEADER:
            raise ValueError(f"it has {size} bytes of arrays and {len(header)} of words")
        arrays = {str(name): view(str(name), array.dtype, array.shape, array.data) for name, array in found.items()}
        about = json.loads(header)
    except Exception as error:
        raise FederationError(f"This is not a message of partita's, or is too long: {str(error)[:SHOWN]}.") from None
    return Message(about if isinstance(about, dict) else {}, arrays)


class Posted(NamedTuple):
    """What is remembered of a message to a node until it is answered."""

    node: int
    name: str | None
    """The client that it was for; None for a question who the node is."""
    task: str
    size: int
    """How many bytes its arrays had."""


class FlowerLink(Link):
    """Knows a node by the key that it showed, or asks it, again after every error: it may come back as another."""

    def __init__(
        self, grid: Grid, names: Sequence[str], registered: Mapping[str, int] | None = None, ttl: float = 3600.0
    ) -> None:
        self.grid, self.names, self.ttl = grid, frozenset(names), ttl
        self.registered = registered
        """Every client's node where nodes show keys: then nobody is asked, and nobody believed."""
        self._nodes: dict[str, int] = {}
        self._asked: dict[int, float] = {}
        self._posted: dict[str, Posted] = {}
        """By the id of the envelope."""
        self._failed: dict[str, str] = {}
        """With what error Flower failed when it was last asked for the answer to an envelope."""
        self._online: frozenset[int] = frozenset()
        self._looked = -np.inf
        self._come: collections.deque[Letter] = collections.deque()

    def post(self, name: str, message: Message) -> None:
        if name in self._nodes:
            self._push(self._nodes[name], message, "train.partita", name, self.ttl)
        else:
            self._come.append(Letter(name, None, "is not there"))

    def poll(self, timeout: float) -> Letter | None:
        until = self.now() + timeout
        while True:
            if not self._come:
                self._look_around()
                letters = [self._open(identity) for identity in list(self._posted)]
                self._come += [letter for letter in letters if letter is not None]
            if self._come:
                return self._come.popleft()
            if self.now() >= until:
                return None
            time.sleep(min(PULL, max(until - self.now(), 0.0)))

    def present(self) -> Sequence[str]:
        self._look_around()
        return list(self._nodes)

    def now(self) -> float:
        return time.time()

    def _push(self, node: int, message: Message, kind: str, name: str | None, ttl: float) -> None:
        envelope = Envelope(to_records(message), dst_node_id=node, message_type=kind, ttl=ttl)
        for identity in self.grid.push_messages([envelope]):
            self._posted[identity] = Posted(node, name, message.words("task", ""), message.size)

    def _look_around(self) -> None:
        """Sees which clients are there, and asks nodes that are not known who they are."""
        if self.now() < self._looked + 1.0:
            return
        self._looked = self.now()
        self._online = frozenset(self.grid.get_node_ids())
        if self.registered is not None:
            self._nodes = {name: node for name, node in self.registered.items() if node in self._online}
            return
        known = set(self._nodes.values())
        for node in self._online:
            if node not in known and self.now() >= self._asked.get(node, -np.inf) + ASK:
                self._asked[node] = self.now()
                self._push(node, Message({"kind": "name"}, {}), "query.partita", None, ASK)

    def _open(self, identity: str) -> Letter | None:
        """The letter that answers one message, if it is there."""
        node, name, task, size = self._posted[identity]
        try:
            envelope = self._pull(identity)
            if envelope is None:
                return None
            # a task carries a posterior and a factor, and its answer a change of a factor: half as much
            message = None if envelope.has_error() else from_records(envelope.content, largest=size)
        except InputError as error:
            message = Message({"kind": "unreadable", "task": task, "reason": str(error)}, {})
        del self._posted[identity]
        if message is None:
            self._asked.pop(node, None)
            if name is None:
                return None
            self._nodes.pop(name, None)
            return Letter(name, None, "cannot be reached")
        if name is not None:
            return Letter(name, message)
        claimed = message.words("name", "")
        if self._believed(node, claimed):
            self._nodes[claimed] = node
        return None

    def _pull(self, identity: str) -> Envelope | None:
        """The envelope that answers one message, if it is there; an InputError where Flower could not open it.

        Flower builds what a client described, which may fail in any way, and by then has forgotten all that it was
        asked for: so it is asked for one at a time. It may also have failed over what some client sent unasked, which
        comes along with any answer: asked again, it says so if the answer was lost.
        """
        try:
            pulled = list(self.grid.pull_messages([identity]))
        except Exception as error:
            self.grid.get_node_ids()  # fails too if the connection is to blame, and not what came
            self._failed[identity] = type(error).__name__
            return None
        failed = self._failed.pop(identity, None)
        found = next((envelope for envelope in pulled if envelope.metadata.reply_to_message_id == identity), None)
        if failed is not None and found is not None and found.has_error():
            raise FederationError(f"This is not a message of partita's: Flower cannot open it ({failed}).")
        return found

    def _believed(self, node: int, claimed: str) -> bool:
        """Whether a node is the client that it says it is: the first to say so while it is online."""
        return claimed in self.names and self._nodes.get(claimed) not in self._online
