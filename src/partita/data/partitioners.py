"""Partitioning schemes: each function returns, for every client, the indices of its rows."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike, Int, PyTree, Real, Shaped

from partita.data.shard import Partition, federate, real_numbers
from partita.errors import DataError
from partita.inputs import (
    check_finite_number,
    check_flag,
    check_kind,
    check_number,
    check_seed,
    check_whole,
    real_array,
)

__all__ = ["Indices", "beta_kappa", "by_column", "equal_random", "k_means", "label_shards", "split"]

Indices = list[Int[np.ndarray, "_"]]


def split(
    data: PyTree, indices: Sequence[np.ndarray], names: Sequence[str] | None = None, *, drop: bool = False
) -> Partition:
    """The partition of `data` with the given row indices for each client.

    Every row belongs to one client; with `drop`, rows that belong to none are left out.
    """
    arrays = real_numbers(data)
    check_flag("setting drop", drop)
    check_kind("indices", indices, Sequence, "give a list of an array for each client", DataError, name="a list")
    places = [_places(rows) for rows in indices]
    _check_places(places, min((len(leaf) for leaf in jax.tree.leaves(arrays)), default=0), drop)
    parts = [jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays) for rows in places]
    return federate(parts, names=names)


def equal_random(rows: int, clients: int, seed: int = 0) -> Indices:
    """A random partition into parts whose sizes differ by at most one."""
    _enough(rows, clients)
    check_seed(seed)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(rows), clients)]


def beta_kappa(y: Real[ArrayLike, " n"], clients: int = 10, beta: float = 0.0, kappa: float = 0.0) -> Indices:
    """The inhomogeneous split of `sec:appen:experiments:uci`: first the small half of the clients, then the large.

    Small clients have ⌊(1−β)N/M⌋ rows, of which a fraction η(1−κ) is positive; large ones ⌊(1+β)N/M⌋ rows and the
    positives that are left. (The paper prints η + (1−η)κ, which is the fraction of negatives' excess; its table has
    this one, rounded up.) With κ = 0 all clients have the same fraction of positives. Rows are assigned in the given
    order, so shuffle them first; a few may not be assigned. Here η is the overall fraction of positives.
    """
    y = _labels(y, "the β–κ split")
    check_whole("number of clients", clients, 0)
    check_number("β", beta)
    check_finite_number("κ", kappa)
    if not len(y) or not np.isin(y, (0, 1)).all():
        raise DataError("The β–κ split needs labels 0 and 1.")
    if clients < 2 or clients % 2:
        raise DataError(f"The β–κ split needs an even number of clients, not {clients}.")
    if not 0 <= beta < 1:
        raise DataError(f"β must be in [0, 1), not {beta}.")
    positives, negatives = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    half = clients // 2
    small, large = math.floor(len(y) / clients * (1 - beta)), math.floor(len(y) / clients * (1 + beta))
    sizes = [small] * half + [large] * half
    if kappa == 0:
        dealt = np.diff(np.round(np.cumsum([0, *sizes]) * len(positives) / max(sum(sizes), 1))).astype(int).tolist()
    else:
        positive_small = math.ceil(len(positives) / len(y) * (1 - kappa) * small)
        left, extra = divmod(len(positives) - half * positive_small, half)
        dealt = [positive_small] * half + [left + (k < extra) for k in range(half)]
    others = np.subtract(sizes, dealt)
    if small < 1 or np.min(dealt) < 0 or np.min(others) < 0:
        raise DataError(f"β = {beta} and κ = {kappa} need more labels than there are: use κ closer to 0.")
    parts = zip(np.split(positives, np.cumsum(dealt)), np.split(negatives, np.cumsum(others)), strict=True)
    return [np.sort(np.concatenate(part)) for part in parts][:clients]


def label_shards(y: Real[ArrayLike, " n"], clients: int, shards: int = 2, seed: int = 0) -> Indices:
    """Cuts the rows of each label into pieces, `shards` per client in all, and assigns the pieces at random.

    No piece has rows of two labels, so that no client has more than `shards` labels. Labels are cut so that the largest
    piece is as small as possible; pieces, and so clients, differ in size unless the labels' numbers of rows allow it.
    """
    labels = _labels(y, "shards")
    check_whole("number of clients", clients)
    check_whole("number of shards", shards)
    check_seed(seed)
    _enough(len(labels), clients * shards)
    counts = np.unique(labels, return_counts=True)[1]
    if len(counts) > clients * shards:
        raise DataError(
            f"There are {len(counts)} labels for {clients * shards} shards of one label each: ask for more clients or "
            "shards."
        )
    cuts = np.ones(len(counts), int)
    for _ in range(clients * shards - len(counts)):
        cuts[np.argmax(counts / cuts)] += 1
    rows = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    pieces = [piece for some, number in zip(rows, cuts, strict=True) for piece in np.array_split(some, number)]
    dealt = np.random.default_rng(seed).permutation(clients * shards).reshape(clients, shards)
    return [np.sort(np.concatenate([pieces[i] for i in hand])) for hand in dealt]


def k_means(x: Real[ArrayLike, "n d"], clients: int, seed: int = 0) -> Indices:
    """One client per cluster of the inputs."""
    from scipy.cluster.vq import kmeans2  # the library uses nothing else of SciPy, which takes long to import

    points = real_array("inputs", x, DataError).astype(float)
    if points.ndim != 2 or not points.size or not np.isfinite(points).all():
        raise DataError("The inputs of k-means must be a matrix of finite numbers: drop or impute rows that are not.")
    check_whole("seed of k-means", seed, 0, 2**32 - 1)
    _enough(len(points), clients)
    _, labels = kmeans2(points, clients, minit="++", seed=seed)
    return [np.flatnonzero(labels == k) for k in range(clients)]


def by_column(values: Shaped[np.ndarray, " n"]) -> tuple[Indices, list[str]]:
    """One client per distinct value of a column, such as the hospital, with the values as names."""
    try:
        column = np.asarray(values)
        levels = list(dict.fromkeys(column.tolist())) if column.ndim == 1 else None
    except (TypeError, ValueError):  # lists of different lengths, or of what cannot be compared
        levels = None
    if not levels or any(level != level for level in levels):
        raise DataError("The column of clients must be a vector with one text or number a row: none may be missing.")
    return [np.flatnonzero(column == level) for level in levels], [str(level) for level in levels]


def _places(rows: Any) -> np.ndarray:
    """A client's indices as a vector."""
    places = real_array("indices of rows", rows, DataError)
    if places.ndim != 1:
        raise DataError(f"A client's indices of rows have the shape {places.shape}: give a vector.")
    return places


