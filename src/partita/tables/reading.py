"""Data frames and files, read into each site's columns; rows without a value that is needed are dropped and counted."""

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import narwhals
import numpy as np
import pandas

from partita.errors import DataError

__all__ = ["MISSING", "Columns", "Site", "columns_of", "complete", "frame_of", "sites_of"]

_READERS = {
    ".csv": functools.partial(pandas.read_csv, float_precision="round_trip"),
    ".parquet": pandas.read_parquet,
}
_ALL = "all rows"
"""The name of the only site, where no column names sites."""
MISSING = "(missing)"
"""The level of a category where its value is missing."""


Columns = Mapping[str, np.ndarray]
"""A site's columns by name: floats, NaN where missing, or texts, `MISSING` where missing."""


class Site(NamedTuple):
    """The rows of one site."""

    name: str
    columns: Columns
    rows: int
    dropped: int
    """How many rows were left out since a value that is needed was missing."""


def frame_of(source: Any) -> Any:
    """A data frame of any library, a mapping of columns, or the path of a CSV or Parquet file, as narwhals has it."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix.lower() not in _READERS:
            raise DataError(f"{path} is neither .csv nor .parquet: convert it, or pass a data frame.")
        try:
            source = _READERS[path.suffix.lower()](path)
        except FileNotFoundError:
            raise DataError(f"There is no file {path}: check its name.") from None
        except ImportError:
            raise DataError(
                f"Reading {path.name} needs pyarrow: pip install pyarrow, or convert the file to CSV."
            ) from None
        except Exception as error:  # parsers raise whatever their files make them
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DataError(f"{path} cannot be read ({reason:.100}): check that it is a table.") from None
    if isinstance(source, Mapping):
        try:
            source = pandas.DataFrame({str(name): np.asarray(values) for name, values in source.items()})
        except (TypeError, ValueError):
            raise DataError("The columns of the mapping differ in length or shape: give one value a row.") from None
    try:
        frame = narwhals.from_native(source)
        _ = frame.columns
    except narwhals.exceptions.DuplicateError:
        raise DataError("Two columns of the table have the same name: rename one.") from None
    except TypeError:
        raise DataError(
            f"A {type(source).__name__} is not a table: pass a data frame, a mapping of columns, or a file's path."
        ) from None
    return frame.collect() if isinstance(frame, narwhals.LazyFrame) else frame


def columns_of(frame: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns with these names: floats with NaN, or objects with None, where a value is missing."""
    found = {}
    for name in names:
        if name not in frame.columns:
            known = ", ".join(map(repr, frame.columns[:12])) + (", …" if len(frame.columns) > 12 else "")
            raise DataError(f"The table has no column {name!r}: it has {known}.", f"The table has no column {name!r}.")
        found[name] = _array(name, frame[name])
    return found


def sites_of(
    frame: Any, names: Sequence[str], sites: str | None, optional: Collection[str] = frozenset()
) -> list[Site]:
    """The rows of every site that have every value, save in optional columns; sites are a column's values, sorted."""
    columns = columns_of(frame, names)
    rows = len(frame)
    if not rows:
        raise DataError("The table has no rows: give at least one.", "The table has no rows.")
    if sites is None:
        whose = np.full(rows, _ALL)
    else:
        whose = _texts(columns_of(frame, [sites])[sites])
        if any(value is None for value in whose):
            raise DataError(
                f"Column {sites!r}, which names sites, is missing in some rows: fill it, or leave them out."
            )
    needed = {name: values for name, values in columns.items() if name not in optional}
    usable, found = complete(needed, rows), []
    for name in sorted(set(whose.tolist())):
        mine = whose == name
        kept = mine & usable
        if not kept.any():
            raise DataError(
                f"Every row of {name} has a missing value: leave the column out, or the site.",
                "Every row has a missing value.",
            )
        own = {column: _plain(values[kept]) for column, values in columns.items()}
        found.append(Site(name, own, int(kept.sum()), int((mine & ~usable).sum())))
    return found


def complete(columns: Columns, rows: int) -> np.ndarray:
    """Which of so many rows have a value in every column."""
    return ~np.any([np.zeros(rows, bool), *(_missing(values) for values in columns.values())], axis=0)


def _array(name: str, series: Any) -> np.ndarray:
    kind = series.dtype
    if kind.is_numeric():
        return np.asarray(series.cast(narwhals.Float64).to_numpy(), dtype=float)
    if kind == narwhals.Boolean or isinstance(kind, narwhals.String | narwhals.Categorical | narwhals.Enum):
        return np.array(series.to_list(), dtype=object)
    if kind == narwhals.Object:
        values = np.fromiter(series.to_list(), dtype=object)
        if all(value is None or value != value or isinstance(value, str | bool) for value in values):
            return values
    wrong = f"Column {name!r} has the type {kind}: give numbers, texts or truth values."
    raise DataError(wrong, wrong)


def _missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.array([value is None or value != value for value in values], bool)


def _plain(values: np.ndarray) -> np.ndarray:
    """Floats as they are, anything else as texts."""
    if values.dtype.kind == "f":
        return values
    absent = _missing(values)
    return np.array([MISSING if gone else str(value) for value, gone in zip(values, absent, strict=True)], dtype=str)


def _texts(values: np.ndarray) -> np.ndarray:
    missing = _missing(values)
    written = [
        None if gone else f"{value:g}" if isinstance(value, float) else str(value)
        for value, gone in zip(values, missing, strict=True)
    ]
    return np.array(written, dtype=object)
