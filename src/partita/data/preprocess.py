"""Federated preprocessing (round 0): clients send summary statistics and all apply the same standardisation.

The server merges the clients' summaries and sends the encoding back; every client encodes its own rows. The result is
the same as on pooled rows. Category names are sent, so do not include free-text columns.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partita.data.table import Table
from partita.errors import DataError

if TYPE_CHECKING:
    from partita.data.frame import Frame

LARGEST = 1e100
"""The largest absolute value; beyond it, sums of squares could overflow."""
_MOST = 2**53
"""The largest number of rows: exact as integer and as float."""


class Moments(NamedTuple):
    """A numeric column: how many values are present, their mean and the sum of squared distances from it.

    The mean is `mean + rest`, where `rest` is the rounding error of `mean`; without it, a column with mean 1e9 and
    small noise would be standardised to seven digits only.
    """

    present: int
    mean: float
    rest: float
    squares: float

    @property
    def exact_mean(self) -> Fraction:
        """The mean as a rational number."""
        return Fraction(self.mean) + Fraction(self.rest)


class Counts(NamedTuple):
    """A categorical column: the levels that were declared, and how many rows have each level, declared or not."""

    declared: tuple[str, ...]
    counts: Mapping[str, int]

    @property
    def levels(self) -> tuple[str, ...]:
        """The declared levels in their order, then the others sorted."""
        return (*self.declared, *sorted(set(self.counts) - set(self.declared)))


class Summary(NamedTuple):
    """The statistics that a client sends about its columns, in the frame's order."""

    columns: Mapping[str, Moments | Counts]

    def to_dict(self) -> dict[str, Any]:
        """The summary as lists, texts and numbers, for JSON."""
        return {
            "columns": [
                {"name": name, **column._asdict()}
                if isinstance(column, Moments)
                else {"name": name, "declared": list(column.declared), "counts": dict(column.counts)}
                for name, column in self.columns.items()
            ]
        }

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> "Summary":
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        try:
            columns = {str(column["name"]): _column(column) for column in contents["columns"]}
            if len(columns) < len(contents["columns"]):
                raise ValueError("a column appears twice")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"This is not a summary of columns ({error!r}): send what Summary.to_dict made.") from None
        return cls(columns)


class Encoding(NamedTuple):
    """How every client encodes its rows: levels per categorical column; mean and sd per encoded column.

    As in `Moments`, means are `mean + rest`.
    """

    columns: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    mean: np.ndarray
    rest: np.ndarray
    sd: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded columns, the intercept first."""
        names = ["intercept"]
        for column in self.columns:
            names += [f"{column}={level}" for level in self.levels[column]] if column in self.levels else [column]
        return tuple(names)

    def check(self, summary: "Summary") -> None:
        """Raises an `InputError` if rows with this summary cannot be encoded."""
        if tuple(summary.columns) != self.columns:
            columns = f"{', '.join(summary.columns)}, where {', '.join(self.columns)} were agreed on"
            raise DataError(f"The columns are {columns}: give the same in the same order.")
        for name, column in summary.columns.items():
            if isinstance(column, Counts) != (name in self.levels):
                raise DataError(f"Column {name!r} has another type than agreed on: make it numeric or categorical.")
            new = sorted(set(column.counts) - set(self.levels[name])) if isinstance(column, Counts) else []
            if new:
                raise DataError(f"Column {name!r} has the category {new[0]!r}, which was not seen in round 0.")

    def to_dict(self) -> dict[str, Any]:
        """The encoding as lists, texts and numbers, for JSON."""
        return {
            "columns": list(self.columns),
            "levels": {column: list(levels) for column, levels in self.levels.items()},
            **{name: getattr(self, name).tolist() for name in ("mean", "rest", "sd")},
        }

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> "Encoding":
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        try:
            scales = [np.array(contents[name], dtype=float) for name in ("mean", "rest", "sd")]
            levels = {str(column): tuple(map(str, some)) for column, some in contents["levels"].items()}
            found = cls(tuple(map(str, contents["columns"])), levels, *scales)
            if any(scale.shape != (len(found.names) - 1,) for scale in scales):
                raise ValueError("its columns and scales do not match")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"This is not an encoding ({error!r}): send what Encoding.to_dict made.") from None
        return found

    def encode(self, frame: "Frame") -> Table:
        """An intercept, then numbers and one-hot codes, all standardised; a missing number becomes the mean."""
        for column in (*self.columns, *frame.columns):
            if column not in frame.columns:
                raise DataError(f"Column {column!r} is missing from the frame: give the columns that were summarised.")
            if column not in self.columns:
                raise DataError(f"Column {column!r} was not summarised: drop it, or summarise all frames with it.")
        features = [
            _one_hot(column, _texts(column, frame.columns[column]), self.levels[column])
            if column in self.levels
            else _numbers(column, frame.columns[column])[:, None]
            for column in self.columns
        ]
        x = np.concatenate([np.empty((frame.size, 0)), *features], axis=1)
        x = ((x - self.mean) - self.rest) / self.sd
        inputs: Any = np.concatenate([np.ones((frame.size, 1)), np.where(np.isnan(x), 0.0, x)], axis=1)
        responses: Any = frame.y
        return Table(inputs, responses)


def summarise(frame: "Frame") -> Summary:
    """The summary of a client's frame."""
    return Summary(
        {
            name: _moments(_numbers(name, values))
            if values.dtype.kind == "f"
            else _counts(_texts(name, values), frame.levels.get(name, ()))
            for name, values in frame.columns.items()
        }
    )


