"""Who calls: every call is signed with the client's key, and names the time."""

import base64
import binascii
import datetime
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partita.errors import FederationError, MissingExtraError
from partita.io.watched import Watched

__all__ = ["CLOCK", "Keyring", "UnknownCallerError", "private_key", "public_bytes", "signed", "steady"]

try:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key,
        public_key_to_bytes,
        sign_message,
        verify_signature,
    )
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

CLOCK = "its clock is not the server's"
"""Why a call whose time is not good is refused."""


class UnknownCallerError(FederationError):
    """A call is not of a client of this federation, or its time is not good."""


def steady(wall: Callable[[], float] = time.time) -> Callable[[], float]:
    """A clock that shows the time of day when it is made, and goes on from there however the system's is set.

    Where the system can tell how long it has slept, that time counts.
    """
    kind = getattr(time, "CLOCK_BOOTTIME", None)

    def elapsed() -> float:
        return time.monotonic() if kind is None else time.clock_gettime(kind)

    start = wall() - elapsed()
    return lambda: start + elapsed()


def private_key(path: Path) -> Any:
    """A client's private key."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise FederationError(
            f"There is no {path}: use the folder that `partita federation credentials` wrote for this client."
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise FederationError(f"The key {path} cannot be read ({error}): take it from the server's folder.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"The key {path} is not of the kind that `partita federation credentials` writes.")
    return key


def public_bytes(key: Any) -> bytes:
    """The public key that belongs to a private one, as it is sent."""
    return public_key_to_bytes(key.public_key())


def signed(key: Any, now: float) -> dict[str, str]:
    """The headers of a call at a time of day."""
    stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    values = (base64.b64encode(public_bytes(key)), base64.b64encode(sign_message(key, stamp.encode("ascii"))))
    public, signature = (value.decode("ascii") for value in values)
    return {FLEET_HTTP_PUBLIC_KEY_HEADER: public, TIMESTAMP_HEADER: stamp, FLEET_HTTP_SIGNATURE_HEADER: signature}


class Keyring:
    """The clients' public keys, each known by its bytes, as their files are at present."""

    def __init__(self, paths: Mapping[str, Path], now: Callable[[], float]) -> None:
        """A client that has no file has no key, and is not let in."""
        self._now = now
        # each by itself, so that a file that cannot be read keeps no other client's key from being revoked
        self._keys = {name: Watched(functools.partial(_public_key, path), [path]) for name, path in paths.items()}

    @property
    def keys(self) -> Mapping[str, bytes]:
        """Each client's public key."""
        known = {name: key() for name, key in self._keys.items()}
        return {name: key for name, key in known.items() if key is not None}

    def caller(self, headers: Mapping[str, str]) -> tuple[str, bytes]:
        """The client whose key has signed a call, and that key; an `UnknownCallerError` where there is none."""
        try:
            public = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            name = next(name for name, key in self.keys.items() if key == public)
            stamp = headers[TIMESTAMP_HEADER]
            age = self._now() - datetime.datetime.fromisoformat(stamp).timestamp()
            signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            good = verify_signature(bytes_to_public_key(public), stamp.encode("ascii"), signature)
        except (KeyError, StopIteration, ValueError, TypeError, OverflowError, binascii.Error):
            raise UnknownCallerError("its key is not registered") from None
        if not good:
            raise UnknownCallerError("its signature is another one")
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise UnknownCallerError(CLOCK)
        return name, public


def _public_key(path: Path) -> bytes | None:
    """The key in a file; None where there is no file."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("it is of another kind")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FederationError(f"The key {path} cannot be read ({error}): make it again.") from None
    return public_key_to_bytes(key)
