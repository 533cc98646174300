"""The scheme of a federation with [fit]: a formula, on whose design clients agree in stages."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from partita.data.shard import Partition
from partita.data.table import GroupedTable, OffsetTable, Table
from partita.errors import DataError, FederationError, InputError
from partita.families import Family
from partita.federation.config import CONFIG_FILE, Federation
from partita.federation.scheme import PRIVATE_ERROR, Answer, Own, Row, Scheme, Sizes, naming_response
from partita.models import Model
from partita.models.prior import OutsidePrior
from partita.server.method import Method
from partita.server.run import Result
from partita.tables.agreement import Agreement
from partita.tables.fit import Fit
from partita.tables.reading import Site, frame_of, sites_of
from partita.tables.spec import Settings, Spec

__all__ = ["Regression"]

_REMEDY = f'set covariance = "full" under [fit] in the {CONFIG_FILE} of a new run'
_OTHER_FORMULA = "The design that was sent is of another formula, or other settings: copy the server's federation.toml."


@dataclasses.dataclass(frozen=True)
class Regression(Scheme):
    """A formula with its settings, and what clients have agreed on so far."""

    federation: Federation
    agreement: Agreement

    @classmethod
    def begun(cls, federation: Federation) -> Self:
        """The beginning: the formula."""
        assert federation.fit is not None
        return cls(federation, federation.fit.begun)

    @property
    def stages_left(self) -> int:
        return self.agreement.stages_left

    @property
    def names(self) -> tuple[str, ...]:
        return self._spec.units.parameters

    def read(self, path: Path, name: str) -> Own:
        try:
            frame = frame_of(path)
        except InputError as error:
            raise FederationError(str(error), "Its file cannot be read as a table.") from None
        try:
            (site,) = sites_of(frame, self._settings.columns, None, self._settings.optional)
            site = site._replace(name=name)
            self._settings.row_weights(site)
            with naming_response(self._formula.response.text):
                self._settings.check_response(site)
            self.agreement.answer(site)
        except InputError as error:
            raise FederationError(f"{path.name}: {error}", error.public or PRIVATE_ERROR) from None
        return Own(site, site.rows, site.dropped)

    def answer(self, own: Own) -> Answer:
        if self.complete:
            self.table(own)
        return self.agreement.answer(own.rows)

    def numbers(self, own: Own) -> Mapping[str, Float[np.ndarray, " n"]]:
        return self.agreement.numbers(own.rows)

    def check(self, answer: Answer, rows: int) -> None:
        self.agreement.check(answer, rows)

    def misfits(self, answers: Mapping[str, Answer]) -> dict[str, str]:
        strange = self.agreement.strangers(answers, self._settings.likelihood, self._settings.declared.levels)
        others = {name: answer for name, answer in answers.items() if name not in strange}
        return strange | self.outlying(others, self.federation.admission.moments)

    def outlying(self, answers: Mapping[str, Answer], bound: float) -> dict[str, str]:
        return self.agreement.outlying(answers, bound)

    def imputed(self, answer: Answer, rows: int) -> dict[str, int]:
        return self.agreement.missing(answer)

    def taken(self, answers: Sequence[Answer]) -> Self:
        found = dataclasses.replace(self, agreement=self.agreement.taken(answers))
        if found.complete:
            _ = found._spec  # which refuses a response that does not fit the likelihood
        return found

    def to_dict(self) -> dict[str, Any]:
        return self.agreement.to_dict()

    def restored(self, contents: Mapping[str, Any]) -> Self:
        if not contents:
            return self
        agreement = Agreement.from_dict(contents)
        if not agreement.follows(self._settings.begun):
            raise FederationError(_OTHER_FORMULA, _OTHER_FORMULA)
        return dataclasses.replace(self, agreement=agreement)

    def table(self, own: Own) -> Table | OffsetTable | GroupedTable:
        table = self._spec.table(own.rows)
        with naming_response(self._formula.response.text):
            self.model().check(table)
        return table

    def weights(self, own: Own) -> Float[np.ndarray, " n"]:
        return self._spec.weights(own.rows)

    def model(self) -> Model:
        return self._spec.model()

    def prior(self) -> Family | OutsidePrior:
        return self._spec.prior()

    def method(self) -> Method:
        return self._spec.method(**self.federation.method_settings)

    def summary(self, result: Result, sizes: Sizes) -> list[Row]:
        return [row.flat() for row in self.fitted(result, sizes).coefficients()]

    def remarks(self, result: Result, sizes: Sizes) -> list[str]:
        return [self.fitted(result, sizes).caveat(_REMEDY)]

    def fitted(self, result: Result, sizes: Sizes) -> Fit:
        sites = tuple(Site(name, {}, rows, incomplete) for name, (rows, incomplete) in sizes.items())
        return Fit(self._spec, sites, Partition((), (), ()), result)

    def printed(self, title: str, result: Result, sizes: Sizes) -> str:
        return self.fitted(result, sizes).table()

    @property
    def _settings(self) -> Settings:
        assert self.federation.fit is not None
        return self.federation.fit

    @property
    def _formula(self) -> Any:
        return self.agreement.rows.asked

    @property
    def _spec(self) -> Spec:
        if not self.complete:
            raise DataError("Clients have not agreed on a design yet.", "There is no agreed design in the message.")
        return Spec(self._settings, self.agreement)
