"""Rows of a table as columns: a number takes sixteen bytes, and what is empty or repeated hardly more."""

import array
import bisect
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

__all__ = ["Column", "HistoryRows"]

_CODES = {float: "d", int: "q"}
_INTEGERS = 2**63


class Column:
    """The values of one name, and in which rows they are."""

    def __init__(self) -> None:
        self.places = array.array("q")
        """The rows that have one, in order."""
        self.values: array.array[Any] | list[Any] | None = None
        """Numbers of one type, or anything else."""

    def append(self, place: int, value: Any, known: dict[Any, Any]) -> None:
        """Adds the value of a row; the names of single clients are kept once, in `known`."""
        code = _CODES.get(type(value)) if type(value) is not int or abs(value) < _INTEGERS else None
        if self.values is None:
            self.values = [] if code is None else array.array(code)
        if isinstance(self.values, array.array) and self.values.typecode != code:
            self.values = list(self.values)
        if isinstance(self.values, list):
            same = bool(self.values) and type(self.values[-1]) is type(value) and self.values[-1] == value
            value = self.values[-1] if same else _kept(value, known)
        self.values.append(value)
        self.places.append(place)

    def __len__(self) -> int:
        return len(self.places)

    def at(self, place: int) -> int:
        """Where among the values that of a row would be."""
        if len(self.places) > place and self.places[place] == place:
            return place  # every row up to here has one
        return bisect.bisect_left(self.places, place)

    def value(self, index: int) -> Any:
        """A value, of which containers are copies."""
        assert self.values is not None
        return copy.copy(self.values[index])


def _kept(value: Any, known: dict[Any, Any]) -> Any:
    """A value as it is kept: what is contained in it is not changed by whoever appended it."""
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is str:
        return known.setdefault(value[0], list(value))
    return copy.copy(value)


class HistoryRows(Sequence[dict[str, Any]]):
    """The rows, each made when it is asked for."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        """By name, in the order of their first appearance."""
        self._known: dict[Any, Any] = {}
        self._number = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        for name, value in row.items():
            self.columns.setdefault(name, Column()).append(self._number, value, self._known)
        self._number += 1

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        chosen = range(self._number)[place]
        if isinstance(chosen, range):
            return [self[one] for one in chosen]
        row = {}
        for name, column in self.columns.items():
            index = column.at(chosen)
            if index < len(column) and column.places[index] == chosen:
                row[name] = column.value(index)
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def entries(self, name: str) -> Iterator[tuple[int, Any]]:
        """The values of a column with their rows, the last first."""
        column = self.columns.get(name)
        if column is not None and column.values is not None:
            for index in range(len(column) - 1, -1, -1):
                yield column.places[index], column.values[index]
