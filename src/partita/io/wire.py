"""The wire format: named arrays and JSON as bytes with a checksum, without pickle. The ledger has arrays in it too."""

import json
import math
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from partita.errors import DamagedFileError
from partita.io.checksum import SIZE, checksum
from partita.numerics.arrays import jax_array

__all__ = [
    "HEADER",
    "MAGIC",
    "MAX_TEXT_LENGTH",
    "Message",
    "equal",
    "flatten",
    "is_plain",
    "pack",
    "sanitise",
    "sealed",
    "unflatten",
    "unpack",
    "view",
]

MAGIC = b"partita\x02"
"""The first bytes of a message."""
_KINDS = frozenset(np.dtype(kind).str for kind in ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "?"))
"""The allowed dtypes: numbers and booleans, no objects."""
HEADER = 2**24
"""The largest JSON header in bytes; parsed, it may take thirty times as much memory."""
_MOST_SIDES, _LONGEST_SIDE = 64, 2**40
"""The largest number of an array's dimensions, and the largest of them; what is claimed is only then multiplied."""
MAX_TEXT_LENGTH = 500
"""The largest length of a remote text that is shown or stored."""


class Message(NamedTuple):
    """A header that JSON can hold, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def size(self) -> int:
        """The size of its arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def words(self, name: str, otherwise: str) -> str:
        """The sanitised text of a header entry, or a default."""
        said = self.header.get(name)
        return sanitise(said if isinstance(said, str) else otherwise)


def sanitise(text: str, longest: int = MAX_TEXT_LENGTH) -> str:
    """Sanitises untrusted text: one line of printable characters, truncated."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:longest])


def is_plain(text: str) -> bool:
    """Whether a text is one line of printable characters; spaces of any width are."""
    return all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in text)


def pack(message: Message) -> bytes:
    """The message as bytes: a checksum of all that follows, a JSON table of contents, the arrays one after another."""
    arrays = {name: np.asarray(array) for name, array in message.arrays.items()}
    arrays = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.str not in _KINDS:
            raise DamagedFileError(f"{name} is an array of {array.dtype}, which cannot be sent: give numbers.")
    contents = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"header": message.header, "arrays": contents}).encode()
    bodies = [np.ascontiguousarray(array).data.cast("B") if array.size else b"" for array in arrays.values()]
    return sealed(b"".join([struct.pack("<I", len(head)), head, *bodies]))


def sealed(body: bytes) -> bytes:
    """A message's bytes from its length on, behind the magic number and their checksum."""
    return b"".join([MAGIC, checksum(body), body])


def unpack(data: bytes | memoryview, largest: float = math.inf, header: int = HEADER) -> Message:
    """Decodes a message made by `pack`, with at most `largest` bytes of arrays and `header` of a header.

    Anything else raises an `InputError`.

    No memory is allocated from claimed sizes: arrays are views of the received bytes.
    """
    try:
        whole = memoryview(data)
        if whole[: len(MAGIC)] != MAGIC:
            raise ValueError("it does not start with the magic number")
        begin = len(MAGIC) + SIZE
        (length,) = struct.unpack_from("<I", whole, begin)
        start = begin + 4
        if length > header:
            raise ValueError(f"its header has {length} bytes, where {header} are allowed")
        if len(whole) - start - length > largest:
            raise ValueError(f"its arrays have {len(whole) - start - length} bytes, where {largest} are allowed")
        if whole[len(MAGIC) : begin] != checksum(whole[begin:]):
            raise ValueError("its checksum is another one")
        head = json.loads(bytes(whole[start : start + length]))
        place, arrays = start + length, {}
        for name, kind, shape in head["arrays"]:
            end = place + _length(name, kind, shape)
            arrays[str(name)] = view(name, kind, shape, whole[place:end])
            place = end
        if place != len(whole):
            raise ValueError(f"{len(whole) - place} bytes are left over")
        if not isinstance(head["header"], dict):
            raise ValueError("its header is not a table")
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise DamagedFileError(
            f"This is not a partita message, or it is corrupt: {str(error)[:MAX_TEXT_LENGTH]}."
        ) from None
    return Message(head["header"], arrays)


def view(name: str, kind: str, shape: Sequence[int], data: bytes | memoryview) -> np.ndarray:
    """An array as a view of its bytes; ValueError if dtype and shape do not match the number of bytes."""
    if _length(name, kind, shape) != len(data):
        raise ValueError(f"{name} has {len(data)} bytes, and claims to be {kind}{list(shape)}")
    return np.frombuffer(data, np.dtype(kind)).reshape(shape) if len(data) else np.empty(shape, kind)


def _length(name: str, kind: str, shape: Sequence[int]) -> int:
    """The number of bytes implied by dtype and shape."""
    if len(shape) > _MOST_SIDES:
        raise ValueError(f"{name:.100} has {len(shape)} sides, where {_MOST_SIDES} are allowed")
    if kind not in _KINDS or any(type(side) is not int or not 0 <= side <= _LONGEST_SIDE for side in shape):
        raise ValueError(f"{name:.100} is {kind!s:.100}{shape!s:.100}")
    return math.prod(shape) * np.dtype(kind).itemsize


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their paths."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


def unflatten(arrays: Mapping[str, np.ndarray], like: Any, source: str) -> Any:
    """Rebuilds a flattened pytree; its leaves must have the shapes and dtypes of those of `like`."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for key, leaf in leaves:
        path = jax.tree_util.keystr(key)
        array = arrays.get(path)
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            what = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            needed = f"{leaf.dtype}{list(leaf.shape)}"
            raise DamagedFileError(f"{source} holds {what} at {path} where {needed} is needed.")
        found.append(array if isinstance(leaf, np.ndarray) else jax_array(array))
    return jax.tree.unflatten(treedef, found)


def equal(first: Any, second: Any) -> bool:
    """Whether two pytrees of one structure have the same numbers."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)
