"""Pytrees of one structure, one a client, as a value of stacked arrays whose copies share what they have in common."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Self, SupportsIndex, TypeVar, overload

import jax
import numpy as np

__all__ = ["Chunk", "Stack", "stacked"]

T = TypeVar("T")

_BYTES = 2**14
"""How large the arrays of a chunk are at most, so that a copy of it takes microseconds; but for those of one entry."""
_ENTRIES = 256
"""How many entries a chunk has at most."""


class Chunk:
    """Some entries of a stack that are copied and stored together; never changed."""

    __slots__ = ("arrays", "member")

    def __init__(self, arrays: Sequence[np.ndarray], member: Any = None) -> None:
        self.arrays = tuple(arrays)
        """The leaves, with an entry along the first axis; views of one entry where all are `member`."""
        self.member = member
        """The one object that all entries are, as before a client has answered; otherwise None."""
        for array in self.arrays:
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.arrays[0])

    @classmethod
    def alike(cls, member: Any, number: int) -> Self:
        """So many entries that are one object, of which there is one copy."""
        if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(member)):
            member = jax.tree.map(np.asarray, member)
        return cls([np.broadcast_to(leaf, (number, *leaf.shape)) for leaf in jax.tree.leaves(member)], member)

    def entry(self, place: int, tree: Any) -> Any:
        """One entry; its arrays are copies, so that it does not keep its neighbours alive."""
        if self.member is not None:
            return self.member
        return jax.tree.unflatten(tree, [array[place, ...].copy() for array in self.arrays])

    def sums(self) -> list[np.ndarray]:
        """The leaves, summed over entries in double precision."""
        return [array.sum(0, dtype=np.float64) for array in self.arrays]

    def replaced(self, places: np.ndarray, arrays: Sequence[np.ndarray]) -> "Chunk":
        """The chunk with other entries at some places."""
        changed = [array.copy() for array in self.arrays]
        for old, new in zip(changed, arrays, strict=True):
            old[places] = new
        return Chunk(changed)


@jax.tree_util.register_pytree_with_keys_class
class Stack(Sequence[T], Generic[T]):
    """Pytrees of one structure: a sequence of them, and one pytree whose NumPy arrays have a leading axis.

    It is a value. `replaced` gives another one and copies only the chunks in which entries differ, so that an older
    stack stays what it was, and the cost of another entry does not grow with their number. Sums over all entries are
    kept by chunk. As a pytree it has one child, the stacked arrays, which are put together for that.
    """

    __slots__ = ("_chunks", "_given", "_sums", "_total", "_tree")

    def __init__(self, chunks: Sequence[Chunk], tree: Any, sums: Sequence[np.ndarray] | None = None) -> None:
        self._chunks: tuple[Chunk, ...] | None = tuple(chunks)
        self._tree, self._given = tree, None
        self._sums = None if sums is None else list(sums)
        self._total: list[np.ndarray] | None = None

    @classmethod
    def repeated(cls, member: T, number: int) -> Self:
        """So many entries that are one object."""
        member = jax.tree.map(np.asarray, member)
        leaves, tree = jax.tree.flatten(member)
        length, whole = _entries(leaves), Chunk.alike(member, number)
        full = Chunk.alike(member, length) if number > length else whole
        rest = [Chunk.alike(member, number % length)] if number % length else []
        return cls([full] * (number // length) + rest if number > length else [whole], tree)

    @classmethod
    def of(cls, members: Iterable[T]) -> Self:
        """These entries."""
        return cls.joined(stacked(members))

    @classmethod
    def joined(cls, stacked: T) -> Self:
        """The entries of stacked arrays."""
        leaves, tree = jax.tree.flatten(stacked)
        arrays = [np.asarray(leaf) for leaf in leaves]
        length, number = _entries(array[:1] for array in arrays), len(arrays[0])
        starts = range(0, number, length)
        return cls([Chunk([array[start : start + length].copy() for array in arrays]) for start in starts], tree)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The parts of which it consists; all but the last have one length."""
        if self._chunks is None:
            given: Any = self._given
            self._chunks = Stack[Any].joined(given).chunks
        return self._chunks

    @property
    def nbytes(self) -> int:
        """How much memory its arrays take; those of entries that are one object are there once."""
        alike = {id(part.member): part.arrays for part in self.chunks if part.member is not None}
        once = [array[0, ...].nbytes for arrays in alike.values() for array in arrays]
        return sum(once) + sum(array.nbytes for part in self.chunks if part.member is None for array in part.arrays)

    def __len__(self) -> int:
        *full, last = self.chunks
        return len(full) * len(full[0]) + len(last) if full else len(last)

    @overload
    def __getitem__(self, place: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        chunk, row = divmod(range(len(self))[place], len(self.chunks[0]))
        entry: T = self.chunks[chunk].entry(row, self._tree)
        return entry

    def stacked(self) -> T:
        """All entries as one pytree, whose arrays have a leading axis."""
        if len(self.chunks) == 1:
            arrays: Sequence[np.ndarray] = self.chunks[0].arrays
        else:
            arrays = [np.concatenate(parts) for parts in zip(*(part.arrays for part in self.chunks), strict=True)]
        whole: T = jax.tree.unflatten(self._tree, arrays)
        return whole

    def taken(self, places: Sequence[int]) -> T:
        """Some entries as one pytree, whose arrays have a leading axis."""
        if len(places) == 1:
            chunk, row = divmod(places[0], len(self.chunks[0]))
            parts = [array[row : row + 1] for array in self.chunks[chunk].arrays]
        else:
            parts = [array[list(places)] for array in jax.tree.leaves(self.stacked())]
        some: T = jax.tree.unflatten(self._tree, parts)
        return some

    def replaced(self, members: Mapping[int, T]) -> "Stack[T]":
        """The stack with other entries at these places."""
        if not members:
            return self
        return self.placed(list(members), stacked(members.values()))

    def placed(self, places: Sequence[int], stacked: T) -> "Stack[T]":
        """The same where the other entries are stacked."""
        where, arrays = np.asarray(places), [np.asarray(leaf) for leaf in jax.tree.leaves(stacked)]
        length, chunks = len(self.chunks[0]), list(self.chunks)
        order = np.argsort(where, kind="stable")
        touched, begins = np.unique(where[order] // length, return_index=True)
        for chunk, which in zip(touched.tolist(), np.split(order, begins[1:]), strict=True):
            chunks[chunk] = chunks[chunk].replaced(where[which] % length, [array[which] for array in arrays])
        sums = self._sums
        if sums is not None:
            sums = [array.copy() for array in sums]
            for chunk in touched.tolist():
                for array, new in zip(sums, chunks[chunk].sums(), strict=True):
                    array[chunk] = new
        return Stack(chunks, self._tree, sums)

    def appended(self, member: T) -> "Stack[T]":
        """The stack with one entry more."""
        *full, last = self.chunks
        length = len(full[0]) if full else _entries(array[:1] for array in last.arrays)
        one = Chunk.alike(member, 1)
        if len(last) == length:
            return Stack([*self.chunks, one], self._tree)
        if last.member is member:
            return Stack([*full, Chunk.alike(member, len(last) + 1)], self._tree)
        return Stack([*full, Chunk([*map(np.concatenate, zip(last.arrays, one.arrays, strict=True))])], self._tree)

    def resized(self, number: int, member: T) -> "Stack[T]":
        """Its first entries, so many; what there are more of are all `member`."""
        if len(self) == number:
            return self
        rest, kept = Stack.repeated(member, number), min(number, len(self))
        return rest.placed(range(kept), self.taken(range(kept)))

    def parts(self) -> T:
        """Arrays with the sum of all entries: the entries where there are few, the sums of chunks where many."""
        if len(self.chunks) == 1:
            return self.stacked()
        if self._sums is None:
            self._sums = [np.stack(column) for column in zip(*(part.sums() for part in self.chunks), strict=True)]
        sums: T = jax.tree.unflatten(self._tree, self._sums)
        return sums

    def summed(self) -> T:
        """The leaves, summed over all entries."""
        if self._total is None:
            kinds = [array.dtype for array in self.chunks[0].arrays]
            parts = zip(jax.tree.leaves(self.parts()), kinds, strict=True)
            self._total = [part.sum(0).astype(kind) for part, kind in parts]
        total: T = jax.tree.unflatten(self._tree, self._total)
        return total

    def differing(self, before: "Stack[T]") -> list[int]:
        """The entries that are others than in an earlier stack, or that it did not have."""
        found, length = [], len(self.chunks[0])
        for chunk in self.changed_since(before):
            mine, known = self.chunks[chunk], before.chunks[chunk : chunk + 1]
            apart = np.ones(len(mine), bool)
            for other in known:
                both = min(len(mine), len(other))
                pairs = zip(mine.arrays, other.arrays, strict=True)
                differ = [(new[:both] != old[:both]).reshape(both, -1).any(1) for new, old in pairs]
                apart[:both] = np.any(differ, axis=0)
            found += (chunk * length + np.flatnonzero(apart)).tolist()
        return found

    def changed_since(self, before: "Stack[T] | None") -> list[int]:
        """The chunks that are other objects than an earlier stack had in their place."""
        known = () if before is None else before.chunks
        same = [mine is other for mine, other in zip(self.chunks, known, strict=False)]
        return [k for k in range(len(self.chunks)) if k >= len(same) or not same[k]]

    def with_chunks(self, chunks: Mapping[int, Chunk]) -> "Stack[T]":
        """The stack with other chunks of the same lengths."""
        return Stack([chunks.get(place, part) for place, part in enumerate(self.chunks)], self._tree)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], None]:
        """The stacked arrays, as JAX asks for them."""
        given = self.stacked() if self._chunks is not None else self._given
        return ((jax.tree_util.GetAttrKey("stacked"), given),), None

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """The same without a key."""
        ((_, given),), about = self.tree_flatten_with_keys()
        return (given,), about

    @classmethod
    def tree_unflatten(cls, about: None, children: tuple[Any, ...]) -> Self:
        """What JAX makes of a child, which need not have arrays; it is put into chunks when they are needed."""
        stack = object.__new__(cls)
        stack._chunks, stack._sums, stack._total, (stack._given,) = None, None, None, children
        stack._tree = jax.tree.structure(children[0])
        return stack


def stacked(members: Iterable[T]) -> T:
    """Pytrees of one structure as one, whose NumPy arrays have an entry for each."""
    leaves, trees = zip(*map(jax.tree.flatten, members), strict=True)
    columns = zip(*leaves, strict=True)
    whole: T = jax.tree.unflatten(trees[0], [np.stack([np.asarray(leaf) for leaf in column]) for column in columns])
    return whole


def _entries(leaves: Iterable[np.ndarray]) -> int:
    """How many entries a chunk has, given one."""
    size = functools.reduce(lambda total, leaf: total + leaf.nbytes, leaves, 0)
    return max(1, min(_ENTRIES, _BYTES // max(size, 1)))
