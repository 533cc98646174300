"""A client with its owner's guard: it answers only what was agreed to, and nothing leaves without a line in the log."""

from pathlib import Path
from typing import NamedTuple

from partita.data.disclosure import Limits
from partita.engines.endpoint import ELL, ESTIMATE
from partita.errors import DiskError
from partita.federation.client import Client, failed
from partita.federation.config import Federation
from partita.federation.guard import Guard
from partita.federation.sent import SentLog
from partita.io.wire import Message

__all__ = ["Guarded", "Owner", "guarded", "log_of"]


class Guarded:
    """Answers messages as its client does, where the guard allows it."""

    def __init__(self, client: Client, guard: Guard, log: SentLog) -> None:
        self.client, self.guard, self.log = client, guard, log

    def handle(self, message: Message) -> Message:
        """The answer to a message, which may leave, or an error message that contains no data.

        A `DiskError` where the account or the log cannot be written: then nothing leaves.
        """
        try:
            answer = self._released(message)
            self.log.add(answer)
        except DiskError:
            raise
        except Exception as error:  # whatever a server sends, the client goes on
            return failed(self.client.name, message, error)
        return answer

    def _released(self, message: Message) -> Message:
        """The client's answer; raises where the guard refuses."""
        if message.header.get("digest") == self.client.federation.digest:
            self.guard.check(message, self.client.stages_left)
        answer = self.client.handle(message)
        kind = answer.header.get("kind")
        if kind == "hello":
            self.guard.record(message, self.client.stages_left(message))
        elif kind in ("update", ELL, ESTIMATE):
            precision, own = self.client.tightness(message, answer)
            self.guard.release(message, precision, max(own, self.client.rows))
        return answer


class Owner(NamedTuple):
    """What a client's owner has decided."""

    limits: Limits | None = None
    """Limits on disclosure; the federation's where this is None."""
    visits: int | None = None
    """How many tasks of a run it answers; the federation's number where this is None."""
    log: Path | None = None
    """The log of what was sent; beside the data where this is None."""
    anew: bool = False
    """Whether a new run begins, and what was answered before is forgotten."""


def guarded(folder: Path, federation: Federation, name: str, data: Path, owner: Owner) -> Guarded:
    """The client of this name in its folder, with its account of answers there, and a log beside its data."""
    guard = Guard(federation, folder / f"answered-{name}.json", owner.visits, owner.anew)
    log = SentLog(owner.log or log_of(data, name), f"{federation.name} at {federation.server.address}")
    return Guarded(Client(name, federation, data, owner.limits), guard, log)


def log_of(data: Path, name: str) -> Path:
    """The log's default place: beside the data."""
    return data.with_name(f"{data.name}.sent-by-{name}.log")
