"""The priors of a formula's coefficients: which law each has, and where their scales are."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from partita.errors import unknown
from partita.models.prior_text import Placed, Said, ScaleLaw, clauses, normal
from partita.tables.formula import INTERCEPT

__all__ = ["Laws"]

_DEFAULT = normal(0.0, 2.5)
"""The prior of coefficients without one of their own."""
_INTERCEPT_SD = 10.0
"""The smallest sd of the intercept's prior, since outcomes may be rare."""


class Laws(NamedTuple):
    """The laws of the coefficients of one linear predictor, and of scales that are inferred with them."""

    laws: tuple[tuple[Said, tuple[int, ...]], ...]
    """Each with the places of its coefficients."""
    scales: tuple[str, ...]
    """The names of the scales, whose logarithms come after the coefficients."""
    columns: int

    @classmethod
    def of(cls, text: str, names: Sequence[str]) -> Self:
        """What a text says of these columns of the design; a category's name stands for all of its levels."""
        said = clauses(text)
        named = {name: law for own, law in said for name in own}
        for name in named:
            if not any(_is_of(column, name) for column in names):
                raise unknown("coefficient", name, names)
        rest = next((law for own, law in said if not own), _DEFAULT)
        base = normal(0.0, _INTERCEPT_SD if isinstance(rest.scale, ScaleLaw) else max(rest.scale, _INTERCEPT_SD))
        whose = [_clause(column, named) for column in names]
        places = [
            *((law, tuple(k for k, name in enumerate(whose) if name in own)) for own, law in said if own),
            (base, tuple(k for k, name in enumerate(whose) if name is None and names[k] == INTERCEPT)),
            (rest, tuple(k for k, name in enumerate(whose) if name is None and names[k] != INTERCEPT)),
        ]
        laws = tuple((law, own) for law, own in places if own)
        scales = [names[places[0]] for law, places in laws if isinstance(law.scale, ScaleLaw)]
        return cls(laws, tuple(f"scale of {name}, …" for name in scales), len(names))

    def placed(self, predictor: int) -> list[Placed]:
        """The laws of a linear predictor, with their places in θ."""
        first = predictor * (self.columns + len(self.scales))
        scale, found = first + self.columns, list[Placed]()
        for law, places in self.laws:
            inferred = isinstance(law.scale, ScaleLaw)
            found.append(Placed(law, tuple(first + place for place in places), scale if inferred else None))
            scale += inferred
        return found


def _clause(column: str, named: Collection[str]) -> str | None:
    """The name that a column goes by, its own before that of a category."""
    return column if column in named else next((name for name in named if _is_of(column, name)), None)


def _is_of(column: str, name: str) -> bool:
    """Whether a column of the design is a name's, or one of its levels or splines."""
    return column == name or column.startswith(f"{name}[")
