"""Reads a client's data file (CSV or parquet) and validates its columns against the federation's."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.data.columns import Moments, misfit, texts
from partita.data.frame import Frame
from partita.errors import DataError, FederationError
from partita.federation.config import Data

__all__ = ["read", "whole"]


def read(path: Path, data: Data) -> Frame:
    """Reads the columns that the federation uses; reports all errors at once, by column."""
    table, expected = whole(path), data.columns
    if not len(table):
        raise FederationError(f"{path.name} has no rows: give it at least one.", "Its file has no rows.")
    columns: dict[str, np.ndarray] = {}
    problems = []
    for name in (*expected, data.response):
        try:
            if name not in table.columns:
                raise misfit(f"column {name!r} is missing")
            if name in expected:
                kind, levels = expected[name]
                columns[name] = kind.read(name, table[name], levels)
            else:
                response = _response(table[name], data)
        except DataError as error:
            problems.append(error)
    if problems:
        raise FederationError(
            f"{path.name} does not fit the federation: {'; '.join(map(str, problems))}.",
            f"Its file does not fit: {'; '.join(str(error.public) for error in problems)}.",
        )
    return Frame.build(columns, response, {name: levels for name, (_, levels) in expected.items() if levels})


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


def _response(values: Any, data: Data) -> np.ndarray:
    if values.null_count():
        raise misfit(f"column {data.response!r} has {values.null_count()} rows without a response")
    if data.positive:
        return np.isin(texts(values), data.positive).astype(float)
    if not values.dtype.is_numeric():
        raise misfit(f"column {data.response!r} has text where numbers are expected: list the `positive` values")
    return Moments.read(data.response, values)
