"""Shards: clients' rows, padded to a few common lengths; padding has weight 0."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from partita.data.table import GroupedTable, OffsetTable, Table
from partita.errors import DataError
from partita.inputs import check_choice, check_kind, check_texts, check_whole, described, real_array
from partita.io.digest import number_digest
from partita.numerics.arrays import jax_array

__all__ = ["Partition", "Shard", "federate", "real_numbers"]


class Shard(eqx.Module):
    """The rows of one client. Padding repeats a real row and has weight 0, so that no 0 × ∞ arises."""

    data: PyTree[Shaped[Array, "n ..."]]
    weights: Float[Array, " n"]
    rows: Int[Array, ""]
    """How many rows are real; they come first."""


class Partition(eqx.Module):
    """The clients' shards, with their names. Shards of one shape share one compiled program."""

    shards: tuple[Shard, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def rows(self) -> int:
        """The number of real rows of all clients together."""
        return sum(self.sizes)

    def digests(self) -> dict[str, int]:
        """A digest of each client's rows, without what pads them."""
        parts = zip(self.shards, self.sizes, strict=True)
        rows = [
            jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], (shard.data, shard.weights))
            for shard, size in parts
        ]
        return dict(zip(self.names, map(number_digest, rows), strict=True))

    def pooled(self) -> "Partition":
        """The union of all rows as the partition of a single client."""
        parts = [
            jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], (shard.data, shard.weights))
            for shard, size in zip(self.shards, self.sizes, strict=True)
        ]
        data, weights = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return federate([data], weights=[weights], names=["all"])

    def only(self, name: str) -> "Partition":
        """The partition that consists of one client, which talks to nobody."""
        check_choice("client", name, self.names)
        return self._of([self.names.index(name)])

    def without(self, name: str) -> "Partition":
        """The partition of all clients but one."""
        check_choice("client", name, self.names)
        if len(self) == 1:
            raise DataError(f"{name} is the only client: without it there are no rows.")
        return self._of([place for place, other in enumerate(self.names) if other != name])

    def _of(self, places: Sequence[int]) -> "Partition":
        return Partition(
            tuple(self.shards[place] for place in places),
            tuple(self.names[place] for place in places),
            tuple(self.sizes[place] for place in places),
        )


def federate(
    clients: Sequence[PyTree],
    *,
    weights: Sequence[np.ndarray] | None = None,
    names: Sequence[str] | None = None,
    buckets: int | None = 4,
) -> Partition:
    """Makes a partition from the clients' data, each a pytree of arrays with rows first.

    Shards are padded to at most `buckets` different lengths, chosen to minimise padding; None disables padding.
    """
    if not isinstance(clients, Sequence) or isinstance(clients, str | Table | OffsetTable | GroupedTable):
        raise DataError(f"Give a list with the data of each client, not {described(clients)}.")
    if not len(clients):
        raise DataError("There are no clients: give the data of at least one.")
    if names is not None:
        check_texts("names of clients", names)
    names = [f"client {k}" for k in range(len(clients))] if names is None else list(names)
    if len(names) != len(clients) or len(set(names)) != len(names):
        raise DataError(f"Give {len(clients)} unique names, one per client, not {names}.")
    clients = [real_numbers(data) for data in clients]
    sizes = [_rows(data, name) for data, name in zip(clients, names, strict=True)]
    _same_widths(clients, names)
    clients = [_floating(data) for data in clients]
    for data, name in zip(clients, names, strict=True):
        _check_sizes(data, name)
    if weights is None:
        weights = [np.ones(size) for size in sizes]
    check_kind("weights", weights, Sequence, "give a list with a vector for each client", DataError, name="a list")
    if len(weights) != len(clients):
        raise DataError(f"Give {len(clients)} vectors of weights, one per client, not {len(weights)}.")
    if buckets is not None:
        check_whole("number of buckets", buckets)
    weights = [real_array(f"weights of {name}", weight, DataError) for name, weight in zip(names, weights, strict=True)]
    for name, size, weight in zip(names, sizes, weights, strict=True):
        if weight.shape != (size,) or not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise DataError(f"{name}: give {size} finite, non-negative weights, one per row.")
    lengths = _bucket_lengths(sizes, buckets)
    shards = [
        _pad(data, weight, size, min(length for length in lengths if length >= size))
        for data, weight, size in zip(clients, weights, sizes, strict=True)
    ]
    return Partition(tuple(shards), tuple(names), tuple(sizes))


