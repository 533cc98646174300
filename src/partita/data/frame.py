"""A table before preprocessing: columns of numbers and of categories, and responses."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.data.columns import KINDS, Counts
from partita.data.labels import Labels
from partita.errors import DataError
from partita.inputs import check_kind, check_texts, real_array

__all__ = ["Frame", "Frames", "divided", "permuted"]


class Frame(NamedTuple):
    """Columns in a fixed order: floats, NaN where missing, or texts. Made by `Frame.build`, which checks it.

    `levels` holds the levels that are declared for categorical columns. Clients who declare the same levels encode
    alike even if some of them never see a level.
    """

    columns: Mapping[str, np.ndarray]
    y: np.ndarray
    levels: Mapping[str, tuple[str, ...]]
    labels: Labels | None = None
    """What `y` was before it became 1 and 0; None if it was numbers."""

    @classmethod
    def build(
        cls,
        columns: Mapping[str, np.ndarray],
        y: np.ndarray | None = None,
        levels: Mapping[str, Sequence[str]] | None = None,
        labels: Labels | None = None,
    ) -> "Frame":
        """A frame whose columns are floats or texts and as long as `y`; without `y`, rows whose response is unknown."""
        check_kind("columns", columns, Mapping, "give arrays by name", DataError, name="a dict")
        arrays = {str(name): _array(str(name), values) for name, values in columns.items()}
        if y is None:
            y = np.full(max((len(values) for values in arrays.values()), default=0), np.nan)
        y = real_array("responses", y, DataError).astype(float)
        if y.ndim != 1:
            raise DataError(f"The responses have the shape {y.shape}: give one a row.")
        kept = {name: _column(name, values, len(y)) for name, values in arrays.items()}
        if levels is not None:
            check_kind("levels", levels, Mapping, "give lists of texts by name", DataError, name="a dict")
        if labels is not None:
            check_kind("labels", labels, Labels, "give what a response was before it became 1 and 0", DataError)
        for name, declared in (levels or {}).items():
            check_texts(f"levels of {name!r}", declared)
        known = {name: tuple(str(level) for level in declared) for name, declared in (levels or {}).items()}
        for name, declared in known.items():
            if name not in kept or kept[name].dtype.kind != Counts.dtype.kind:
                raise DataError(f"Levels are declared for {name!r}, which is not a column of texts: declare none.")
            if len(set(declared)) < len(declared):
                raise DataError(f"The levels declared for {name!r} repeat one: declare each once.")
        return cls(kept, y, known, labels)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.y)

    def rows(self, indices: np.ndarray) -> "Frame":
        """Some of the rows, in the order of the indices."""
        columns = {name: values[indices] for name, values in self.columns.items()}
        return self._replace(columns=columns, y=self.y[indices])


class Frames(NamedTuple):
    """Rows to train on and rows to test with."""

    train: Frame
    test: Frame


def divided(frame: Frame) -> Frames:
    """The frame's rows as the paper's experiments divide them, in their order."""
    train, test = permuted(frame.size)
    return Frames(frame.rows(train), frame.rows(test))


def permuted(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The 80% of rows to train on and the rest, as the paper's experiments divide them."""
    order = np.random.RandomState(0).permutation(rows)
    return order[: int(0.8 * rows)], order[int(0.8 * rows) :]


def _array(name: str, values: Any) -> np.ndarray:
    """A column as a vector."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.empty(())
    if array.ndim == 0:
        raise DataError(f"Column {name!r} is not a vector: give one value a row.")
    return array


def _column(name: str, values: np.ndarray, rows: int) -> np.ndarray:
    if values.shape != (rows,):
        raise DataError(f"Column {name!r} has the shape {values.shape} beside {rows} responses: give one value a row.")
    for kind in KINDS.values():
        if (array := kind.array(values)) is not None:
            return array
    other = next(value for value in values if not isinstance(value, str))
    raise DataError(f"Column {name!r} holds {other!r} in an array of {values.dtype}: give floats only or texts only.")
