"""Limits on what a client discloses in round 0: sums of enough rows, without small cells."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from partita.errors import DataError, SettingsError
from partita.inputs import described

__all__ = ["FEW", "Limits"]

FEW = 3
"""The number of distinct values up to which a count, a sum and a sum of squares determine how many rows have each."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The smallest numbers of rows that may be disclosed.

    A site refuses to send sums of fewer. Small counts in bins are merged with neighbouring bins instead, so that
    quantiles, and with them knots of splines and ends of intervals, may be some bins off.
    """

    rows: int = 10
    """Of the client."""
    cell: int = 5
    """Of a level, of one of few values, of what differs from the commonest value, and of bins that are counted."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or value < 1:
                raise SettingsError(f"The limit of {name} is {described(value)}: give a whole number, 1 for no limit.")

    def raised(self, rows: int | None, cell: int | None) -> Self:
        """These limits with stricter ones in their place; an `InputError` where one is less strict."""
        wanted = {name: value for name, value in (("rows", rows), ("cell", cell)) if value is not None}
        for name, value in wanted.items():
            if value < (least := getattr(self, name)):
                raise SettingsError(
                    f"--least-{name} {value} is below the {least} of this federation: agree on less under [disclosure] "
                    "in everybody's federation.toml."
                )
        return dataclasses.replace(self, **wanted)

    def released(
        self,
        rows: int,
        numbers: Callable[[], Mapping[str, Float[np.ndarray, " n"]]],
        answer: Callable[[], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """An answer of round 0, with small counts in bins merged; an `InputError` where another cell is too small.

        The number of missing values has no limit.

        Args:
            rows: How many the site has.
            numbers: The columns whose sums are in the answer.
            answer: The answer; it is not made where there are too few rows.

        """
        if rows < self.rows:
            said = f"has fewer than {self.rows} rows, too few to disclose their sums"
            raise DataError(f"It {said}: lower the limit if that is acceptable.", f"It {said}.")
        for name, values in numbers().items():
            if _smallest(values) < self.cell:
                raise _declined(name, self)
        return {name: _merged(name, part, self) for name, part in answer().items()}


def _smallest(values: Float[np.ndarray, " n"]) -> float:
    """The smallest number of rows that the sums of a column disclose."""
    found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(found) < 2:
        return np.inf if counts.sum() in (0, len(values)) else counts.sum()
    return counts.min() if len(found) <= FEW else counts.sum() - counts.max()


def _merged(name: str, part: Any, limits: Limits) -> Any:
    """A part of an answer: small counts of levels are refused, and those in bins merged."""
    if isinstance(part, list) and part and all(type(count) is int for count in part):
        return _together(name, part, limits)
    for column in part if isinstance(part, list) else ():
        if any(0 < count < limits.cell for count in column.get("counts", {}).values()):
            raise _declined(column["name"], limits)
    return part


def _together(name: str, counts: list[int], limits: Limits) -> list[int]:
    """Counts with neighbouring bins merged into the fullest of them, so that each is 0 or large enough."""
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


def _declined(name: str, limits: Limits) -> DataError:
    said = f"has a cell of fewer than {limits.cell} rows in {name!r}, too few to disclose"
    return DataError(f"It {said}: merge levels, or lower the limit if that is acceptable.", f"It {said}.")
