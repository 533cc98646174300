"""Reads a client's data file (CSV or parquet) and validates its columns against the federation's."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.data.frame import Frame
from partita.errors import FederationError
from partita.federation.config import Data


class Problems:
    """Errors in a data file by column: with values for its owner, without values for the server."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, public: str, private: str = "") -> None:
        """Adds an error; `private` may quote data."""
        self._found.append((public, private))

    def check(self, path: Path) -> None:
        """Raises an `InputError` if there are errors."""
        if self._found:
            whole = "; ".join(public + private for public, private in self._found)
            told = "; ".join(public for public, _ in self._found)
            raise FederationError(
                f"{path.name} does not fit the federation: {whole}.", f"Its file does not fit: {told}."
            )


def read(path: Path, data: Data) -> Frame:
    """Reads the columns that the federation uses; reports all errors at once, by column."""
    table = whole(path)
    problems = Problems()
    missing = [column for column in (*data.numbers, *data.categories, data.response) if column not in table.columns]
    for column in missing:
        problems.add(f"column {column!r} is missing")
    columns: dict[str, np.ndarray] = {}
    for column in data.numbers:
        if column not in missing:
            columns[column] = _numbers(table[column], column, problems)
    for column, levels in data.categories.items():
        if column not in missing:
            columns[column] = _categories(table[column], column, tuple(levels), problems)
    response = None if data.response in missing else _response(table[data.response], data, problems)
    problems.check(path)
    if not len(table):
        raise FederationError(f"{path.name} has no rows: give it at least one.", "Its file has no rows.")
    levels = {column: tuple(levels) for column, levels in data.categories.items() if levels}
    return Frame.build(columns, np.asarray(response), levels)


def whole(path: Path) -> Any:
    """All columns of a file, as a polars frame."""
    try:
        import polars
    except ImportError:
        raise FederationError("Reading data files needs polars: pip install 'partita[flower]'.") from None
    if not path.is_file():
        raise FederationError(f"There is no file {path}.", "Its data file does not exist.")
    try:
        if path.suffix == ".parquet":
            return polars.read_parquet(path)
        return polars.read_csv(path, infer_schema_length=None, null_values=["", "?", "NA"])
    except (polars.exceptions.PolarsError, OSError) as error:
        why = str(error).splitlines()[0]
        raise FederationError(
            f"{path.name} cannot be read as a table: {why}", "Its file cannot be read as a table."
        ) from None


def _numbers(values: Any, column: str, problems: Problems) -> np.ndarray:
    if not values.dtype.is_numeric():
        problems.add(f"column {column!r} has text where numbers are expected")
        return np.empty(0)
    return values.cast(float).fill_null(float("nan")).to_numpy().astype(float)


def _categories(values: Any, column: str, levels: tuple[str, ...], problems: Problems) -> np.ndarray:
    if values.null_count():
        problems.add(f"column {column!r} has {values.null_count()} rows without a category")
        return np.empty(0, str)
    texts = np.array([text(value) for value in values.to_list()], dtype=str)
    strange = sorted(set(texts.tolist()) - set(levels)) if levels else []
    if strange:
        problems.add(f"column {column!r} has categories that are not declared", f", such as {strange[0]!r}")
    return texts


def text(value: Any) -> str:
    """A category as text; 2.0 becomes "2", since files differ in that."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _response(values: Any, data: Data, problems: Problems) -> np.ndarray:
    if values.null_count():
        problems.add(f"column {data.response!r} has {values.null_count()} rows without a response")
        return np.empty(0)
    if data.positive:
        return np.array([text(value) in data.positive for value in values.to_list()], dtype=float)
    if not values.dtype.is_numeric():
        problems.add(f"column {data.response!r} has text where numbers are expected: list the `positive` values")
        return np.empty(0)
    return values.cast(float).to_numpy().astype(float)
