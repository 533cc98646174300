"""The scheme of a federation with [data] and [model], such as a network: all columns are encoded in one stage."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float

from partita.data.columns import Moments
from partita.data.labels import Labels, agreed
from partita.data.plausible import check_sums, crowding, outlying
from partita.data.preprocess import Encoding, Summary, encoding, federated, merge, summarise
from partita.data.table import Table
from partita.errors import FederationError, InputError
from partita.expectations.capabilities import Template
from partita.families import Family
from partita.federation import rows
from partita.federation.config import CONFIG_FILE, Data, Federation
from partita.federation.grid import printed
from partita.federation.scheme import Answer, Own, Row, Scheme, Sizes, naming_response
from partita.models import Model
from partita.results.posterior import Posterior
from partita.server.method import Method
from partita.server.run import Result

__all__ = ["Encoded", "FederationResult"]

_REMEDY = f'set family = "full" under [prior] in the {CONFIG_FILE} of a new run'
"""What helps where mean-field standard deviations do not do."""


class FederationResult(NamedTuple):
    """The posterior of a federation, and the encoding of its data."""

    posterior: Posterior
    encoding: Encoding
    data: Data

    def table(self, path: str | os.PathLike[str]) -> Table:
        """Reads a file with the federation's columns and encodes it as the clients' rows were.

        The response may be missing, as it is of rows to predict: then it is NaN.
        """
        return self.encoding.encode(rows.read(Path(path), self.data, response=False))


@dataclasses.dataclass(frozen=True)
class Encoded(Scheme):
    """A federation's columns and model, with the encoding that clients have agreed on."""

    federation: Federation
    encoding: Encoding | None = None

    @property
    def stages_left(self) -> int:
        return int(self.encoding is None)

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if isinstance(self.model(), Template) else self._agreed.names

    def read(self, path: Path, name: str) -> Own:
        frame = rows.read(path, self._data)
        own = federated([frame])
        with naming_response(self._data.response):
            self.federation.built_model(len(own.names)).check(own.encode(frame))
        return Own(frame, frame.size)

    def answer(self, own: Own) -> Answer:
        return summarise(own.rows).to_dict()

    def numbers(self, own: Own) -> Mapping[str, Float[np.ndarray, " n"]]:
        kept = {name: values for name, values in own.rows.columns.items() if values.dtype.kind == Moments.dtype.kind}
        return kept if own.rows.labels is None else kept | {self._data.response: own.rows.y}

    def check(self, answer: Answer, rows: int) -> None:
        summary = Summary.from_dict(answer)
        self._expected(summary)
        check_sums(summary, rows, rows, whole=False)
        if self.encoding is not None:
            self.encoding.check(summary)

    def misfits(self, answers: Mapping[str, Answer]) -> dict[str, str]:
        """Where no label is declared to count as 0, that of most clients does; those with another one do not fit.

        Nor do those whose sums lie far from the others'.
        """
        summaries = {name: Summary.from_dict(answer) for name, answer in answers.items()}
        own = {name: summary.labels for name, summary in summaries.items() if summary.labels is not None}
        known = [labels for labels in own.values() if labels.zeros]
        found = crowding(summaries)
        for name, labels in own.items() if known else ():
            try:
                agreed([max(known, key=known.count), labels])
            except InputError as error:
                found[name] = str(error)
        others = {name: answer for name, answer in answers.items() if name not in found}
        return found | self.outlying(others, self.federation.admission.moments)

    def outlying(self, answers: Mapping[str, Answer], bound: float) -> dict[str, str]:
        return outlying({name: Summary.from_dict(answer) for name, answer in answers.items()}, bound)

    def imputed(self, answer: Answer, rows: int) -> dict[str, int]:
        missing = {name: column.missing(rows) for name, column in Summary.from_dict(answer).columns.items()}
        return {name: count for name, count in missing.items() if count}

    def taken(self, answers: Sequence[Answer]) -> Self:
        return dataclasses.replace(self, encoding=encoding(merge(map(Summary.from_dict, answers))))

    def to_dict(self) -> dict[str, Any]:
        return {} if self.encoding is None else self.encoding.to_dict()

    def restored(self, contents: Mapping[str, Any]) -> Self:
        return dataclasses.replace(self, encoding=Encoding.from_dict(contents) if contents else None)

    def table(self, own: Own) -> Table:
        table = self._agreed.encode(own.rows)
        with naming_response(self._data.response):
            self.model().check(table)
        return table

    def weights(self, own: Own) -> Float[np.ndarray, " n"]:
        return np.ones(own.size)

    def model(self) -> Model:
        return self.federation.built_model(len(self._agreed.names))

    def prior(self) -> Family:
        return self.federation.built_prior(self.model(), len(self._agreed.names))

    def method(self) -> Method:
        return self.federation.built_method(self.model())

    def summary(self, result: Result, sizes: Sizes) -> list[Row]:
        return result.posterior.summary(self.names)

    def remarks(self, result: Result, sizes: Sizes) -> list[str]:
        return [result.posterior.caveat(self.names, _REMEDY)]

    def fitted(self, result: Result, sizes: Sizes) -> FederationResult:
        named = dataclasses.replace(result.posterior, names=self.names or ())
        return FederationResult(named, self._agreed, self._data)

    def printed(self, title: str, result: Result, sizes: Sizes) -> str:
        return printed(title, self.summary(result, sizes))

    @property
    def _data(self) -> Data:
        assert self.federation.data is not None
        return self.federation.data

    @property
    def _agreed(self) -> Encoding:
        assert self.encoding is not None
        return self.encoding

    def _expected(self, summary: Summary) -> None:
        """Raises an `InputError` if a summary does not match the federation's columns."""
        data, labels = self._data, summary.labels
        if list(summary.columns) != list(data.columns):
            raise FederationError("Its columns are not those of federation.toml.")
        for name, (kind, levels) in data.columns.items():
            if type(summary.columns[name]) is not kind:
                raise FederationError(f"Column {name!r} has another type than in federation.toml.")
            if not summary.columns[name].declares(levels):
                raise FederationError(f"Column {name!r} has other levels than in federation.toml.")
        declared = Labels(data.positive, data.negative) if data.positive else None
        if declared is not None and not declared.zeros and labels is not None:
            declared = Labels(declared.ones, labels.zeros[:1])
        if labels != declared:
            raise FederationError(f"The response {data.response!r} has other labels than in federation.toml.")
