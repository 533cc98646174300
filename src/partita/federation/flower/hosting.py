"""The server's one port: a thread of this process that answers clients' calls."""

import asyncio
import contextlib
import errno
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
_CLOSING, _SWEEPS = 0.05, 10
"""Seconds in which connections that were broken off are closed, and how often those that are left are looked for."""
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


@contextlib.contextmanager
def hosted(
    application: Callable[..., Awaitable[None]], listener: socket.socket, certificate: Path, key: Path
) -> Iterator[None]:
    """Answers calls at a socket, over TLS, until the block ends."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        trust.load_cert_chain(certificate, key)
    except OSError as error:
        raise FederationError(
            f"{certificate} and {key.name} cannot be used ({error}): make them again with "
            "`partita federation credentials`."
        ) from None
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
        server = await loop.create_server(
            lambda: _Protocol(config, state, {}, loop), sock=listener, ssl=trust, ssl_handshake_timeout=_HEAD
        )
        # a connection that ends in an odd way is nobody's business
        loop.set_exception_handler(lambda _, about: _LOG.debug("a connection: %s", about.get("message")))
        began.set()
        await ended.wait()
        server.close()
        for _ in range(_SWEEPS):  # a connection that was accepted before may still be on its way to a transport
            for task in list(state.tasks):
                task.cancel()
            open_ones = [connection.transport for connection in state.connections]
            for transport in (*open_ones, *getattr(loop, "_transports", {}).values()):  # also those that begin TLS
                transport.abort()
            await asyncio.sleep(_CLOSING / _SWEEPS)
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
