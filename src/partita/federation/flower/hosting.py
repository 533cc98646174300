"""The server's one port: a thread of this process that answers clients' calls."""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from partita.errors import FederationError, MissingExtraError
from partita.federation.config import host_and_port, loopback
from partita.io.watched import Watched

__all__ = ["hosted", "listening"]

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

_LOG = logging.getLogger("partita")
_FREED = 15.0
"""Seconds in which an earlier server that was killed has left its port."""
_HEAD, _IDLE = 10.0, 60.0
"""Seconds in which a call's headers, or the beginning of a connection, have come; and until an idle one is closed."""
_TURNS = 5
"""Turns of a loop in which what was cancelled or broken off has ended."""
_FULL = 0.5
"""Seconds after which a connection is accepted where there were too many."""
_CONNECTIONS = 4096
"""Connections at once; each needs a file descriptor."""


class _Protocol(H11Protocol):
    """A connection that is closed when a call's headers are long in coming."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _await_head(self) -> None:
        """Starts the time when there is a part of a call's headers, and stops it when they have come."""
        answering = self.cycle is not None and not self.cycle.response_complete
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if answering or not begun:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(_HEAD, self.transport.abort)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


def listening(address: str, patience: float = _FREED) -> socket.socket:
    """A socket that listens at the server's port: on all interfaces, unless its host is on loopback.

    Waits until an earlier server has left the port; an `InputError` where it cannot be had.
    """
    host, port = host_and_port(address)
    six = ":" in host
    where = host if loopback(host) else "::" if six else "0.0.0.0"
    until = time.monotonic() + patience
    while True:
        try:
            # the protocol is named, without which asyncio lets small pieces of an answer wait for one another
            listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
            listener.bind((where, port))
            listener.listen(1024)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise FederationError(
                    f"The server cannot listen at port {port} ({os.strerror(error.errno or 0)}): end the program that "
                    "does, or choose another in server.address of federation.toml and hand out the clients' folders "
                    "again."
                ) from None
            time.sleep(0.2)


def _trust(certificate: Path, key: Path) -> ssl.SSLContext:
    """What the server shows of itself."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        trust.load_cert_chain(certificate, key)
    except OSError as error:
        raise FederationError(
            f"{certificate} and {key.name} cannot be used ({error}): make them again with "
            "`partita federation credentials`."
        ) from None
    return trust


class _Acceptor:
    """Accepts connections, and knows those that have not begun TLS yet, so that all of them can be closed."""

    def __init__(
        self, listener: socket.socket, trust: Callable[[], ssl.SSLContext], made: Callable[[], asyncio.Protocol]
    ) -> None:
        self._loop, self._listener, self._trust, self._made = asyncio.get_running_loop(), listener, trust, made
        self._beginning = set[asyncio.Task[None]]()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # such as no file descriptor left
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(_FULL, self._listen)
            return
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # of one that does not begin TLS, or not well
            await self._loop.connect_accepted_socket(
                self._made, connection, ssl=self._trust(), ssl_handshake_timeout=_HEAD
            )

    async def close(self) -> None:
        """Accepts no more, and closes the connections that have not begun TLS."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        await _turns()  # in which the last that was accepted has a transport, which can be closed
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)


async def _turns() -> None:
    """Lets a loop do what is ready, and what follows from that."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@contextlib.contextmanager
def hosted(
    application: Callable[..., Awaitable[None]], listener: socket.socket, certificate: Path, key: Path
) -> Iterator[None]:
    """Answers calls at a socket, over TLS, until the block ends; a certificate that is renewed meanwhile is shown."""
    trust = Watched(functools.partial(_trust, certificate, key), [certificate, key])
    _more_files()
    began, ended, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def answer() -> None:
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=int(_IDLE),
            limit_concurrency=_CONNECTIONS,
        )
        config.load()
        state = ServerState()
        # a connection that ends in an odd way is nobody's business
        loop.set_exception_handler(lambda _, about: _LOG.debug("a connection: %s", about.get("message")))
        acceptor = _Acceptor(listener, trust, lambda: _Protocol(config, state, {}, loop))
        began.set()
        await ended.wait()
        await acceptor.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await _turns()
        for task in state.tasks:  # whose answers nobody reads any more
            task.cancel()
        await _turns()
        await loop.shutdown_default_executor()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(answer())

    thread = threading.Thread(target=run, name="clients' calls", daemon=True)
    thread.start()
    began.wait(10.0)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10.0)
        listener.close()


def _more_files() -> None:
    """Lets this process have as many open connections as the system allows."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(hard, 2 * _CONNECTIONS) if hard != resource.RLIM_INFINITY else 2 * _CONNECTIONS
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
