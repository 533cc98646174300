"""The client's side of a transport: it dials, takes messages, hands back answers. The server's side is `Transport`."""

import abc
from typing import NamedTuple, Self

from partita.errors import FederationError
from partita.io.wire import Message

__all__ = ["Letter", "Link", "UnreachableError"]


class UnreachableError(FederationError):
    """The server cannot be reached, or does not let this client in, at present: one sentence with the remedy.

    The client says it, once, and goes on trying.
    """


class Letter(NamedTuple):
    """A message of the server, and what its answer must name."""

    identity: str
    """The transport's own name of the message; one that comes twice has the same."""
    message: Message


class Link(abc.ABC):
    """A client's way to its server. Only the client's own loop calls it, from one thread; it listens on nothing.

    Every method may raise an `UnreachableError`; then `connect` is called again, after a pause that grows. A server may
    be killed and come back between any two calls, so that nothing of a connection outlives an error: a letter that was
    pulled before may be pulled again, and an answer is pushed again until `push` returns.
    """

    @abc.abstractmethod
    def connect(self) -> None:
        """Introduces the client to the server, with its key."""

    @abc.abstractmethod
    def pull(self, timeout: float) -> Letter | None:
        """The next message for this client, or None after about `timeout` seconds."""

    @abc.abstractmethod
    def push(self, letter: Letter, answer: Message) -> None:
        """Hands in the answer to a letter: when it returns the server has it, or does not wait for it any more."""

    @abc.abstractmethod
    def close(self) -> None:
        """Tells the server that the client goes; raises nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
