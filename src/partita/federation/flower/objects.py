"""A partita message as Flower carries it: three objects, one in the other, of which the innermost holds its bytes.

Flower names an object by its hash. A `Message` holds a `RecordDict`, which holds a `ConfigRecord`, which holds what
`pack` has written. Arrays of Flower's own, which are lists of chunks, do not occur and are not read: one chunk may be
named a million times.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from partita.errors import DamagedFileError, MissingExtraError
from partita.federation.flower.messages import ObjectTree, ProtoMessage
from partita.io.wire import MAGIC, Message, pack, unpack

__all__ = ["ENTRY", "MARGIN", "Parcel", "chain", "envelope", "unwrapped", "wrapped"]

try:
    from flwr.app import ConfigRecord, RecordDict
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
except ImportError:
    raise MissingExtraError("Flower", "flower") from None

ENTRY = "partita"
"""The name of the record, and of the entry in it."""
_IDENTITY = re.compile("[0-9a-f]{64}")
"""An object's name."""
MARGIN = 2**12
"""Bytes of an object that are not its message's own: those of its head, and of the two objects around it."""
_KINDS = ("Message", "RecordDict", "ConfigRecord")


class Parcel(NamedTuple):
    """What a call hands over of a message: the tree of its objects' names, and what each of them holds."""

    identity: str
    """The message's name, which is its outermost object's."""
    tree: ObjectTree
    contents: Mapping[str, bytes]


def wrapped(message: Message, about: Metadata) -> Parcel:
    """A message as Flower's objects."""
    outermost = make_message(about, RecordDict({ENTRY: ConfigRecord({ENTRY: pack(message)})}))
    with no_object_id_recompute():
        objects, tree = get_all_nested_objects(outermost), get_object_tree(outermost)
        return Parcel(tree.object_id, tree, {name: one.deflate() for name, one in objects.items()})


def envelope(about: Metadata, identity: str) -> ProtoMessage:
    """What a call says of a message whose objects are handed over apart."""
    found = message_to_proto(make_message(about, RecordDict()))
    found.metadata.message_id = identity
    return found


def chain(tree: ObjectTree) -> list[str]:
    """The names of a message's three objects, outermost first; ValueError of any other tree."""
    names = [tree.object_id]
    while len(tree.children) == 1 and len(names) < len(_KINDS):
        (tree,) = tree.children
        names.append(tree.object_id)
    if tree.children or len(set(names)) != len(_KINDS) or not all(map(_IDENTITY.fullmatch, names)):
        raise ValueError("its objects are not one in another, as those of a partita message are")
    return names


def unwrapped(tree: ObjectTree, contents: Mapping[str, bytes], largest: int, header: int) -> Message:
    """The message in Flower's objects, with at most so many bytes of arrays and of header; else an `InputError`.

    Only the innermost object is read, from where the message's own bytes begin, so that nothing is built of what a
    sender claims.
    """
    try:
        names = chain(tree)
        for kind, name, child in zip(_KINDS, names, [*names[1:], ""], strict=True):
            start = f"{kind} {child} ".encode()
            if contents[name][: len(start)] != start:
                raise ValueError(f"one of its objects is no {kind}")
        last = memoryview(contents[names[-1]])
        begin = bytes(last[: MARGIN // 2]).find(MAGIC)
        if begin < 0:
            raise ValueError("it holds none")
    except (ValueError, KeyError) as error:
        raise DamagedFileError(f"This is not a partita message: {error}.") from None
    return unpack(last[begin:], largest, header)
