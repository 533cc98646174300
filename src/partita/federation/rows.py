"""A client's file of rows: CSV or parquet, checked column by column against what the federation expects."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.data.frame import Frame
from partita.errors import FederationError
from partita.federation.config import Data


class Problems:
    """What is wrong with a file, column by column: for its owner, and without any value for everybody else."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, public: str, private: str = "") -> None:
        """Something that does not fit; the second part quotes a row."""
        self._found.append((public, private))

    def check(self, path: Path) -> None:
        """Raises an `InputError` if there is any."""
        if self._found:
            whole = "; ".join(public + private for public, private in self._found)
            told = "; ".join(public for public, _ in self._found)
            raise FederationError(
                f"{path.name} does not fit the federation: {whole}.", f"Its file does not fit: {told}."
            )


def read(path: Path, data: Data) -> Frame:
    """The rows of the columns that the federation uses. Everything that does not fit is told at once, by column."""
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
        raise FederationError("Files of rows are read by polars: pip install 'partita[flower]'.") from None
    if not path.is_file():
        raise FederationError(f"There is no file {path}.", "Its file is not there.")
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
        problems.add(f"column {column!r} has texts where numbers are expected")
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
    """A category as a text; 2.0 is written 2, as files differ in that."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _response(values: Any, data: Data, problems: Problems) -> np.ndarray:
    if values.null_count():
        problems.add(f"column {data.response!r} has {values.null_count()} rows without a response")
        return np.empty(0)
    if data.positive:
        return np.array([text(value) in data.positive for value in values.to_list()], dtype=float)
    if not values.dtype.is_numeric():
        problems.add(f"column {data.response!r} has texts where numbers are expected: say which are `positive`")
        return np.empty(0)
    return values.cast(float).to_numpy().astype(float)