def real_numbers(data: PyTree) -> PyTree[np.ndarray]:
    """The data as arrays of real numbers; raises a `DataError` where they are something else."""
    arrays = jax.tree.map(lambda leaf: real_array("data", leaf, DataError), data)
    if any(array.ndim == 0 for array in jax.tree.leaves(arrays)):
        raise DataError("The data hold a single number where an array is needed: give rows.")
    return arrays


def _rows(data: PyTree, name: str) -> int:
    lengths = {len(leaf) for leaf in jax.tree.leaves(data)}
    if not lengths:
        raise DataError(f"{name} has no arrays: give such as a Table(x, y).")
    if len(lengths) != 1:
        raise DataError(f"{name}: its arrays have different numbers of rows, {sorted(lengths)}.")
    if lengths == {0}:
        raise DataError(f"{name} is empty: leave it out, or give it at least one row.")
    return lengths.pop()


def _same_widths(clients: Sequence[PyTree], names: Sequence[str]) -> None:
    shapes = [[np.shape(leaf)[1:] for leaf in jax.tree.leaves(data)] for data in clients]
    for name, shape in zip(names, shapes, strict=True):
        if shape != shapes[0]:
            raise DataError(
                f"{name} has columns of shape {shape} where {names[0]} has {shapes[0]}: give all clients the same."
            )


def _check_sizes(data: PyTree, name: str) -> None:
    """Raises a `DataError` that names the column in which the sum of squares overflows, in JAX's precision."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if leaf.dtype.kind != "f":
            continue
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
        columns = np.abs(np.where(np.isfinite(leaf), leaf, 0)).reshape(len(leaf), -1).max(axis=0)
        beyond = columns > np.sqrt(float(jnp.finfo(kind).max) / len(leaf))
        if beyond.any():
            where = f"column {int(np.argmax(beyond))} of " if leaf.ndim > 1 else ""
            what = f"{where}{jax.tree_util.keystr(path, simple=True, separator='.') or 'the data'}"
            raise DataError(f"{name}: {what} holds numbers whose squares overflow in {kind}: rescale it.")


def _float_type(data: PyTree) -> np.dtype:
    types = [np.asarray(leaf).dtype for leaf in jax.tree.leaves(data)]
    floats = [kind for kind in types if np.issubdtype(kind, np.floating)]
    return np.dtype(np.result_type(*floats)) if floats else np.dtype(float)


def _floating(data: PyTree) -> PyTree:
    """Converts a table's integers and booleans to floating point; other data are unchanged."""
    if not isinstance(data, Table | OffsetTable | GroupedTable):
        return data
    kind = _float_type(data)
    return jax.tree.map(lambda leaf: np.asarray(leaf, kind), data)


def _bucket_lengths(sizes: Sequence[int], buckets: int | None) -> list[int]:
    """The padded lengths that minimise the total padding (dynamic programming over the sorted sizes)."""
    distinct, counts = np.unique(sizes, return_counts=True)
    if buckets is None or len(distinct) <= buckets:
        return [int(length) for length in distinct]
    rows = np.concatenate([[0], np.cumsum(counts)])
    cost = np.where(rows == 0, 0.0, np.inf)
    cuts = []
    for _ in range(buckets):
        # trial[end, start]: slots used up to `end` when the last bucket holds the sizes from `start` on
        trial = cost + np.concatenate([[0], distinct])[:, None] * (rows[:, None] - rows)
        trial = np.where(np.tri(len(rows), dtype=bool), trial, np.inf)
        cuts.append(trial.argmin(axis=1))
        cost = trial.min(axis=1)
    lengths, end = [], len(distinct)
    for cut in reversed(cuts):
        if end > 0:
            lengths.append(int(distinct[end - 1]))
            end = cut[end]
    return lengths


def _pad(data: PyTree, weights: np.ndarray, size: int, length: int) -> Shard:
    index = np.minimum(np.arange(length), size - 1)
    padded = np.where(np.arange(length) < size, np.asarray(weights)[index], 0).astype(_float_type(data))
    rows = jax.tree.map(lambda leaf: jax_array(np.asarray(leaf)[index]), data)
    return Shard(rows, jax_array(padded), jnp.array(size))
