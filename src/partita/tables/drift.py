"""How far each batch lies from what came before it, from the factors alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import enable_x64
from jaxtyping import Float

from partita.families import Family
from partita.families.gaussian import gaussian
from partita.server.state import State
from partita.stream import Batch
from partita.tables.coefficients import Grid, text_table
from partita.tables.heterogeneity import distance

__all__ = ["Drift", "drift_of"]


@dataclasses.dataclass(frozen=True)
class _BatchDrift:
    """How far a batch lies from all that came before it, or with it."""

    name: str
    nats: float
    """Half the squared distance of what it says from what the others predict of it, in their joint uncertainty."""
    expected: float
    """Its mean where nothing has changed: half the number of directions about which the batch is informative."""
    probability: float
    """That of so many nats, or more, where nothing has changed."""

    @property
    def ratio(self) -> float:
        """The nats, in units of those expected."""
        return self.nats / self.expected if self.expected else float("nan")

    def flat(self) -> dict[str, Any]:
        """All of it, with one number or text a field."""
        return dataclasses.asdict(self) | {"ratio": self.ratio}


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far batches lie from what came before them; print it, or ask for its batches."""

    batches: tuple[_BatchDrift, ...]
    """In order of arrival, without the first if nothing came with it."""

    def grid(self) -> Grid:
        """Its numbers as a table."""
        rows = [
            (each.name, f"{each.nats:.2f}", f"{each.expected:.1f}", f"{each.ratio:.2f}", f"{each.probability:.2g}")
            for each in self.batches
        ]
        return ("", "nats", "expected", "ratio", "probability"), rows

    def __repr__(self) -> str:
        notes = [] if self.batches else ["All rows came as one batch: there are no others to compare it with."]
        return text_table("Drift from what came before, in nats", *self.grid(), notes)


def drift_of(state: State, batches: Sequence[Batch]) -> Drift:
    """Compares each batch with the prior times the factors of all that had arrived, if that is proper.

    Its factor has precision Λ and precision times mean h; where nothing has changed h is N(Λθ, Λ), with θ as the
    others say. That is exact for Gaussian likelihoods, and approximate where factors are nearly likelihoods.
    """
    factors, found = dict(zip(state.names, state.factors, strict=True)), []
    with enable_x64(True):
        for batch in batches:
            others = [other.name for other in batches if other.arrived <= batch.arrived and other.name != batch.name]
            before = state.prior_in_family
            for name in others:
                before = before * factors[name].natural
            if others and bool(before.is_proper()):
                found.append(_compared(batch.name, before, before * factors[batch.name].natural))
    return Drift(tuple(found))


def _compared(name: str, before: Family, after: Family) -> _BatchDrift:
    found = distance(_moments(after), _moments(before))
    return _BatchDrift(name, found.nats, found.directions / 2, 1.0 if found.p is None else found.p)


def _moments(q: Family) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    return np.asarray(q.moments()[0]), np.asarray(gaussian(q).covariance)
