"""How a federation turns rows into a model. Clients, server and rehearsal know no more of what is fitted than this."""

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from partita.data.disclosure import Limits
from partita.data.table import GroupedTable, OffsetTable, Table
from partita.errors import DataError, InputError
from partita.families import Family
from partita.models import Model
from partita.models.prior import OutsidePrior
from partita.server.method import Method
from partita.server.run import Result

__all__ = ["PRIVATE_ERROR", "Answer", "Own", "Row", "Scheme", "Sizes", "naming_response"]

Answer = Mapping[str, Any]
"""What a client sends before the first task: counts and sums as lists, texts and numbers."""
Row = dict[str, float | str]
"""A row of a summary of the posterior."""
Sizes = Mapping[str, tuple[int, int]]
"""The rows of clients that took part, and how many were left out since a value is missing."""
PRIVATE_ERROR = "The client cannot use its data; the details are only in the client's log."


class Own(NamedTuple):
    """A client's rows, as its scheme has read them."""

    rows: Any
    size: int
    incomplete: int = 0
    """How many rows are left out since a value is missing."""


class Scheme(abc.ABC):
    """What is fitted, with what clients have agreed on so far.

    In each stage of round 0 every client sends an `answer`, and the next stage follows from all of them (`taken`),
    until the scheme is `complete`.
    """

    @property
    @abc.abstractmethod
    def stages_left(self) -> int:
        """How many stages of round 0 are left."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to agree on."""
        return self.stages_left == 0

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...] | None:
        """The names of the parameters; None where places are their names."""

    @abc.abstractmethod
    def read(self, path: Path, name: str) -> Own:
        """The rows of a client's file; an `InputError` unless they can be used."""

    @abc.abstractmethod
    def answer(self, own: Own) -> Answer:
        """What a client sends next; an `InputError` where its rows do not fit what was agreed on."""

    def released(self, own: Own, limits: Limits) -> Answer:
        """What a client sends next, with small counts merged; an `InputError` where the owner's limits forbid it."""
        return limits.released(own.size, lambda: self.numbers(own), lambda: self.answer(own))

    @abc.abstractmethod
    def numbers(self, own: Own) -> Mapping[str, Float[np.ndarray, " n"]]:
        """The columns of numbers whose sums a client sends next; once the scheme is complete, those of its design."""

    @abc.abstractmethod
    def check(self, answer: Answer, rows: int) -> None:
        """Raises an `InputError` unless a client with so many rows can have this answer, and take part with it."""

    @abc.abstractmethod
    def misfits(self, answers: Mapping[str, Answer]) -> dict[str, str]:
        """The clients that cannot agree with most others, and why."""

    @abc.abstractmethod
    def outlying(self, answers: Mapping[str, Answer], bound: float) -> dict[str, str]:
        """Clients whose means or sds are further from the medians of all than a bound, and why; 0 is no bound."""

    @abc.abstractmethod
    def imputed(self, answer: Answer, rows: int) -> dict[str, int]:
        """The numbers that are missing at a client, by column, and become everybody's mean."""

    @abc.abstractmethod
    def taken(self, answers: Sequence[Answer]) -> "Scheme":
        """The next stage, from the answers of all clients in their order."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What was agreed on so far, as lists, texts and numbers, for JSON."""

    @abc.abstractmethod
    def restored(self, contents: Mapping[str, Any]) -> "Scheme":
        """The same with what was agreed on, from `to_dict`; anything else raises an `InputError`."""

    @abc.abstractmethod
    def table(self, own: Own) -> Table | OffsetTable | GroupedTable:
        """A client's rows as numbers, once the scheme is complete."""

    @abc.abstractmethod
    def weights(self, own: Own) -> Float[np.ndarray, " n"]:
        """The weight of each row."""

    @abc.abstractmethod
    def model(self) -> Model:
        """The likelihood."""

    @abc.abstractmethod
    def prior(self) -> Family | OutsidePrior:
        """The prior: a member of q's family, or an `OutsidePrior` with a base in it."""

    @abc.abstractmethod
    def method(self) -> Method:
        """By which it is fitted."""

    @abc.abstractmethod
    def summary(self, result: Result, sizes: Sizes) -> list[Row]:
        """A row per parameter."""

    @abc.abstractmethod
    def remarks(self, result: Result, sizes: Sizes) -> list[str]:
        """What a reader of the summary has to know."""

    @abc.abstractmethod
    def fitted(self, result: Result, sizes: Sizes) -> Any:
        """What a user predicts with."""

    @abc.abstractmethod
    def printed(self, title: str, result: Result, sizes: Sizes) -> str:
        """The summary as a text."""


@contextlib.contextmanager
def naming_response(response: str) -> Iterator[None]:
    """Names the response in errors of the model; the server gets what the model needs, and no value."""
    try:
        yield
    except InputError as error:
        why = f": column {response!r} does not fit the model, {error.public}" if error.public else ""
        public = f"The client cannot use its data{why}." if why else PRIVATE_ERROR
        raise DataError(f"Column {response!r} does not fit the model: {error}.", public) from None
