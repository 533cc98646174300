"""Letters in a folder that nobody trusts: signed by the sender's key, and readable with the receiver's only.

A signature is checked before anything else is read. It covers who writes to whom, and what is signed says in which run,
and to which letter an answer is one, so that a letter is neither forged, nor put in another's place, nor used again.
"""

import json
import struct
from typing import IO, Any, NamedTuple

from partita.errors import DamagedFileError, MissingExtraError
from partita.io.wire import HEADER

__all__ = ["Correspondent", "largest"]

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    raise MissingExtraError("cryptography, which signs letters,", "flower") from None

_MAGIC = b"partita letter\x01"
_CURVE, _HASH = ec.SECP384R1(), hashes.SHA384()
_POINT = 97
"""Bytes of a public key as a point."""
_SIGNATURE = 200
"""The most bytes of a signature."""
_BEGIN = len(_MAGIC) + 2
"""Where the signature begins."""
_PIECE = 2**20
"""Bytes of a file that are read at once."""
_ABOUT = 4096
"""The most bytes of what a letter says of itself."""
_ONCE = bytes(12)
"""The nonce: every letter has a key of its own."""


class _Opened(NamedTuple):
    """What was in a letter."""

    about: dict[str, Any]
    """What it says of itself: its run, and what it answers."""
    content: bytes


def largest(arrays: int) -> int:
    """The most bytes of a letter with a message whose arrays have so many."""
    return arrays + HEADER + _ABOUT + 2**16


class Correspondent(NamedTuple):
    """One who writes letters to another, and reads those that the other writes."""

    name: str
    other: str
    key: ec.EllipticCurvePrivateKey
    theirs: ec.EllipticCurvePublicKey
    """The other's public key."""

    def sealed(self, about: dict[str, Any], content: bytes) -> bytes:
        """A letter to the other."""
        once = ec.generate_private_key(_CURVE)
        point = once.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        context = _context(self.name, self.other)
        head = json.dumps(about).encode()
        plain = b"".join([struct.pack("<I", len(head)), head, content])
        body = point + AESGCM(_shared(once, self.theirs, context + point)).encrypt(_ONCE, plain, context)
        signature = self.key.sign(context + body, ec.ECDSA(_HASH))
        return b"".join([_MAGIC, struct.pack("<H", len(signature)), signature, body])

    def check(self, letter: IO[bytes]) -> None:
        """Raises an `InputError` unless a file is signed by the other; of a large one little is in memory at once."""
        try:
            length = _signature_length(letter.read(_BEGIN))
            signature, hashed = letter.read(length), hashes.Hash(_HASH)
            hashed.update(_context(self.other, self.name))
            while piece := letter.read(_PIECE):
                hashed.update(piece)
            self.theirs.verify(signature, hashed.finalize(), ec.ECDSA(utils.Prehashed(_HASH)))
        except InvalidSignature:
            raise self._unsigned() from None
        except ValueError as error:
            raise self._strange(error) from None

    def opened(self, letter: bytes) -> _Opened:
        """What is in a letter of the other; anything else raises an `InputError`."""
        context = _context(self.other, self.name)
        try:
            end = _BEGIN + _signature_length(letter)
            if len(letter) < end + _POINT:
                raise ValueError("it is too short")
            body = letter[end:]
            self.theirs.verify(letter[_BEGIN:end], context + body, ec.ECDSA(_HASH))
            point = body[:_POINT]
            once = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
            plain = AESGCM(_shared(self.key, once, context + point)).decrypt(_ONCE, body[_POINT:], context)
            (size,) = struct.unpack_from("<I", plain)
            if size > _ABOUT:
                raise ValueError("it says too much of itself")
            about = json.loads(plain[4 : 4 + size])
            if not isinstance(about, dict):
                raise ValueError("it says nothing of itself")
        except InvalidSignature:
            raise self._unsigned() from None
        except (ValueError, InvalidTag, struct.error, RecursionError) as error:
            raise self._strange(error) from None
        return _Opened(about, plain[4 + size :])

    def _unsigned(self) -> DamagedFileError:
        return DamagedFileError(f"This letter is not signed by {self.other}.")

    def _strange(self, why: Exception) -> DamagedFileError:
        return DamagedFileError(f"This is no letter of {self.other} to {self.name}: {why!s:.100}.")


def _signature_length(letter: bytes) -> int:
    """The length of a letter's signature, from how it begins; ValueError where it does not begin as one."""
    if letter[: len(_MAGIC)] != _MAGIC or len(letter) < _BEGIN:
        raise ValueError("it does not begin as one")
    (length,) = struct.unpack_from("<H", letter, len(_MAGIC))
    if length > _SIGNATURE:
        raise ValueError("its signature is too long")
    return int(length)


def _context(sender: str, receiver: str) -> bytes:
    """Who writes to whom, in a way that only one pair of names has."""
    return _MAGIC + json.dumps([sender, receiver]).encode()


def _shared(own: ec.EllipticCurvePrivateKey, other: ec.EllipticCurvePublicKey, context: bytes) -> bytes:
    """The key of one letter."""
    secret = own.exchange(ec.ECDH(), other)
    return HKDF(algorithm=_HASH, length=32, salt=None, info=context).derive(secret)
