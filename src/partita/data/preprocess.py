"""Federated preprocessing (round 0): clients send summary statistics and all apply the same standardisation.

The server merges the clients' summaries and sends the encoding back; every client encodes its own rows. The result is
the same as on pooled rows. Category names are sent, so do not include free-text columns.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from partita.data.columns import KINDS, Column, Feature
from partita.data.frame import Frame
from partita.data.labels import Labels, agreed
from partita.data.table import Table
from partita.errors import DataError
from partita.io.settings import build

__all__ = ["Encoding", "Summary", "encoding", "federated", "merge", "summarise"]

_SCALES = ("mean", "rest", "sd")
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class Summary(NamedTuple):
    """The statistics that a client sends about its columns, in the frame's order."""

    columns: Mapping[str, Column]
    labels: Labels | None = None
    """Of the response; None if it is a number."""

    def to_dict(self) -> dict[str, Any]:
        """The summary as lists, texts and numbers, for JSON."""
        columns = [{"name": name, **dataclasses.asdict(column)} for name, column in self.columns.items()]
        return {"columns": columns, "labels": _written(self.labels)}

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> "Summary":
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        try:
            columns = dict(_column(**column) for column in contents["columns"])
            if len(columns) < len(contents["columns"]):
                raise ValueError("a column appears twice")
            labels = _labels(contents, "the summary")
        except _DAMAGED as error:
            raise DataError(f"This is not a summary ({error!r:.200}): send what Summary.to_dict made.") from None
        return cls(columns, labels)


class Encoding(NamedTuple):
    """How every client encodes its rows: kinds of columns and their levels; mean and sd per encoded column.

    As in `Moments`, means are `mean + rest`.
    """

    columns: Mapping[str, type[Column]]
    levels: Mapping[str, tuple[str, ...]]
    """Of the columns that have some."""
    mean: Float[np.ndarray, " d"]
    rest: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    labels: Labels | None = None
    """Of the response; None if it is a number."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded columns, the intercept first."""
        none = {name: np.empty(0, kind.dtype) for name, kind in self.columns.items()}
        return ("intercept", *(name for name, _ in self._features(none)))

    def check(self, summary: Summary) -> None:
        """Raises an `InputError` if rows with this summary cannot be encoded."""
        if list(summary.columns) != list(self.columns):
            columns = f"{', '.join(summary.columns)}, where {', '.join(self.columns)} were agreed on"
            raise DataError(f"The columns are {columns}: give the same in the same order.")
        for name, column in summary.columns.items():
            if type(column) is not self.columns[name]:
                kind = self.columns[name].kind
                raise DataError(f"Column {name!r} has another type than agreed on: make it {kind}.")
            new = sorted(set(column.levels) - set(self.levels.get(name, ())))
            if new:
                raise DataError(
                    f"Column {name!r} has the category {new[0]!r}, which was not seen in round 0: recode it, or start "
                    "a new run in which it is declared, or this client takes part from the beginning."
                )
        agreed([self.labels, summary.labels])

    def to_dict(self) -> dict[str, Any]:
        """The encoding as lists, texts and numbers, for JSON."""
        return {
            "columns": {name: kind.kind for name, kind in self.columns.items()},
            "levels": {name: list(levels) for name, levels in self.levels.items()},
            **{name: getattr(self, name).tolist() for name in _SCALES},
            "labels": _written(self.labels),
        }

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> "Encoding":
        """The inverse of `to_dict`; anything else raises an `InputError`."""
        try:
            columns = {str(name): KINDS[kind] for name, kind in contents["columns"].items()}
            levels = {str(name): tuple(map(str, some)) for name, some in contents["levels"].items()}
            mean, rest, sd = (np.array(contents[name], dtype=float) for name in _SCALES)
            found = cls(columns, levels, mean, rest, sd, _labels(contents, "the encoding"))
            if any(getattr(found, name).shape != (len(found.names) - 1,) for name in _SCALES):
                raise ValueError("its columns and scales do not match")
        except _DAMAGED as error:
            raise DataError(f"This is not an encoding ({error!r:.200}): send what Encoding.to_dict made.") from None
        return found

    def encode(self, frame: Frame) -> Table:
        """An intercept, then numbers and one-hot codes, all standardised; a missing number becomes the mean."""
        for column in (*self.columns, *frame.columns):
            if column not in frame.columns:
                raise DataError(f"Column {column!r} is missing from the frame: give the columns that were summarised.")
            if column not in self.columns:
                raise DataError(f"Column {column!r} was not summarised: drop it, or summarise all frames with it.")
        if frame.labels is not None:
            agreed([self.labels, frame.labels])
        x = np.column_stack([np.empty((frame.size, 0)), *(values for _, values in self._features(frame.columns))])
        x = ((x - self.mean) - self.rest) / self.sd
        inputs: Any = np.concatenate([np.ones((frame.size, 1)), np.where(np.isnan(x), 0.0, x)], axis=1)
        responses: Any = frame.y
        return Table(inputs, responses)

    def _features(self, values: Mapping[str, np.ndarray]) -> list[Feature]:
        parts = (kind.encode(name, values[name], self.levels.get(name, ())) for name, kind in self.columns.items())
        return list(itertools.chain.from_iterable(parts))


