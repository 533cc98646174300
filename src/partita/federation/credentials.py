"""The credentials of a federation's clients: their folders, and the keys by which the server knows them."""

import os
import shutil
from pathlib import Path

from partita.errors import FederationError, unknown
from partita.federation import certificates
from partita.federation.config import CONFIG_FILE, host_of, load
from partita.io import private

__all__ = ["accept", "hand_out", "issue_credentials", "own_key", "revoke", "was_revoked"]

_KEYS, _CLIENTS, _REVOKED = "keys", "clients", "revoked"


def issue_credentials(folder: Path) -> list[Path]:
    """Writes every client's folder from the current federation.toml; who has no key yet gets one.

    Where federation.toml was written by hand, the server's certificate is made too.
    """
    federation, written = load(folder), []
    if not (folder / certificates.SERVER_KEY).exists():
        certificates.make_authority(folder, host_of(federation.server.address))
    private.folder(folder / _KEYS)
    for name in federation.clients:
        handed = private.folder(folder / _CLIENTS / name)
        for file in (CONFIG_FILE, certificates.AUTHORITY, certificates.SERVER_PUBLIC):
            shutil.copy(folder / file, handed / file)
        if not _public(folder, name).exists() and not was_revoked(folder, name):
            certificates.make_key(private.folder(handed / _KEYS) / name, _public(folder, name))
        written.append(handed)
    return written


def hand_out(folder: Path, name: str, target: Path) -> str:
    """Moves a client's folder to a place such as a memory stick, with its private key, which leaves this machine.

    Returns:
        A sentence on what is there.

    """
    handed = _known(folder, name, folder / _CLIENTS / name)
    if target.exists():
        raise FederationError(f"{target} is there already: name a new folder.")
    key = handed / _KEYS / name
    has_key = key.exists()
    shutil.copytree(handed, target, copy_function=shutil.copy)
    private.tighten(target)
    if has_key:
        with (target / _KEYS / name).open("rb") as file:
            os.fsync(file.fileno())
        key.unlink()
        return f"{target} is the folder of {name}, with the only copy of its private key: take it there."
    return f"{target} is the folder of {name}, without a key: it has one, or makes it with `partita federation key`."


def own_key(folder: Path, name: str) -> tuple[Path, str]:
    """Makes a client's key in its own folder; the file of the public key, for the server, and its fingerprint."""
    _known(folder, name, folder)
    keys = private.folder(folder / _KEYS)
    if (keys / name).exists():
        raise FederationError(f"{name} has a key in {keys}: remove it first, if the server is to know another.")
    certificates.make_key(keys / name, folder / f"{name}.pub")
    return folder / f"{name}.pub", certificates.fingerprint(certificates.public_key(folder / f"{name}.pub"))


def accept(folder: Path, name: str, file: Path) -> str:
    """Makes the server know a client by the public key that it has sent; the key's fingerprint."""
    _known(folder, name, folder)
    key = certificates.public_key(file)
    for known in [*(folder / _KEYS).glob("*.pub"), *(folder / _KEYS / _REVOKED).glob("*.pub")]:
        whose = known.name.partition(".pub")[0]
        if certificates.public_key(known) == key and known != _public(folder, name):
            raise FederationError(f"This key was revoked, or is that of {whose}: ask {name} for another.")
    private.folder(folder / _KEYS)
    certificates.write_public(_public(folder, name), key)
    (folder / _CLIENTS / name / _KEYS / name).unlink(missing_ok=True)
    return certificates.fingerprint(key)


def revoke(folder: Path, name: str) -> None:
    """Makes the server not know a client's key any more, for good; another may be accepted."""
    _known(folder, name, folder)
    public = _public(folder, name)
    if not public.exists():
        raise FederationError(f"The server knows no key of {name}: there is nothing to revoke.")
    revoked = private.folder(folder / _KEYS / _REVOKED)
    os.replace(public, revoked / f"{name}.pub.{len(list(revoked.iterdir()))}.pub")
    (folder / _CLIENTS / name / _KEYS / name).unlink(missing_ok=True)


def _known(folder: Path, name: str, where: Path) -> Path:
    """A place of a client that the federation has; an `InputError` for other names."""
    federation = load(folder)
    if name not in federation.clients:
        raise unknown("client", name, federation.clients)
    return where


def _public(folder: Path, name: str) -> Path:
    return folder / _KEYS / f"{name}.pub"


def was_revoked(folder: Path, name: str) -> bool:
    """Whether a key of a client was revoked at the server."""
    return any((folder / _KEYS / _REVOKED).glob(f"{name}.pub.*.pub"))
