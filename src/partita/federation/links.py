"""Which transport a federation uses, by its server's address."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from partita.engines.remote import Transport
from partita.errors import FederationError
from partita.federation.config import Federation, shared_folder
from partita.federation.credentials import was_revoked
from partita.federation.link import Link
from partita.io.watched import Watched
from partita.storage.ledger import Ledger

if TYPE_CHECKING:
    from partita.federation.mailbox.client import Reader

__all__ = ["dial", "listen", "reader"]


def dial(
    folder: Path, federation: Federation, name: str, proxy: str | None = None, authority: Path | None = None
) -> Link:
    """A client's link to its server, with the key and the certificate in its folder.

    It goes through a proxy if one is given or the environment names one; the site's own `authority` is trusted too.
    """
    address = federation.server.address
    shared = shared_folder(address)
    if shared is not None:
        from partita.federation.mailbox.client import MailboxLink
        from partita.federation.mailbox.shared import Shared

        return MailboxLink(Shared(shared), reader(folder, name))
    from partita.federation.flower.dialling import FleetLink

    return FleetLink(address, folder / "ca.crt", folder / "keys" / name, proxy, authority)


def reader(folder: Path, name: str) -> "Reader":
    """What reads a client's letters, with the keys in its folder."""
    from partita.federation.certificates import SERVER_PUBLIC, private_key, public_key
    from partita.federation.mailbox.client import Reader
    from partita.federation.mailbox.envelope import Correspondent
    from partita.federation.mailbox.office import SERVER

    key, theirs = private_key(folder / "keys" / name), public_key(folder / SERVER_PUBLIC)
    return Reader(Correspondent(name, SERVER, key, theirs), folder / f"letters-{name}.json")


@contextlib.contextmanager
def listen(folder: Path, federation: Federation, ledger: Ledger) -> Iterator[Transport]:
    """The server's link to its clients, at its one port or in its folder; who has enrolled may still be on its way."""
    public = {name: folder / "keys" / f"{name}.pub" for name in federation.clients}
    for name, path in public.items():
        if not path.exists() and not was_revoked(folder, name):
            raise FederationError(f"There is no {path}: make the clients' keys with `partita federation credentials`.")
    shared = shared_folder(federation.server.address)
    if shared is not None:
        with _mailbox(folder, shared, public, ledger) as mailbox:
            yield mailbox
            return
    enrolled = list((ledger.said("roster") or {}).get("rows", {}))
    from partita.federation.flower.calls import fleet
    from partita.federation.flower.hosting import hosted, listening
    from partita.federation.flower.office import Office
    from partita.federation.flower.signature import Keyring, steady

    now = steady()
    keys = Keyring(public, now)
    office = Office(keys.keys, enrolled, federation.run.deadline)
    with (
        contextlib.closing(listening(federation.server.address)) as listener,
        hosted(fleet(office, keys, now), listener, folder / "server.pem", folder / "server.key"),
    ):
        yield office


@contextlib.contextmanager
def _mailbox(folder: Path, shared: Path, public: Mapping[str, Path], ledger: Ledger) -> Iterator[Transport]:
    """Letters stay where a server is interrupted, since it may go on; a run that has ended leaves none."""
    from partita.federation.certificates import SERVER_KEY, private_key, public_key
    from partita.federation.mailbox.envelope import Correspondent
    from partita.federation.mailbox.office import SERVER, Mailbox
    from partita.federation.mailbox.shared import Shared

    key = private_key(folder / SERVER_KEY)

    def known(name: str) -> Correspondent | None:
        path = public[name]
        return Correspondent(SERVER, name, key, public_key(path)) if path.exists() else None

    # each by itself, so that a file that cannot be read keeps no other client's key from being revoked
    watched = {name: Watched(functools.partial(known, name), [path]) for name, path in public.items()}

    def clients() -> dict[str, Correspondent]:
        found = {name: client() for name, client in watched.items()}
        return {name: client for name, client in found.items() if client is not None}

    mailbox = Mailbox(Shared(shared), clients, ledger)
    yield mailbox
    mailbox.close()
