"""The server's end of a mailbox: letters to clients, and the answers that are waited for."""

import collections
import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from partita.engines.remote import Delivery, Transport
from partita.errors import DamagedFileError, FederationError, InputError
from partita.federation.clock import awake
from partita.federation.mailbox.envelope import Correspondent, largest
from partita.federation.mailbox.shared import Shared
from partita.io.wire import Message, pack, unpack

__all__ = ["ANSWERS", "BEAT", "SERVER", "TASKS", "Mailbox", "Store"]

_LOG = logging.getLogger("partita")
SERVER = "the server"
TASKS = "to"
"""The folder of letters to clients, with one for each."""
ANSWERS = "from"
"""The folder of letters from clients, with one for each."""
BEAT = "here"
"""The file by which a client that watches its folder says that it does."""
_STORED = "mailbox"
_OPEN = 64
"""The most letters to one client that may be waited for."""
_STALE, _LOOK = 60.0, 2.0
"""Seconds without a sign of life after which a client is away, and between two looks for one."""
_BEAT, _SEEN = 4096, 2000
"""The most bytes of a sign of life, and how many of a client are known again."""
_SHORTEST, _LONGEST = 0.01, 0.1
"""Seconds between two looks for answers: at first, and after a while without any."""


class Store(Protocol):
    """Keeps values over the server's end; a ledger does."""

    def say(self, key: str, value: Any) -> None:
        """Stores a JSON value under a key."""

    def said(self, key: str) -> Any:
        """The JSON value stored under a key, or None."""


class _Open(NamedTuple):
    """A letter that is waited for."""

    name: str
    digest: str
    """Of its message."""
    size: int
    """Of the message's arrays, in bytes."""


class Mailbox(Transport):
    """Letters under names that nobody can guess; what answers none of those that are waited for is not read.

    A server that starts again sends the same message under the same name, so that an answer on its way counts. A client
    that watches its folder leaves signs of life, and is away without them; one that never did is served by hand, and is
    always there.
    """

    def __init__(self, shared: Shared, clients: Callable[[], Mapping[str, Correspondent]], store: Store) -> None:
        """`clients` are those with a key at present."""
        self.shared, self._clients, self.store = shared, clients, store
        kept = store.said(_STORED) or {}
        self.run: str = kept.get("run") or secrets.token_hex(16)
        """What letters of this run have in common with no other's."""
        self._earlier = {id: _Open(*about) for id, about in kept.get("open", {}).items()}
        self._open: dict[str, _Open] = {}
        self._beats: dict[str, tuple[collections.deque[str], float]] = {}
        """Each client's last signs of life, of which none counts twice, and when the last one was seen."""
        self._clock, self._looked = awake(), -_LOOK
        self._unsent: dict[str, bytes] = {}
        """Letters that could not be written yet."""
        self._told = ""
        """What was last said of a folder that cannot be used."""
        self._come: collections.deque[Delivery] = collections.deque()
        shared.check()
        self._keep()

    @property
    def clients(self) -> Mapping[str, Correspondent]:
        """The clients with a key, as it is at present."""
        return self._clients()

    def post(self, name: str, message: Message) -> None:
        client = self.clients.get(name)
        if client is None:
            return self._come.append(Delivery(name, None, "has no key here"))
        packed = pack(message)
        about = _Open(name, hashlib.sha256(packed).hexdigest(), message.size)
        known = {open: id for id, open in (self._earlier | self._open).items()}
        id = known.get(about) or secrets.token_hex(16)
        self._earlier.pop(id, None)
        self._open[id] = about
        for old in [old for old, open in self._open.items() if open.name == name][:-_OPEN]:
            self._reached(functools.partial(self._forget, old))
        self._keep()
        self._unsent[id] = client.sealed({"run": self.run, "letter": id}, packed)
        self._reached(functools.partial(self._send, id))

    def tell(self, name: str, message: Message) -> bool:
        """Sends a message that a client may go without: as any other."""
        self.post(name, message)
        return True

    def poll(self, timeout: float) -> Delivery | None:
        until, pause = self.now() + timeout, _SHORTEST
        while True:
            for id in list(self._unsent):
                self._reached(functools.partial(self._send, id))
            for id in list(self._open):
                self._reached(functools.partial(self._look, id))
            if self._come:
                return self._come.popleft()
            if self.now() >= until:
                return None
            time.sleep(min(pause, max(until - self.now(), 0.0)))
            pause = min(1.2 * pause, _LONGEST)

    def present(self) -> Sequence[str]:
        if self.now() >= self._looked + _LOOK:
            self._looked = self.now()
            for name, client in self.clients.items():
                self._listen(name, client)
        away = {name for name, (_, seen) in self._beats.items() if self.now() > seen + _STALE}
        return [name for name in self.clients if name not in away]

    def now(self) -> float:
        return self._clock()

    def close(self) -> None:
        """Removes letters that nobody waits for any more."""
        self._open, self._earlier = self._earlier | self._open, {}
        for id in list(self._open):
            self._reached(functools.partial(self._forget, id))
        self._keep()

    def _reached(self, action: Callable[[], None]) -> None:
        """Does something with the folder; where it cannot be used, that is told once, and tried again later."""
        try:
            action()
        except FederationError as error:
            if str(error) != self._told:
                _LOG.warning("%s; the server goes on trying.", error)
            self._told = str(error)

    def _send(self, id: str) -> None:
        self.shared.write((TASKS, self._open[id].name), f"{id}.letter", self._unsent[id])
        del self._unsent[id]

    def _look(self, id: str) -> None:
        """Takes the answer to a letter, if it is there; what is none is removed, and told of."""
        name, _, size = self._open[id]
        client = self.clients.get(name)
        if client is None:  # its key was revoked
            return
        try:
            letter = self.shared.read((ANSWERS, name), f"{id}.letter", largest(size))
            if letter is None:
                return
            about, content = client.opened(letter)
            if about.get("run") != self.run or about.get("letter") != id:
                raise DamagedFileError("This letter answers another one.")
            message = unpack(content, largest=size)
        except DamagedFileError as error:
            _LOG.warning("%s: a file in its folder of answers: %s", name, error)
            return self.shared.remove((ANSWERS, name), f"{id}.letter")
        self._come.append(Delivery(name, message))  # first, since the folder may be gone by now
        self._forget(id)
        self._keep()

    def _listen(self, name: str, client: Correspondent) -> None:
        """Sees whether a client has left a new sign of life."""
        try:
            letter = self.shared.read((ANSWERS, name), BEAT, _BEAT)
            beat = None if letter is None else client.opened(letter).about.get("beat")
        except InputError:
            return
        seen, _ = self._beats.get(name, (collections.deque[str](maxlen=_SEEN), 0.0))
        if isinstance(beat, str) and beat not in seen:
            seen.append(beat)
            self._beats[name] = seen, self.now()

    def _forget(self, id: str) -> None:
        name = self._open.pop(id).name
        self._unsent.pop(id, None)
        self.shared.remove((TASKS, name), f"{id}.letter")
        self.shared.remove((ANSWERS, name), f"{id}.letter")

    def _keep(self) -> None:
        self.store.say(_STORED, {"run": self.run, "open": {**self._earlier, **self._open}})