def merge(summaries: Iterable[Summary]) -> Summary:
    """The summary of all rows: Chan's parallel formula in rational arithmetic, so that the order does not matter."""
    summaries = tuple(summaries)
    if not summaries:
        raise DataError("There is no summary to merge: give those of one client or more.")
    first, *others = summaries
    for other in others:
        if tuple(other.columns) != tuple(first.columns):
            raise DataError(
                f"One client summarises the columns {', '.join(other.columns)} and another {', '.join(first.columns)}: "
                "give all frames the same columns in the same order."
            )
    return Summary({name: _merged(name, [summary.columns[name] for summary in summaries]) for name in first.columns})


def encoding(summary: Summary) -> Encoding:
    """The encoding that standardises the summarised rows; a constant column is only centred.

    Variances are population variances (divided by n); an indicator's is p(1 − p).
    """
    levels: dict[str, tuple[str, ...]] = {}
    scales: list[tuple[float, float, float]] = []
    for name, column in summary.columns.items():
        if isinstance(column, Moments):
            scales.append((column.mean, column.rest, (column.squares / max(column.present, 1)) ** 0.5))
        else:
            levels[name] = column.levels
            rows = max(sum(column.counts.values()), 1)
            shares = [column.counts.get(level, 0) / rows for level in levels[name]]
            scales += [(share, 0.0, (share * (1 - share)) ** 0.5) for share in shares]
    mean, rest, sd = np.array(scales, dtype=float).reshape(-1, 3).T
    return Encoding(tuple(summary.columns), levels, mean, rest, np.where(sd > 0, sd, 1.0))


def federated(frames: Iterable["Frame"]) -> Encoding:
    """The common encoding of the clients' frames."""
    return encoding(merge(summarise(frame) for frame in frames))


def _moments(values: np.ndarray) -> Moments:
    present = values[~np.isnan(values)]
    if not len(present):
        return Moments(0, 0.0, 0.0, 0.0)
    # Differences from the first value avoid cancellation, and are exactly 0 if the column is constant.
    distances = present - present[0]
    shift = float(distances.mean())
    return _rounded(
        len(present), Fraction(float(present[0])) + Fraction(shift), float(np.sum(np.square(distances - shift)))
    )


def _rounded(present: int, mean: Fraction, squares: float) -> Moments:
    return Moments(present, float(mean), float(mean - Fraction(float(mean))), squares)


def _counts(values: np.ndarray, declared: tuple[str, ...]) -> Counts:
    return _ordered(declared, Counter(values.tolist()))


def _ordered(declared: tuple[str, ...], counts: Counter[str]) -> Counts:
    """Counts in an order that does not reveal the order of the rows."""
    return Counts(declared, {level: counts[level] for level in Counts(declared, counts).levels})


def _merged(name: str, columns: list[Moments | Counts]) -> Moments | Counts:
    moments = [column for column in columns if isinstance(column, Moments)]
    counts = [column for column in columns if isinstance(column, Counts)]
    if moments and counts:
        raise DataError(f"Column {name!r} is numeric at one client and categorical at another: give it one kind.")
    if moments:
        return _merged_moments(moments)
    if len({column.declared for column in counts}) > 1:
        raise DataError(f"Clients declare different levels for column {name!r}: declare the same, or none.")
    total: Counter[str] = Counter()
    for column in counts:
        total.update(column.counts)
    return _ordered(counts[0].declared, total)


def _merged_moments(columns: list[Moments]) -> Moments:
    present = sum(column.present for column in columns)
    mean = sum((column.present * column.exact_mean for column in columns), Fraction(0)) / max(present, 1)
    squares = sum(
        (Fraction(column.squares) + column.present * (column.exact_mean - mean) ** 2 for column in columns), Fraction(0)
    )
    return _rounded(present, mean, float(squares))


def _column(contents: Mapping[str, Any]) -> Moments | Counts:
    if "counts" in contents:
        declared = tuple(str(level) for level in contents["declared"])
        counts = {str(level): int(count) for level, count in contents["counts"].items()}
        if not all(0 <= count <= _MOST for count in counts.values()):
            raise ValueError("a count is not one of rows")
        return Counts(declared, counts)
    moments = Moments(
        int(contents["present"]), float(contents["mean"]), float(contents["rest"]), float(contents["squares"])
    )
    sums_of_rows = 0 <= moments.present <= _MOST and 0 <= moments.squares <= 4 * _MOST * LARGEST**2
    if not (sums_of_rows and abs(moments.mean) <= LARGEST and abs(moments.rest) <= LARGEST):
        raise ValueError("these are not a column's moments")
    return moments


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "f":
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


def _texts(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "U":
        value = values[0] if len(values) else values.dtype
        raise DataError(f"Column {name!r} has the value {value} where a category is expected: give texts.")
    return values


def _one_hot(name: str, values: np.ndarray, levels: tuple[str, ...]) -> np.ndarray:
    position = {level: i for i, level in enumerate(levels)}
    unknown = next((value for value in values.tolist() if value not in position), None)
    if unknown is not None:
        raise DataError(
            f"Column {name!r} has the category {unknown!r}, which was neither declared nor seen in round 0: "
            "declare it in the frame's levels."
        )
    codes = np.array([position[value] for value in values.tolist()], dtype=int)
    return np.eye(len(levels))[codes]
