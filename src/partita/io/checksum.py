"""A checksum of bytes, by which damage is noticed. It proves nothing about who wrote them."""

import hashlib
from typing import IO

__all__ = ["SIZE", "checksum", "checksum_of_file"]

SIZE = 16
"""The length of a checksum in bytes."""


def checksum(data: bytes | memoryview) -> bytes:
    """The checksum of some bytes."""
    return hashlib.sha256(data).digest()[:SIZE]


def checksum_of_file(file: IO[bytes]) -> bytes:
    """The checksum of a file, from its beginning."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()[:SIZE]  # type: ignore[arg-type]
