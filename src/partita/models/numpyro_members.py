"""Rows by the members of a local plate: a member with all of its rows is what is called a row elsewhere."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from partita.data.shard import real_numbers
from partita.errors import DataError
from partita.inputs import described
from partita.models.numpyro_trace import Rows

__all__ = ["Members", "grouped", "numbered"]


class Members(NamedTuple):
    """Rows by members. Those of a member that has fewer than another repeat its first one, and do not count."""

    rows: Mapping[str, Shaped[Array | np.ndarray, "g w ..."]]
    """By the names of the model's arguments: of every member its rows."""
    counts: Float[Array | np.ndarray, "g w"]
    """1 for a row, 0 for what fills up."""


def numbered(rows: Rows, column: str) -> tuple[Rows, Int[np.ndarray, " n"]]:
    """The rows with members numbered from 0 up, and these numbers."""
    number = np.unique(rows[column], return_inverse=True)[1]
    return dict(rows) | {column: number.astype(np.asarray(rows[column]).dtype)}, number


def grouped(clients: Sequence[Rows], plate: str, column: str) -> list[Members]:
    """Each client's rows by members, in the order of their labels; all clients' members are equally wide.

    Raises a `DataError` where a member has rows at two clients.
    """
    if not isinstance(clients, Sequence) or not len(clients) or not all(isinstance(rows, Mapping) for rows in clients):
        raise DataError(f"Give a list with the rows of each client, as dicts, not {described(clients)}.")
    clients = [real_numbers(dict(rows)) for rows in clients]
    owners = dict[float, int]()
    for place, rows in enumerate(clients):
        if column not in rows or len({len(values) for values in rows.values()}) != 1:
            raise DataError(
                f"The rows of client {place} lack a column {column!r}, or columns differ in length: give it."
            )
        for label in np.unique(rows[column]).tolist():
            if owners.setdefault(label, place) != place:
                raise DataError(
                    f"A member of the plate {plate!r} has rows at client {owners[label]} and at client {place}, which "
                    f"both need its local variables: deal rows by {column!r}, and give different members different "
                    "numbers."
                )
    width = max(int(np.unique(rows[column], return_counts=True)[1].max()) for rows in clients)
    return [_members(rows, column, width) for rows in clients]


def _members(rows: Rows, column: str, width: int) -> Members:
    rows, number = numbered(rows, column)
    order, sizes = np.argsort(number, kind="stable"), np.bincount(number)
    starts = np.cumsum(sizes) - sizes
    counts = np.arange(width) < sizes[:, None]
    places = order[starts[:, None] + np.where(counts, np.arange(width), 0)]
    # within a member it is the only one
    taken = {name: np.asarray(values)[places] for name, values in rows.items()}
    return Members(taken | {column: np.zeros_like(taken[column])}, counts.astype(float))
