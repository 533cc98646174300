"""Which transport a federation uses, by its server's address."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from partita.engines.remote import Transport
from partita.federation.config import Federation
from partita.federation.link import Link

__all__ = ["dial", "listen"]


def dial(
    folder: Path, federation: Federation, name: str, proxy: str | None = None, authority: Path | None = None
) -> Link:
    """A client's link to its server, with the key and the certificate in its folder.

    It goes through a proxy if one is given or the environment names one; the site's own `authority` is trusted too.
    """
    from partita.federation.flower.dialling import FleetLink

    address = federation.server.address
    return FleetLink(address, folder / "ca.crt", folder / "keys" / name, proxy, authority)


@contextlib.contextmanager
def listen(folder: Path, federation: Federation, enrolled: Iterator[str] | list[str]) -> Iterator[Transport]:
    """The server's link to its clients, at its one port; those that are `enrolled` may still be on their way."""
    from partita.federation.flower.calls import fleet
    from partita.federation.flower.hosting import hosted, listening
    from partita.federation.flower.office import Office
    from partita.federation.flower.signature import Keyring, steady

    now = steady()
    keys = Keyring({name: folder / "keys" / f"{name}.pub" for name in federation.clients}, now)
    office = Office(keys.keys, enrolled, federation.run.deadline)
    with (
        contextlib.closing(listening(federation.server.address)) as listener,
        hosted(fleet(office, keys, now), listener, folder / "server.pem", folder / "server.key"),
    ):
        yield office
