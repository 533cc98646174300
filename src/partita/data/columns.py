"""Kinds of columns: for each a class that says what a client sends of a column, and how its values are encoded."""

import abc
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np

from partita.errors import DataError

__all__ = ["KINDS", "LARGEST", "Column", "Counts", "Feature", "Moments", "Scale", "misfit", "texts"]

LARGEST = 1e100
"""The largest absolute value; beyond it, sums of squares could overflow."""
_MOST = 2**53
"""The largest number of rows: exact as integer and as float."""
_ROUNDING = 1e-9
"""How far, a row, a sum of squares may be from what it is without rounding."""
Feature = tuple[str, np.ndarray]
"""The name of an encoded column, and its values before they are scaled."""
Scale = tuple[float, float, float]
"""The mean of an encoded column, the rounding error of that mean, and the sd."""


@dataclasses.dataclass(frozen=True)
class Column(abc.ABC):
    """What a client sends of one column, as fields that `io.settings.build` can read.

    Clients may send anything: where no column has such numbers, `__post_init__` raises a ValueError.
    """

    kind: ClassVar[str]
    """The name of the kind."""
    dtype: ClassVar[np.dtype]
    """Of the arrays in a frame that are of this kind; no two kinds have the same `dtype.kind`."""

    @property
    def levels(self) -> tuple[str, ...]:
        """What has to be agreed on, besides scales, to encode the column."""
        return ()

    @property
    def size(self) -> int:
        """How many rows have a value; 0 where a kind does not say so."""
        return 0

    def missing(self, rows: int) -> int:
        """How many of so many rows have no value."""
        return 0

    @classmethod
    @abc.abstractmethod
    def array(cls, values: np.ndarray) -> np.ndarray | None:
        """The values as a frame has them; None if they are not of this kind."""

    @classmethod
    @abc.abstractmethod
    def read(cls, name: str, values: Any, levels: tuple[str, ...]) -> np.ndarray:
        """The same of a data file's column, a polars series; raises `misfit`."""

    @classmethod
    @abc.abstractmethod
    def summarise(cls, name: str, values: np.ndarray, declared: tuple[str, ...]) -> Self:
        """What is sent of a client's values, and of the levels that it declares."""

    @classmethod
    @abc.abstractmethod
    def merge(cls, name: str, columns: Sequence[Self]) -> Self:
        """The same for all clients' values."""

    def declares(self, levels: tuple[str, ...]) -> bool:
        """Whether a client has declared these levels and no others; without any, its values say which there are."""
        return True

    @abc.abstractmethod
    def scales(self) -> list[Scale]:
        """The scale of every encoded column; an sd of 0 if it is constant."""

    @classmethod
    @abc.abstractmethod
    def encode(cls, name: str, values: np.ndarray, levels: tuple[str, ...]) -> list[Feature]:
        """The encoded columns; NaN where missing."""


@dataclasses.dataclass(frozen=True)
class Moments(Column):
    """A numeric column: how many values are present, their mean and the sum of squared distances from it.

    The mean is `mean + rest`, where `rest` is the rounding error of `mean`; without it, a column with mean 1e9 and
    small noise would be standardised to seven digits only.
    """

    kind = "numeric"
    dtype = np.dtype(float)
    present: int
    mean: float
    rest: float
    squares: float

    def __post_init__(self) -> None:
        bounded = 0 <= self.present <= _MOST and 0 <= self.squares <= 4 * _MOST * LARGEST**2
        rounded = abs(self.mean) <= LARGEST and abs(self.rest) <= np.spacing(abs(self.mean))
        spread = self.present > 1 or self.squares == 0  # one value has no spread, and none has no mean
        if not (bounded and rounded and spread and (self.present > 0 or self.mean == 0)):
            raise ValueError("these are not a column's moments")

    @property
    def size(self) -> int:
        return self.present

    @property
    def is_bounded(self) -> bool:
        """Whether these may be the moments of numbers from 0 to 1."""
        return 0 <= self.mean <= 1 and self.squares <= self._widest + _ROUNDING * self.present

    @property
    def is_share(self) -> bool:
        """Whether these may be the moments of zeros and ones."""
        return self.is_bounded and self.squares >= self._widest - _ROUNDING * self.present

    @property
    def _widest(self) -> float:
        """The sum of squares of zeros and ones with this mean, the largest of numbers from 0 to 1."""
        return self.present * self.mean * (1 - self.mean)

    @property
    def exact_mean(self) -> Fraction:
        """The mean as a rational number."""
        return Fraction(self.mean) + Fraction(self.rest)

    @property
    def sd(self) -> float:
        """The standard deviation of the values that are present (divided by their number)."""
        return (self.squares / max(self.present, 1)) ** 0.5

    def missing(self, rows: int) -> int:
        return max(rows - self.present, 0)

    @classmethod
    def array(cls, values: np.ndarray) -> np.ndarray | None:
        return values.astype(float) if values.dtype.kind in "biuf" else None

    @classmethod
    def read(cls, name: str, values: Any, levels: tuple[str, ...] = ()) -> np.ndarray:
        if not values.dtype.is_numeric():
            raise misfit(f"column {name!r} has text where numbers are expected")
        return values.cast(float).fill_null(float("nan")).to_numpy().astype(float)

    @classmethod
    def summarise(cls, name: str, values: np.ndarray, declared: tuple[str, ...] = ()) -> Self:
        values = _bounded(name, values)
        present = values[~np.isnan(values)]
        if not len(present):
            return cls(0, 0.0, 0.0, 0.0)
        # Differences from the first value avoid cancellation, and are exactly 0 if the column is constant.
        distances = present - present[0]
        shift = float(distances.mean())
        squares = float(np.sum(np.square(distances - shift)))
        return cls._rounded(len(present), Fraction(float(present[0])) + Fraction(shift), squares)

    @classmethod
    def _rounded(cls, present: int, mean: Fraction, squares: float) -> Self:
        return cls(present, float(mean), float(mean - Fraction(float(mean))), squares)

    @classmethod
    def merge(cls, name: str, columns: Sequence[Self]) -> Self:
        present = sum(column.present for column in columns)
        mean = sum((column.present * column.exact_mean for column in columns), Fraction(0)) / max(present, 1)
        spreads = (Fraction(column.squares) + column.present * (column.exact_mean - mean) ** 2 for column in columns)
        return cls._rounded(present, mean, float(sum(spreads, Fraction(0))))

    def scales(self) -> list[Scale]:
        return [(self.mean, self.rest, self.sd)]

    @classmethod
    def encode(cls, name: str, values: np.ndarray, levels: tuple[str, ...]) -> list[Feature]:
        return [(name, _bounded(name, values))]


