"""A federation's client: reads its data file and answers the server's messages."""

import functools
import logging
from pathlib import Path
from typing import Any

from partita.data import federate
from partita.engines.endpoint import ClientEndpoint
from partita.errors import FederationError, InputError
from partita.federation.beginning import beginning
from partita.federation.config import Federation
from partita.federation.disclosure import Limits, released
from partita.federation.scheme import PRIVATE_ERROR, Own, Scheme
from partita.io.wire import Message

__all__ = ["Client", "usable"]

_LIMITS = Limits()
_LOG = logging.getLogger("partita")
_CONFIG_MISMATCH = (
    "Its federation.toml differs from the server's in columns, model, method, prior or seed: copy the server's."
)


def usable(path: Path, federation: Federation, limits: Limits) -> Own:
    """A client's rows; an `InputError` unless they fit what the federation fits, and may be told of."""
    begun = beginning(federation)
    own = begun.read(path, path.stem)
    released(begun, own, limits)
    return own


class Client:
    """Answers the stages of round 0 with summaries of its columns, and then tasks."""

    def __init__(self, name: str, federation: Federation, path: Path, limits: Limits = _LIMITS) -> None:
        self.name, self.federation, self.path, self.limits = name, federation, path, limits
        self._sites: dict[str, ClientEndpoint] = {}

    def handle(self, message: Message) -> Message:
        """The answer to a message, or an error message that contains no data.

        The full error is written to the client's own log.
        """
        about = {"name": self.name, "task": str(message.header.get("task", ""))}
        try:
            if message.header.get("kind") == "refused":
                _LOG.warning("%s: refused by the server: it %s", self.name, message.words("reason", ""))
                return Message({**about, "kind": "ack"}, {})
            if message.header.get("digest") != self.federation.digest:
                raise FederationError(_CONFIG_MISMATCH, _CONFIG_MISMATCH)
            agreed: Any = message.header.get("agreed", {})
            if message.header.get("kind") == "hello":
                own, scheme = self._own, self._beginning.restored(agreed)
                told = {"rows": own.size, "incomplete": own.incomplete, "answer": released(scheme, own, self.limits)}
                return Message({**about, "kind": "hello", **told}, {})
            return self._site(agreed).handle(message)
        except Exception as error:
            _LOG.warning("%s: %s: %s", self.name, type(error).__name__, error)
            public = error.public if isinstance(error, InputError) else None
            return Message({**about, "kind": "error", "reason": public or PRIVATE_ERROR}, {})

    def check(self) -> None:
        """Reads the file; an `InputError` unless it can be used."""
        released(self._beginning, self._own, self.limits)

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
            released(scheme, self._own, self.limits)  # of one that comes late, nothing of its columns was told before
            parts = federate([scheme.table(self._own)], weights=[scheme.weights(self._own)], names=[self.name])
            recipe = scheme.method().recipe(scheme.model())
            self._sites = {key: ClientEndpoint(self.name, recipe, scheme.prior(), parts.shards[0])}
        return self._sites[key]
