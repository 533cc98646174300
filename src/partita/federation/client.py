"""A federation's client: reads its data file and answers the server's messages."""

import functools
import logging
from pathlib import Path
from typing import Any

from partita.data import federate
from partita.data.frame import Frame
from partita.data.preprocess import Encoding, federated, summarise
from partita.data.table import Table
from partita.engines.endpoint import ClientEndpoint
from partita.errors import DataError, FederationError, InputError
from partita.federation import rows
from partita.federation.config import Federation
from partita.io.wire import Message
from partita.models import Model

__all__ = ["Client", "usable"]

_LOG = logging.getLogger("partita")
_CONFIG_MISMATCH = (
    "Its federation.toml differs from the server's in columns, model, method, prior or seed: copy the server's."
)
_PRIVATE_ERROR = "The client cannot use its data; the details are only in the client's log."


def usable(path: Path, federation: Federation) -> Frame:
    """A client's rows; an `InputError` unless they fit the federation's columns and its model."""
    frame = rows.read(path, federation.data)
    own = federated([frame])
    _check(federation.built_model(len(own.names)), own.encode(frame), federation.data.response)
    return frame


def _check(model: Model, table: Table, response: str) -> None:
    """Checks the rows as the model does; the server is told what the model needs, and no value."""
    try:
        model.check(table)
    except InputError as error:
        why = f": column {response!r} does not fit the model, {error.public}" if error.public else ""
        public = f"The client cannot use its data{why}." if why else _PRIVATE_ERROR
        raise DataError(f"Column {response!r} does not fit the model: {error}.", public) from None


class Client:
    """Enrols with a summary of its columns, and answers tasks once the encoding is agreed on."""

    def __init__(self, name: str, federation: Federation, path: Path) -> None:
        self.name, self.federation, self.path = name, federation, path
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
            if message.header.get("kind") == "hello":
                told = {"rows": self._frame.size, "summary": summarise(self._frame).to_dict()}
                return Message({**about, "kind": "hello", **told}, {})
            return self._site(message.header).handle(message)
        except Exception as error:
            _LOG.warning("%s: %s: %s", self.name, type(error).__name__, error)
            public = error.public if isinstance(error, InputError) else None
            return Message({**about, "kind": "error", "reason": public or _PRIVATE_ERROR}, {})

    @functools.cached_property
    def _frame(self) -> Frame:
        return usable(self.path, self.federation)

    def _site(self, header: dict[str, Any]) -> ClientEndpoint:
        contents = header.get("encoding")
        key = repr(contents)
        if key not in self._sites:
            encoding = Encoding.from_dict(contents or {})
            table = encoding.encode(self._frame)
            model = self.federation.built_model(len(encoding.names))
            _check(model, table, self.federation.data.response)
            prior = self.federation.built_prior(model, len(encoding.names))
            recipe = self.federation.built_method(model).recipe(model)
            shard = federate([table], names=[self.name]).shards[0]
            self._sites = {key: ClientEndpoint(self.name, recipe, prior, shard)}
        return self._sites[key]
