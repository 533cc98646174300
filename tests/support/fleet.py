"""A server's port and clients' links to it in one process, over TLS and with keys."""

import contextlib
import socket
import threading

from partita.federation.certificates import make_authority, make_key
from partita.federation.flower.calls import fleet
from partita.federation.flower.dialling import FleetLink
from partita.federation.flower.hosting import hosted, listening
from partita.federation.flower.office import Office
from partita.federation.flower.signature import Keyring, steady
from partita.io.wire import Message

NAMES = ("east", "west")


class Place:
    """A folder with certificates and keys, and the port of its server."""

    def __init__(self, folder, names=NAMES):
        self.folder, self.names = folder, names
        make_authority(folder, "127.0.0.1")
        for name in (*names, "stranger"):
            make_key(folder / "keys" / name, folder / "keys" / f"{name}.pub")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{found.getsockname()[1]}"

    @contextlib.contextmanager
    def server(self, now=None, **options):
        """The server's side; `now` is its time of day."""
        now = now or steady()
        keys = Keyring({name: self.folder / "keys" / f"{name}.pub" for name in self.names}, now)
        office = Office(keys.keys, **options)
        listener = listening(self.address)
        with hosted(fleet(office, keys, now), listener, self.folder / "server.pem", self.folder / "server.key"):
            yield office

    def link(self, name, **options):
        return FleetLink(self.address, self.folder / "ca.crt", self.folder / "keys" / name, **options)

    @contextlib.contextmanager
    def client(self, name, answer, **options):
        """A client that answers every message in a thread of its own, until the block ends."""
        ended = threading.Event()

        def run():
            with self.link(name, **options) as link:
                link.connect()
                while not ended.is_set():
                    letter = link.pull(0.2)
                    if letter is not None:
                        link.push(letter, answer(letter.message))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def echoed(message):
    """An answer with what came."""
    return Message({"kind": "echo", "task": message.header["task"]}, message.arrays)
