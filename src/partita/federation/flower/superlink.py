"""A server app of Flower's, where an organisation's own SuperLink is the way to partita's clients.

Only Flower's public interface is used. The SuperLink is trusted with what partita's own server checks: see
`docs/federation.md`.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from partita.engines.remote import Delivery, Transport
from partita.errors import DamagedFileError, FederationError, InputError, MissingExtraError
from partita.federation.clock import awake
from partita.federation.config import Federation, load
from partita.federation.flower.objects import ENTRY
from partita.federation.flower.signature import Keyring, steady
from partita.federation.running import run_server
from partita.io import private
from partita.io.wire import Message, pack, sanitise, unpack
from partita.storage.ledger import Ledger

__all__ = ["GridTransport", "server"]

try:
    from flwr.app import ConfigRecord, Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_KIND = "train.partita"
_LOOK = 2.0
"""Seconds between two looks at who is online."""
_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two looks for answers: at first, and after a while without any."""


class _Asked(NamedTuple):
    """A message that is to be answered."""

    name: str
    key: bytes
    """The client's at that time: with another one, or none, its answer does not count."""
    node: int
    task: str
    size: int
    """Of the message's arrays, in bytes, which the answer's do not exceed."""
    until: float


class GridTransport(Transport):
    """Messages through a SuperLink's grid. A client is the node whose registered key is that client's."""

    def __init__(self, grid: Grid, keys: Callable[[], Mapping[str, bytes]], life: float) -> None:
        """`keys` are the clients' public keys at present; a message is void after its `life` in seconds."""
        self._grid, self._keys, self._life, self._clock = grid, keys, life, awake()
        self._open: dict[str, _Asked] = {}
        self._come: collections.deque[Delivery] = collections.deque()
        self._nodes, self._looked = dict[str, int](), -_LOOK

    def post(self, name: str, message: Message) -> None:
        node, key = self._online().get(name), self._keys().get(name)
        if node is None or key is None:
            return self._come.append(Delivery(name, None, "is offline"))
        record = ConfigRecord({ENTRY: pack(message)})
        sent = FlowerMessage(RecordDict({ENTRY: record}), node, _KIND, ttl=self._life)
        (identity,) = self._grid.push_messages([sent]) or (None,)
        if identity is None:
            return self._come.append(Delivery(name, None, "cannot be sent a message by the SuperLink"))
        task, until = message.words("task", ""), self.now() + self._life
        self._open[identity] = _Asked(name, key, node, task, message.size, until)

    def poll(self, timeout: float) -> Delivery | None:
        until, pause = self.now() + timeout, _SHORTEST
        while True:
            self._open = {identity: asked for identity, asked in self._open.items() if self.now() < asked.until}
            for reply in self._grid.pull_messages(list(self._open)) if self._open else ():
                asked = self._open.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None and self._keys().get(asked.name) == asked.key:
                    self._come.append(_opened(asked, reply))
            if self._come:
                return self._come.popleft()
            if self.now() >= until:
                return None
            time.sleep(min(pause, max(until - self.now(), 0.0)))
            pause = min(1.2 * pause, _LONGEST)

    def present(self) -> Sequence[str]:
        return list(self._online())

    def now(self) -> float:
        return self._clock()

    def _online(self) -> Mapping[str, int]:
        """The nodes of the clients that are online, by name."""
        if self.now() >= self._looked + _LOOK:
            nodes = {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}
            self._nodes = {name: nodes[key] for name, key in self._keys().items() if key in nodes}
            self._looked = self.now()
        return self._nodes


def _opened(asked: _Asked, reply: FlowerMessage) -> Delivery:
    """An answer; what cannot be read is said in its place."""
    if reply.has_error():
        reason = sanitise(reply.error.reason or str(reply.error.code), 200)  # in the words of its own machine
        return Delivery(asked.name, None, f"cannot be reached ({reason})")
    try:
        if reply.metadata.src_node_id != asked.node:
            raise FederationError("It is of another node than was asked.")
        packed = reply.content[ENTRY][ENTRY]
        if not isinstance(packed, bytes):
            raise DamagedFileError("It holds no message of partita's.")
        message = unpack(packed, asked.size)
    except (InputError, KeyError, TypeError) as error:
        message = Message({"kind": "unreadable", "task": asked.task, "reason": str(error)}, {})
    return Delivery(asked.name, message)


server = ServerApp()


@server.main()
def _main(grid: Grid, context: Context) -> None:
    """Runs the federation in the folder that the run's configuration names, as `partita server` does."""
    private.close_to_others()
    folder = Path(str(context.run_config["folder"]))

    @contextlib.contextmanager
    def listen(folder: Path, federation: Federation, ledger: Ledger) -> Iterator[Transport]:
        public = {name: folder / "keys" / f"{name}.pub" for name in federation.clients}
        keys = Keyring(public, steady())
        yield GridTransport(grid, lambda: keys.keys, federation.run.deadline)

    print(run_server(folder, load(folder), listen), flush=True)