@dataclasses.dataclass(frozen=True)
class Counts(Column):
    """A categorical column: the levels that were declared, and how many rows have each level, declared or not."""

    kind = "categorical"
    dtype = np.dtype(str)
    declared: tuple[str, ...]
    counts: Mapping[str, int]

    def __post_init__(self) -> None:
        if not all(type(count) is int and 0 <= count <= _MOST for count in self.counts.values()):
            raise ValueError("a count is not one of rows")

    @property
    def levels(self) -> tuple[str, ...]:
        """The declared levels in their order, then the others sorted."""
        return (*self.declared, *sorted(set(self.counts) - set(self.declared)))

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    @classmethod
    def array(cls, values: np.ndarray) -> np.ndarray | None:
        texts = values.dtype.kind == cls.dtype.kind or all(isinstance(value, str) for value in values)
        return values.astype(str) if texts else None

    @classmethod
    def read(cls, name: str, values: Any, levels: tuple[str, ...]) -> np.ndarray:
        if values.null_count():
            raise misfit(f"column {name!r} has {values.null_count()} rows without a category")
        found = texts(values)
        strange = sorted(set(found) - set(levels)) if levels else []
        if strange:
            raise misfit(
                f"column {name!r} has categories that are not declared: add them to data.categories in the server's "
                "federation.toml, or write [] there to collect everybody's, and hand out the clients' folders again",
                f", such as {strange[0]!r}; with them the line is {json.dumps(name)} = "
                f"{json.dumps([*levels, *strange], ensure_ascii=False)}",
            )
        return np.array(found, dtype=str)

    @classmethod
    def summarise(cls, name: str, values: np.ndarray, declared: tuple[str, ...]) -> Self:
        return cls._ordered(declared, Counter(values.tolist()))

    @classmethod
    def _ordered(cls, declared: tuple[str, ...], counts: Counter[str]) -> Self:
        """Counts in an order that does not reveal the order of the rows."""
        return cls(declared, {level: counts[level] for level in cls(declared, counts).levels})

    @classmethod
    def merge(cls, name: str, columns: Sequence[Self]) -> Self:
        if len({column.declared for column in columns}) > 1:
            raise DataError(f"Clients declare different levels for column {name!r}: declare the same, or none.")
        total: Counter[str] = Counter()
        for column in columns:
            total.update(column.counts)
        return cls._ordered(columns[0].declared, +total)  # without levels that nobody has

    def declares(self, levels: tuple[str, ...]) -> bool:
        return self.declared == levels and (not levels or self.levels == levels)

    def scales(self) -> list[Scale]:
        rows = max(sum(self.counts.values()), 1)
        shares = [self.counts.get(level, 0) / rows for level in self.levels]
        return [(share, 0.0, (share * (1 - share)) ** 0.5) for share in shares]

    @classmethod
    def encode(cls, name: str, values: np.ndarray, levels: tuple[str, ...]) -> list[Feature]:
        if values.dtype.kind != cls.dtype.kind:
            value = values[0] if len(values) else values.dtype
            raise DataError(f"Column {name!r} has the value {value} where a category is expected: give texts.")
        new = values[~np.isin(values, np.array(levels, dtype=str))].tolist()
        if new:
            raise DataError(
                f"Column {name!r} has the category {new[0]!r}, which was neither declared nor seen in round 0: "
                "declare it in the frame's levels."
            )
        return [(f"{name}={level}", (values == level).astype(float)) for level in levels]


KINDS: Mapping[str, type[Column]] = {kind.kind: kind for kind in (Moments, Counts)}
"""The kinds of columns by their names; an array of a frame is of the first kind that takes it."""


def misfit(public: str, private: str = "") -> DataError:
    """The error of a data file's column that is not of its kind; only `private` may quote data."""
    return DataError(public + private, public)


def texts(values: Any) -> list[str]:
    """The values of a polars series as texts, without those that are missing; 2.0 becomes "2", as files differ."""
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values.drop_nulls().to_list()]


def _bounded(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != Moments.dtype.kind:
        text = next((value for value in values.tolist() if not _is_number(value)), values[0] if len(values) else "")
        raise DataError(f"Column {name!r} has the text {str(text)!r} where a number is expected: give floats.")
    wrong = np.abs(values) > LARGEST
    if wrong.any():
        raise DataError(f"Column {name!r} has the value {values[wrong][0]}: give finite numbers, NaN where missing.")
    return values


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
