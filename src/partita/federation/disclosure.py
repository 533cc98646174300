"""What a client's owner lets leave in round 0: sums of enough rows, and no small cell among them."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from partita.errors import FederationError, SettingsError
from partita.federation.scheme import Answer, Own, Scheme

__all__ = ["Limits", "released"]

_TELLING = 3
"""A number, a sum and a sum of squares tell how many rows have each of so many values."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The smallest numbers of rows that may be told of."""

    rows: int = 10
    """Of the client."""
    cell: int = 5
    """Of a level, of one of few values, of what differs from the commonest value, and of bins that are counted."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or value < 1:
                raise SettingsError(f"The limit of {name} is {value!r}: give a whole number, 1 for no limit.")


def released(scheme: Scheme, own: Own, limits: Limits) -> Answer:
    """A client's next answer, with small counts in bins merged; an `InputError` where another cell is too small.

    How many values are missing is told as it is.
    """
    if own.size < limits.rows:
        said = f"has fewer than {limits.rows} rows, of which its owner tells nothing"
        raise FederationError(f"It {said}: lower --least-rows if that may be.", f"It {said}.")
    for name, values in scheme.numbers(own).items():
        if _smallest(values) < limits.cell:
            raise _declined(name, limits)
    return {name: _merged(name, part, limits) for name, part in scheme.answer(own).items()}


def _smallest(values: Float[np.ndarray, " n"]) -> float:
    """The smallest number of rows that sums of a column tell of."""
    found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(found) < 2:
        return np.inf if counts.sum() in (0, len(values)) else counts.sum()
    return counts.min() if len(found) <= _TELLING else counts.sum() - counts.max()


def _merged(name: str, part: Any, limits: Limits) -> Any:
    """A part of an answer: counts of levels are large enough, and counts in bins are made so."""
    if isinstance(part, list) and part and all(type(count) is int for count in part):
        return _together(name, part, limits)
    for column in part if isinstance(part, list) else ():
        if any(0 < count < limits.cell for count in column.get("counts", {}).values()):
            raise _declined(column["name"], limits)
    return part


def _together(name: str, counts: list[int], limits: Limits) -> list[int]:
    """Counts in neighbouring bins together in the fullest of them, so that none but 0 is small."""
    found, group = [0] * len(counts), list[int]()
    for place, count in enumerate(counts):
        group += [place] if count else []
        total = sum(counts[k] for k in group)
        if total >= limits.cell and sum(counts[place + 1 :]) not in range(1, limits.cell):
            found[max(group, key=lambda k: counts[k])] = total
            group = []
    if group:
        raise _declined(name, limits)
    return found


def _declined(name: str, limits: Limits) -> FederationError:
    said = f"has a cell of fewer than {limits.cell} rows in {name!r}, of which its owner tells nothing"
    return FederationError(f"It {said}: merge levels, or lower --least-cell if that may be.", f"It {said}.")
