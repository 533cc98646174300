"""A federation's client: reads its data file and answers the server's messages."""

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from partita.data import federate
from partita.data.disclosure import Limits
from partita.engines.endpoint import ClientEndpoint
from partita.errors import DiskError, FederationError, InputError
from partita.federation.beginning import beginning
from partita.federation.config import Federation
from partita.federation.link import Letter, Link, UnreachableError
from partita.federation.scheme import PRIVATE_ERROR, Own, Scheme
from partita.io.wire import Message
from partita.models.prior import base_of

__all__ = ["Client", "attend", "failed", "usable"]

_LOG = logging.getLogger("partita")
_CONFIG_MISMATCH = (
    "Its federation.toml differs from the server's in columns, model, method, prior or seed: copy the server's."
)
_PULL = 30.0
"""Seconds of a pull, after which there is another."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds before a server that cannot be reached is tried again: at first, and in the end."""


def usable(path: Path, federation: Federation, limits: Limits) -> Own:
    """A client's rows; an `InputError` unless they fit the federation's model and its limits on disclosure."""
    begun = beginning(federation)
    own = begun.read(path, path.stem)
    begun.released(own, limits)
    return own


class Client:
    """Answers the stages of round 0 with summaries of its columns, and then tasks."""

    def __init__(self, name: str, federation: Federation, path: Path, limits: Limits | None = None) -> None:
        """Limits are the federation's unless its owner gives stricter ones."""
        self.name, self.federation, self.path = name, federation, path
        self.limits = limits or federation.disclosure
        self._sites: dict[str, ClientEndpoint] = {}
        self._foreseen: Callable[[], Scheme] | None = None
        """What is, or will probably be, agreed on, until it has been prepared for."""

    def handle(self, message: Message) -> Message:
        """The answer to a message, or an error message that contains no data.

        The full error is written to the client's own log.
        """
        about = {"name": self.name, "task": str(message.header.get("task", ""))}
        try:
            if message.header.get("kind") == "refused":
                _LOG.warning("%s: refused by the server: it %s", self.name, message.words("reason", ""))
                return Message({**about, "kind": "ack"}, {})
            if message.header.get("kind") == "name":
                return Message({**about, "kind": "name"}, {})
            if message.header.get("digest") != self.federation.digest:
                raise FederationError(_CONFIG_MISMATCH, _CONFIG_MISMATCH)
            agreed: Any = message.header.get("agreed", {})
            if message.header.get("kind") == "hello":
                own, scheme = self._own, self._beginning.restored(agreed)
                answer = scheme.released(own, self.limits)
                sums = {"rows": own.size, "incomplete": own.incomplete, "answer": answer}
                self._foreseen = lambda: scheme if scheme.complete else scheme.taken([answer])
                return Message({**about, "kind": "hello", **sums}, {})
            if message.header.get("kind") == "agreed":
                self._foreseen = lambda: self._beginning.restored(agreed)
                return Message({**about, "kind": "ack"}, {})
            return self._site(agreed).handle(message)
        except Exception as error:
            return failed(self.name, message, error)

    def prepare(self) -> None:
        """Compiles for the tasks to come, where what is agreed on shows their shapes; called while nothing is asked."""
        foreseen, self._foreseen = self._foreseen, None
        with contextlib.suppress(Exception):  # the answer to a task will report it
            if foreseen is not None and (scheme := foreseen()).complete:
                self._endpoint(scheme).prepare()

    def check(self) -> None:
        """Reads the file; an `InputError` unless it can be used."""
        self._beginning.released(self._own, self.limits)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self._own.size

    def stages_left(self, message: Message) -> int:
        """How many stages of round 0 are left after what a message says is agreed on."""
        agreed: Any = message.header.get("agreed", {})
        return self._beginning.restored(agreed).stages_left

    def tightness(self, message: Message, answer: Message) -> tuple[float, float]:
        """Of a task and its answer: see `ClientEndpoint.tightness`."""
        return self._site(message.header.get("agreed", {})).tightness(message, answer)

    @functools.cached_property
    def _beginning(self) -> Scheme:
        return beginning(self.federation)

    @functools.cached_property
    def _own(self) -> Own:
        return self._beginning.read(self.path, self.name)

    def _site(self, agreed: Any) -> ClientEndpoint:
        key = repr(agreed)
        if key not in self._sites:
            scheme = self._beginning.restored(agreed)
            scheme.released(self._own, self.limits)  # a late client has disclosed nothing of its columns before
            self._sites = {key: self._endpoint(scheme)}
        return self._sites[key]

    def _endpoint(self, scheme: Scheme) -> ClientEndpoint:
        parts = federate([scheme.table(self._own)], weights=[scheme.weights(self._own)], names=[self.name])
        recipe = scheme.method().recipe(scheme.model())
        return ClientEndpoint(self.name, recipe, base_of(scheme.prior()), parts.shards[0])


def failed(name: str, message: Message, error: Exception) -> Message:
    """The reply to a message that could not be answered; the full error is only in the client's own log."""
    _LOG.warning("%s: %s: %s", name, type(error).__name__, error)
    public = error.public if isinstance(error, InputError) else None
    about = {"name": name, "task": str(message.header.get("task", ""))}
    return Message({**about, "kind": "error", "reason": public or PRIVATE_ERROR}, {})


def attend(
    handle: Callable[[Message], Message],
    link: Link,
    say: Callable[[str], object],
    idle: Callable[[], object] = lambda: None,
    rest: Callable[[float], object] = time.sleep,
) -> None:
    """Answers the server's messages until it is interrupted.

    A server that cannot be reached is tried again after growing pauses, and the reason is printed once. The same goes
    for a message that cannot be answered because a disk is full. An answer is sent again until the server has it.
    `idle` is called when there is nothing to do.
    """
    pause, said, connected = _FIRST_PAUSE, "", False
    letter: Letter | None = None
    answer: Message | None = None
    while True:
        try:
            if not connected:
                link.connect()
                connected = True
            letter = letter or link.pull(_PULL)
            answer = answer or (letter and handle(letter.message))
            if letter and answer:
                link.push(letter, answer)
            letter, answer, pause = None, None, _FIRST_PAUSE
            if said:
                say("connected.")
            said = ""
            idle()
        except (UnreachableError, DiskError) as error:
            connected = letter is not None and answer is None  # the answer fails, not the link
            if str(error) != said:
                say(f"{str(error).removesuffix('.')}; the client goes on trying.")
            said = str(error)
            rest(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_PAUSE)