def summarise(frame: Frame) -> Summary:
    """The summary of a client's frame."""
    kinds = {kind.dtype.kind: kind for kind in KINDS.values()}
    return Summary(
        {
            name: kinds[values.dtype.kind].summarise(name, values, frame.levels.get(name, ()))
            for name, values in frame.columns.items()
        },
        frame.labels,
    )


def merge(summaries: Iterable[Summary]) -> Summary:
    """The summary of all rows: Chan's parallel formula in rational arithmetic, so that the order does not matter."""
    summaries = tuple(summaries)
    if not summaries:
        raise DataError("There is no summary to merge: give those of one client or more.")
    first, *others = summaries
    for other in others:
        if list(other.columns) != list(first.columns):
            raise DataError(
                f"One client summarises the columns {', '.join(other.columns)} and another {', '.join(first.columns)}: "
                "give all frames the same columns in the same order."
            )
    columns = {name: _merged(name, [summary.columns[name] for summary in summaries]) for name in first.columns}
    return Summary(columns, agreed([summary.labels for summary in summaries]))


def encoding(summary: Summary) -> Encoding:
    """The encoding that standardises the summarised rows; a constant column is only centred.

    Variances are population variances (divided by n); an indicator's is p(1 − p).
    """
    scales = [scale for column in summary.columns.values() for scale in column.scales()]
    mean, rest, sd = np.array(scales, dtype=float).reshape(-1, 3).T
    return Encoding(
        {name: type(column) for name, column in summary.columns.items()},
        {name: column.levels for name, column in summary.columns.items() if column.levels},
        mean,
        rest,
        np.where(sd > 0, sd, 1.0),
        summary.labels,
    )


def federated(frames: Iterable[Frame]) -> Encoding:
    """The common encoding of the clients' frames."""
    return encoding(merge(summarise(frame) for frame in frames))


def _column(name: str, **contents: Any) -> tuple[str, Column]:
    """A column's summary, whose kind its fields determine."""
    fields = {kind: {field.name for field in dataclasses.fields(kind)} for kind in KINDS.values()}
    (kind,) = (kind for kind in KINDS.values() if fields[kind] == contents.keys())
    return str(name), build(kind, contents, "the summary")


def _written(labels: Labels | None) -> dict[str, Any] | None:
    return None if labels is None else {name: list(texts) for name, texts in dataclasses.asdict(labels).items()}


def _labels(contents: Mapping[str, Any], source: str) -> Labels | None:
    """The inverse of `_written`."""
    written = contents.get("labels")
    return None if written is None else build(Labels, written, source)


def _merged(name: str, columns: list[Column]) -> Column:
    kinds = [kind for kind in KINDS.values() if any(type(column) is kind for column in columns)]
    if len(kinds) > 1:
        words = " at one client and ".join(kind.kind for kind in kinds[:2])
        raise DataError(f"Column {name!r} is {words} at another: give it one kind.")
    return kinds[0].merge(name, columns)
