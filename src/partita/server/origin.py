"""What a state was made with: method, model, prior, and the clients' rows where they can be seen."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from partita.errors import DamagedFileError
from partita.families import Family
from partita.io.digest import digest
from partita.models import Model
from partita.models.prior import OutsidePrior
from partita.server.method import Method
from partita.server.state import State

__all__ = ["check_composition", "check_origin", "origin", "with_rows"]


def origin(method: Method, model: Model, prior: Family | OutsidePrior) -> Mapping[str, str]:
    """Digests of what may not change between two parts of a run; the number of passes is a budget, and may."""
    return {
        "method": digest(dataclasses.replace(method, passes=None)),
        "model": digest(model, code=True),
        "prior": digest(prior, code=isinstance(prior, OutsidePrior)),
    }


def with_rows(state: State, rows: Mapping[str, int]) -> State:
    """The state in which clients have rows with these digests."""
    digests = [rows.get(name, known) for name, known in zip(state.names, state.rows.tolist(), strict=True)]
    return dataclasses.replace(state, rows=np.array(digests, dtype=state.rows.dtype))


def check_origin(kept: State, start: State, source: object) -> None:
    """Raises a `DamagedFileError` if a state that was kept is of another run than the one that starts."""
    check_composition(kept.origin, start.origin, source)
    rows = dict(zip(start.names, start.rows.tolist(), strict=True))
    others = [
        f"other rows of {name}"
        for name, found in zip(kept.names, kept.rows.tolist(), strict=True)
        if found and rows.get(name) and rows[name] != found
    ]
    _refuse(others, source)


def check_composition(kept: Mapping[str, str], start: Mapping[str, str], source: object) -> None:
    """Raises a `DamagedFileError` if what was kept is of a run with another method, model or prior."""
    _refuse([f"another {part}" for part, found in kept.items() if start.get(part, found) != found], source)


def _refuse(others: Sequence[str], source: object) -> None:
    if others:
        raise DamagedFileError(
            f"{source} belongs to a run with {others[0]}: choose another file, or go on from a state that was loaded "
            "from it with run(state=…)."
        )
