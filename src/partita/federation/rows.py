"""Reads a client's data file (CSV or parquet), of a federation without a formula, and validates its columns."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.data.columns import Moments, misfit, texts
from partita.data.frame import Frame
from partita.data.labels import Labels
from partita.errors import DataError, FederationError, MissingExtraError
from partita.federation.config import Data

__all__ = ["read"]


def read(path: Path, data: Data, response: bool = True) -> Frame:
    """Reads the columns that the federation uses; reports all errors at once, by column.

    Rows to predict need no `response`: where the file has no such column it is NaN.
    """
    table, expected = _whole(path), data.columns
    if not len(table):
        raise FederationError(f"{path.name} has no rows: give it at least one.", "Its file has no rows.")
    columns: dict[str, np.ndarray] = {}
    problems = []
    y, labels = None, None
    for name in (*expected, *([data.response] if response or data.response in table.columns else [])):
        try:
            if name not in table.columns:
                raise misfit(f"column {name!r} is missing")
            if name in expected:
                kind, levels = expected[name]
                columns[name] = kind.read(name, table[name], levels)
            else:
                y, labels = _response(table[name], data)
        except DataError as error:
            problems.append(error)
    if problems:
        raise FederationError(
            f"{path.name} does not fit the federation: {'; '.join(map(str, problems))}.",
            f"Its file does not fit: {'; '.join(str(error.public) for error in problems)}.",
        )
    return Frame.build(columns, y, {name: levels for name, (_, levels) in expected.items() if levels}, labels)


def _whole(path: Path) -> Any:
    """All columns of a file, as a polars frame."""
    try:
        import polars
    except ImportError:
        raise MissingExtraError("polars, which reads data files,", "flower") from None
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


def _response(values: Any, data: Data) -> tuple[np.ndarray, Labels | None]:
    if values.null_count():
        raise misfit(f"column {data.response!r} has {values.null_count()} rows without a response")
    if data.positive:
        labels = Labels.of(data.response, texts(values), data.positive, data.negative)
        return labels.encode(texts(values)), labels
    if not values.dtype.is_numeric():
        raise misfit(f"column {data.response!r} has text where numbers are expected: list the `positive` values")
    return Moments.read(data.response, values), None
