"""Stacks in a ledger: a record for every chunk, of which those are written that have changed."""

import sqlite3
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from partita.io.wire import Message, pack, unpack
from partita.numerics.stack import Chunk, Stack
from partita.storage.records import insert, records, sum_of

__all__ = ["COLUMNS", "filled", "is_stack", "read_chunks", "stack_of", "stacks_in", "whole", "write_chunks"]

COLUMNS = (
    "name TEXT NOT NULL, place INTEGER NOT NULL, entries INTEGER NOT NULL, alike INTEGER NOT NULL, "
    "value BLOB NOT NULL, PRIMARY KEY (name, place)"
)
"""The columns of the table `chunks`; where all entries are alike, there is one."""

_Record = tuple[int, int, bytes]


def is_stack(node: Any) -> bool:
    """Whether a node of a tree has an entry a client."""
    return isinstance(node, Stack)


def stacks_in(tree: Any) -> dict[str, Stack[Any]]:
    """The stacks in a tree, by their paths."""
    paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_stack)
    return {jax.tree_util.keystr(path): node for path, node in paths if is_stack(node)}


def whole(tree: Any) -> Any:
    """The tree without its stacks."""
    return jax.tree.map(lambda node: None if is_stack(node) else node, tree, is_leaf=is_stack)


def filled(tree: Any, like: Any, stacks: Mapping[str, Stack[Any]]) -> Any:
    """The tree with stacks again, where `like` has some."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like, is_leaf=is_stack)
    rest = iter(jax.tree.leaves(tree))
    found = [stacks[jax.tree_util.keystr(path)] if is_stack(node) else next(rest) for path, node in paths]
    return jax.tree.unflatten(structure, found)


def write_chunks(
    db: sqlite3.Connection,
    stacks: Mapping[str, Stack[Any]],
    before: Mapping[str, Stack[Any]],
    first: Mapping[str, Stack[Any]],
) -> None:
    """Writes the chunks that are others than before; not those of the first stacks, which a run begins with."""
    for name, stack in stacks.items():
        begun = first[name].chunks if name in first else ()
        for place in stack.changed_since(before.get(name)):
            if place < len(begun) and stack.chunks[place] is begun[place]:
                db.execute("DELETE FROM chunks WHERE name = ? AND place = ?", [name, place])
            else:
                _write(db, name, place, stack.chunks[place])


def _write(db: sqlite3.Connection, name: str, place: int, chunk: Chunk) -> None:
    """Writes a chunk in place of the previous one of its length, which avoids freeing and reallocating pages."""
    alike = chunk.member is not None
    arrays = {str(leaf): array[:1] if alike else array for leaf, array in enumerate(chunk.arrays)}
    record = (name, place, len(chunk), int(alike), pack(Message({}, arrays)))
    there = db.execute(
        "SELECT rowid FROM chunks WHERE name = ? AND place = ? AND entries = ? AND alike = ? AND length(value) = ?",
        [*record[:4], len(record[4])],
    ).fetchone()
    if there is None:
        insert(db, "chunks", [record])
        return
    with db.blobopen("chunks", "value", there[0]) as blob:
        blob.write(record[4])
    db.execute("UPDATE chunks SET checksum = ? WHERE rowid = ?", [sum_of("chunks", record), there[0]])


def read_chunks(db: sqlite3.Connection, source: str) -> dict[str, dict[int, _Record]]:
    """The records of all stacks, by name and place."""
    found = dict[str, dict[int, _Record]]()
    for name, place, *record in records(db, source, "chunks", "name, place"):
        entries, alike, value = record
        found.setdefault(name, {})[place] = entries, alike, value
    return found


def stack_of(written: Mapping[int, _Record], like: Stack[Any], number: int) -> Stack[Any]:
    """The stack with so many entries of which these chunks were written; the others are as in `like`."""
    begun = like.resized(number, jax.tree.map(np.zeros_like, like[0]))
    tree, chunks = jax.tree.structure(like[0]), dict[int, Chunk]()
    for place, (entries, alike, value) in written.items():
        known, found = begun.chunks[place].arrays, unpack(value).arrays
        arrays = [found[str(leaf)] for leaf in range(len(known))]
        shapes = [(1 if alike else len(each), *each.shape[1:]) for each in known]
        kinds = zip(arrays, known, strict=True)
        if [array.shape for array in arrays] != shapes or any(array.dtype != each.dtype for array, each in kinds):
            raise ValueError("its factors have another shape")
        if entries != len(begun.chunks[place]):
            raise ValueError("it has the factors of other clients")
        member = jax.tree.unflatten(tree, [array[0, ...] for array in arrays])
        chunks[place] = Chunk.alike(member, entries) if alike else Chunk(arrays)
    return begun.with_chunks(chunks)
