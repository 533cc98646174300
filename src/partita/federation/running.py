"""A server and a client as programs, each of one process."""

import contextlib
import dataclasses
import logging
import logging.handlers
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from partita.engines.remote import Transport
from partita.errors import FederationError, InputError
from partita.federation.client import attend
from partita.federation.config import Federation, host_of
from partita.federation.guarded import Guarded, Owner, guarded
from partita.federation.links import dial, listen, reader
from partita.federation.serve import LEDGER_FILE, SERVER_LOCK, serve
from partita.federation.status import read_status
from partita.federation.waiting import waiting
from partita.io.lock import hold
from partita.storage.ledger import Ledger

__all__ = ["Way", "run_client", "run_letter", "run_server"]

_LOOK, _SHARE = 5.0, 20.0
"""Seconds between two looks at what the server waits for, and how many times longer than a look they are."""
_LOG_BYTES = 2**20
"""How long a log becomes before it begins anew; one earlier log is kept."""


_Listen = Callable[[Path, Federation, Ledger], contextlib.AbstractContextManager[Transport]]


def run_server(folder: Path, federation: Federation, listen: _Listen = listen) -> str:
    """Runs a federation's server until the run ends, with the link that `listen` opens; returns the final message."""
    folder = folder.resolve()
    jax.config.update("jax_enable_x64", True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(folder / SERVER_LOCK, wait=False))
        except BlockingIOError:
            raise FederationError(
                f"A server of {folder} is running already: `partita status {folder}` shows it."
            ) from None
        stack.enter_context(_logged(folder / "server.log"))
        ledger = Ledger(folder / LEDGER_FILE)
        link = stack.enter_context(listen(folder, federation, ledger))
        ledger.say("ended", None)
        stack.enter_context(_narrated(folder, federation))
        try:
            return serve(folder, federation, link).message
        except Exception as error:
            if not isinstance(error, InputError):
                logging.getLogger("partita").exception("The server failed.")
            with contextlib.suppress(InputError):  # such as a full disk: the error before is the one to tell
                ledger.say("ended", {"status": "failed", "message": f"The server failed: {error}"})
            if isinstance(error, InputError):
                raise FederationError(f"{error} Continue with `partita resume {folder}`.") from error
            raise


class Way(NamedTuple):
    """How a client reaches its server, where that is not as federation.toml says."""

    address: str | None = None
    proxy: str | None = None
    authority: Path | None = None
    """A certificate of the site's own."""

    def through(self, federation: Federation) -> Federation:
        """The federation with the address by which it is reached."""
        if self.address is None:
            return federation
        host_of(self.address)
        return dataclasses.replace(federation, server=dataclasses.replace(federation.server, address=self.address))


_DIRECT, _DEFAULTS = Way(), Owner()


def run_client(
    folder: Path, federation: Federation, name: str, data: Path, owner: Owner = _DEFAULTS, way: Way = _DIRECT
) -> None:
    """Runs a client until it is interrupted, in this process alone."""
    with (
        _client(folder, federation, name, data, owner) as client,
        dial(folder, federation, name, way.proxy, way.authority) as link,
    ):
        say = logging.getLogger("partita").warning
        attend(client.handle, link, lambda line: say("%s: %s", name, line), client.client.prepare)


def run_letter(
    folder: Path, federation: Federation, name: str, data: Path, owner: Owner, letter: Path, answers: Path
) -> str:
    """Answers one letter that was brought by hand; a sentence on where the answer is."""
    from partita.federation.mailbox.client import answer_by_hand
    from partita.federation.mailbox.office import ANSWERS

    with _client(folder, federation, name, data, owner) as client:
        written = answer_by_hand(reader(folder, name), client.handle, letter, answers)
    return f"{written} is the answer: take it to {ANSWERS}/{name} in the server's folder, under the same name."


@contextlib.contextmanager
def _client(folder: Path, federation: Federation, name: str, data: Path, owner: Owner) -> Iterator[Guarded]:
    """The client of this name, of which there is one in a folder at a time."""
    if name not in federation.clients:
        raise FederationError(
            f"{name!r} is not among the clients of {federation.name}: {', '.join(federation.clients)}."
        )
    jax.config.update("jax_enable_x64", True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(folder / f".client-{name}", wait=False))
        except BlockingIOError:
            raise FederationError(
                f"The client {name} is running already in {folder}: stop that one first, or give each its own folder."
            ) from None
        stack.enter_context(_logged(folder / f"client-{name}.log"))
        if owner.anew:
            (folder / f"letters-{name}.json").unlink(missing_ok=True)
        yield guarded(folder, federation, name, data, owner)


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Writes what partita logs to a bounded file and to the terminal."""
    kept = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
    kept.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("partita")
    for handler in (kept, shown):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in (kept, shown):
            logger.removeHandler(handler)
            handler.close()


@contextlib.contextmanager
def _narrated(folder: Path, federation: Federation) -> Iterator[None]:
    """Prints what the server waits for, whenever that changes."""
    ended = threading.Event()

    def narrate() -> None:
        said = ""
        while True:
            began = time.monotonic()
            with contextlib.suppress(InputError):
                line = waiting(read_status(folder, federation.name, federation.clients))
                if line != said:
                    print(line, flush=True)
                said = line
            # what a look costs grows with the run, and what looks cost in all does not
            if ended.wait(max(_LOOK, _SHARE * (time.monotonic() - began))):
                return

    thread = threading.Thread(target=narrate, name="narrator", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