def _labels(y: Any, of: str) -> np.ndarray:
    """A vector of labels; a `DataError` where it is something else."""
    labels = real_array(f"labels of {of}", y, DataError)
    if labels.ndim != 1:
        raise DataError(f"The labels of {of} have the shape {labels.shape}: give a vector.")
    return labels


def _check_places(places: Sequence[np.ndarray], rows: int, drop: bool) -> None:
    """Raises a `DataError` where a row is given twice, or not at all, or does not exist."""
    if any(place.size and not np.issubdtype(place.dtype, np.integer) for place in places):
        raise DataError("Indices of rows must be whole numbers: give numpy.flatnonzero of a mask.")
    together = np.concatenate([place.ravel() for place in places if place.size] or [np.zeros(0, int)])
    if (outside := together[(together < 0) | (together >= rows)]).size:
        raise DataError(f"There is no row {outside[0]}: indices go from 0 to {rows - 1}.")
    times = np.bincount(together, minlength=rows)
    if (twice := np.flatnonzero(times > 1)).size:
        raise DataError(f"Row {twice[0]} is given twice: give every row to one client.")
    if not drop and (left := int((times == 0).sum())):
        raise DataError(f"{left} rows belong to no client: give them to one, or pass drop=True to leave them out.")


def _enough(rows: int, parts: int) -> None:
    check_whole("number of rows", rows, 0)
    check_whole("number of parts", parts, 0)
    if not 1 <= parts <= rows:
        raise DataError(f"{rows} rows cannot be divided into {parts} parts with at least one row each.")
