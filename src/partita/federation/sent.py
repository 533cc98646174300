"""What leaves a client, in words and sizes, and the log of it beside the data."""

import datetime
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from partita.errors import DiskError
from partita.io.wire import Message, pack, sanitise

__all__ = ["SentLog", "in_words"]

_LARGEST = 2**23
"""The size of the log in bytes at which it is put aside, under the next number."""
_MOST_EMPTY = 1000
"""How many lines a process writes of what tells nothing of its rows, such as errors."""
_FEW = 12
"""The most levels that are named."""


def in_words(message: Message) -> str:
    """What a message of a client holds: its kind, its size as it is packed, and what each part tells."""
    kind = str(message.header.get("kind"))
    described = "; ".join(_PARTS.get(kind, _other)(message))
    return sanitise(f"{_NAMES.get(kind, kind)}, {len(pack(message)):,} bytes: {described}", 4000)


def _sums(message: Message) -> Iterator[str]:
    yield f"{message.header['rows']:,} rows used, {message.header['incomplete']:,} left out"
    answer = message.header["answer"]
    for name, part in answer.items():
        if name == "columns":
            yield from map(_column, part)
        elif isinstance(part, list):
            yield f"counts of {name!r} in {len(part)} bins"
        elif isinstance(part, dict):
            yield "the labels of the response"


def _column(column: dict[str, Any]) -> str:
    name = column["name"]
    if "counts" not in column:
        return f"number, mean and sum of squares of {name!r}"
    levels = [*map(repr, column["counts"])]
    shown = ", ".join(levels[:_FEW]) + (", …" if len(levels) > _FEW else "")
    return f"how many rows have each of {len(levels)} levels of {name!r} ({shown})"


def _factor(message: Message) -> Iterator[str]:
    numbers = sum(array.size for name, array in message.arrays.items() if name.startswith("."))
    yield f"the change of its factor, {numbers:,} numbers"
    if len(message.arrays) > sum(name.startswith(".") for name in message.arrays):
        yield "the gradient of its expected log-likelihood in hyperparameters"
    yield "its expected log-likelihood and free energy; the solver's outcome"


def _likelihood(message: Message) -> Iterator[str]:
    yield "its expected log-likelihood at a posterior, and the variance of that"


def _reason(message: Message) -> Iterator[str]:
    yield message.words("reason", "no reason")


def _other(message: Message) -> Iterator[str]:
    yield "nothing of its rows"


_NAMES = {"hello": "sums of round 0", "update": "an answer", "ell": "an answer", "estimate": "an answer"}
_PARTS: dict[str, Callable[[Message], Iterator[str]]] = {
    "hello": _sums,
    "update": _factor,
    "ell": _likelihood,
    "estimate": _likelihood,
    "error": _reason,
}


class SentLog:
    """A line for everything that leaves: when, to whom, and what. It is written first, and what cannot be stays.

    Nothing of it is ever removed, whatever a server sends: how often a client tells of its rows is bounded by its
    guard, what leaves again has no second line, and of what tells nothing of its rows there are few lines.
    """

    def __init__(self, path: Path, to: str) -> None:
        self.path, self.to = path, sanitise(to)
        self._written, self._empty = set[str](), 0

    def add(self, message: Message) -> None:
        """Writes a line; a `DiskError` if it cannot be written."""
        words = in_words(message)
        telling = message.header.get("kind") in _NAMES
        known = hashlib.sha256(pack(message)).hexdigest() if telling else words
        if known in self._written or (not telling and self._empty >= _MOST_EMPTY):
            return
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._write(f"{when}  to {self.to}  {words}\n".encode())
        self._written.add(known)
        self._empty += not telling

    def _write(self, line: bytes) -> None:
        try:
            if self.path.exists() and self.path.stat().st_size > _LARGEST:
                places = (self.path.with_name(f"{self.path.name}.{k}") for k in itertools.count(1))
                os.replace(self.path, next(place for place in places if not place.exists()))
            with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(line)
        except OSError as error:
            raise DiskError(self.path, error.strerror or error) from error
