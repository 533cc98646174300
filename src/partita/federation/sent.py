"""Descriptions of what leaves a client, and the log of them beside the data."""

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
"""The size of the log in bytes beyond which it is rotated, under the next number."""
_MOST_EMPTY = 1000
"""How many lines a process writes for messages without information about rows, such as errors."""
_FEW = 12
"""The most levels that are named."""


def in_words(message: Message) -> str:
    """A description of a client's message: its kind, its packed size, and what each part contains."""
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
    """A line for every message that leaves: when, to whom, and what. Without its line a message does not leave.

    Lines are never removed. A server cannot fill the disk with them: the guard bounds how often a client sends numbers
    about its rows, a repeated message has no second line, and the number of lines about other messages is bounded.
    """

    def __init__(self, path: Path, to: str) -> None:
        self.path, self.to = path, sanitise(to)
        self._written, self._empty = set[str](), 0

    def add(self, message: Message) -> None:
        """Writes a line; a `DiskError` if it cannot be written."""
        words = in_words(message)
        about_rows = message.header.get("kind") in _NAMES
        known = hashlib.sha256(pack(message)).hexdigest() if about_rows else words
        if known in self._written or (not about_rows and self._empty >= _MOST_EMPTY):
            return
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._write(f"{when}  to {self.to}  {words}\n".encode())
        self._written.add(known)
        self._empty += not about_rows

    def _write(self, line: bytes) -> None:
        try:
            if self.path.exists() and self.path.stat().st_size > _LARGEST:
                places = (self.path.with_name(f"{self.path.name}.{k}") for k in itertools.count(1))
                os.replace(self.path, next(place for place in places if not place.exists()))
            with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(line)
        except OSError as error:
            raise DiskError(self.path, error.strerror or error) from error
