"""Clients of other organisations, by Flower: the only module that knows it.

Flower starts the two apps below in processes of its own: the server's once for a run, the client's for every message.
"""

import collections
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from partita.engines.remote import Letter, Link
from partita.errors import InputError
from partita.wire import Message, pack, unpack

try:
    from flwr.app import Array, ArrayRecord, Context, RecordDict
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise InputError("Flower is not installed: pip install 'partita[flower]'.") from None

if TYPE_CHECKING:
    from partita.federation.config import Federation

PULL = 0.2
"""Seconds between two looks for answers."""
ASK = 10.0
"""Seconds after which a node that has not said who it is is asked again."""
LARGEST = 2**31
"""Bytes of arrays beyond which a task is not read."""


def to_records(message: Message) -> RecordDict:
    """A message as Flower carries it: the bytes that `pack` makes, as one array, which Flower does not look into."""
    data = pack(message)
    return RecordDict({"message": ArrayRecord({"bytes": Array("uint8", (len(data),), "partita.wire", data)})})


def from_records(records: RecordDict, largest: int = LARGEST) -> Message:
    """The message in Flower's records, with at most so many bytes of arrays; anything else is refused."""
    try:
        data = records.array_records["message"]["bytes"].data
    except KeyError as error:
        raise InputError(f"This is not a message of partita's: it lacks {error}.") from None
    return unpack(data, largest)


class Posted(NamedTuple):
    """What is remembered of a message to a node until it is answered."""

    node: int
    name: str | None
    """The client that it was for; None for a question who the node is."""
    task: str
    size: int
    """How many bytes its arrays had."""


class FlowerLink(Link):
    """Finds out which node is which client, and asks again after every error: a node may come back as another.

    Where clients have keys, a node is the client whose key it has, whatever it says.
    """

    def __init__(
        self, grid: Grid, names: Sequence[str], keys: Mapping[str, bytes] | None = None, ttl: float = 3600.0
    ) -> None:
        self.grid, self.names, self.keys, self.ttl = grid, frozenset(names), keys, ttl
        self._nodes: dict[str, int] = {}
        self._asked: dict[int, float] = {}
        self._posted: dict[str, Posted] = {}
        """By the id of the envelope."""
        self._online: frozenset[int] = frozenset()
        self._looked = -np.inf
        self._come: collections.deque[Letter] = collections.deque()

    def post(self, name: str, message: Message) -> None:
        if name in self._nodes:
            self._push(self._nodes[name], message, "train.partita", name)
        else:
            self._come.append(Letter(name, None, "is not there"))

    def poll(self, timeout: float) -> Letter | None:
        until = self.now() + timeout
        while True:
            self._look_around()
            # all that is pulled is opened: it does not come again
            envelopes = self.grid.pull_messages(list(self._posted)) if self._posted else ()
            self._come += [letter for letter in map(self._open, envelopes) if letter is not None]
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

    def _push(self, node: int, message: Message, kind: str, name: str | None) -> None:
        envelope = Envelope(to_records(message), dst_node_id=node, message_type=kind, ttl=self.ttl)
        for identity in self.grid.push_messages([envelope]):
            self._posted[identity] = Posted(node, name, message.words("task", ""), message.size)

    def _look_around(self) -> None:
        """Asks nodes that are not known who they are."""
        if self.now() < self._looked + 1.0:
            return
        self._looked = self.now()
        known = set(self._nodes.values())
        self._online = frozenset(self.grid.get_node_ids())
        for node in self._online:
            if node not in known and self.now() >= self._asked.get(node, -np.inf) + ASK:
                self._asked[node] = self.now()
                self._push(node, Message({"kind": "name"}, {}), "query.partita", None)

    def _open(self, envelope: Envelope) -> Letter | None:
        posted = self._posted.pop(envelope.metadata.reply_to_message_id, None)
        if posted is None:
            return None
        node, name, task, size = posted
        if envelope.has_error():
            self._asked.pop(node, None)
            if name is None:
                return None
            self._nodes.pop(name, None)
            return Letter(name, None, "cannot be reached")
        try:
            # a task carries a posterior and a factor, and its answer a change of a factor: half as much
            message = from_records(envelope.content, largest=size)
        except InputError as error:
            message = Message({"kind": "unreadable", "task": task, "reason": str(error)}, {})
        if name is not None:
            return Letter(name, message)
        claimed = message.words("name", "")
        if self._believed(node, claimed):
            self._nodes[claimed] = node
        return None

    def _believed(self, node: int, claimed: str) -> bool:
        """Whether a node is the client that it says it is; without keys, the first to say so while it is online."""
        if claimed not in self.names or self._nodes.get(claimed) in self._online:
            return False
        if self.keys is None:
            return True
        shown = {about.node_id: about.public_key for about in self.grid.get_nodes()}
        return shown.get(node) == self.keys[claimed]


server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """What Flower runs on the server: the folder of the federation is in the run's configuration."""
    from partita.federation import config
    from partita.federation.ledger import Ledger
    from partita.federation.serve import LEDGER, serve

    jax.config.update("jax_enable_x64", True)
    folder = Path(str(context.run_config["folder"]))
    federation = config.load(folder)
    try:
        serve(folder, federation, FlowerLink(grid, federation.clients, _keys(folder, federation)))
    except Exception as error:
        failed = {"status": "failed", "message": f"The server failed: {error}"}
        Ledger(folder / LEDGER).say("ended", failed)
        raise


def _keys(folder: Path, federation: "Federation") -> dict[str, bytes] | None:
    """The public keys of the clients, if they have any."""
    from partita.federation.certificates import public_key

    return (
        {name: public_key(folder / "keys", name) for name in federation.clients} if federation.server.secure else None
    )


@client_app.query("partita")
def _name(envelope: Envelope, context: Context) -> Envelope:
    """Says which client this node is."""
    answer = Message({"kind": "name", "name": str(context.node_config["client"])}, {})
    return Envelope(to_records(answer), reply_to=envelope)


@client_app.train("partita")
def _answer(envelope: Envelope, context: Context) -> Envelope:
    """Answers a message with the rows of the file in the node's configuration."""
    from partita.federation import config
    from partita.federation.client import Client

    jax.config.update("jax_enable_x64", True)
    about: Any = context.node_config
    client = Client(str(about["client"]), config.load(Path(str(about["folder"]))), Path(str(about["data"])))
    return Envelope(to_records(client.handle(from_records(envelope.content))), reply_to=envelope)
