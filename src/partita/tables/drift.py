"""How far each batch lies from what came before it, from the factors alone."""

import dataclasses

import numpy as np
from jax import enable_x64
from jaxtyping import Float

from partita.families import Family
from partita.families.gaussian import gaussian
from partita.stream import Stream
from partita.tables.heterogeneity import distance

__all__ = ["Drift", "drift_of"]


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far a batch lies from all that came before it, or with it."""

    name: str
    nats: float
    """Half the squared distance of what it says from what the others predict of it, in their joint uncertainty."""
    expected: float
    """Its mean where nothing has changed: half the number of directions that the batch tells of."""
    probability: float
    """That of so many nats, or more, where nothing has changed."""

    @property
    def ratio(self) -> float:
        """The nats, in units of those expected."""
        return self.nats / self.expected if self.expected else float("nan")


def drift_of(stream: Stream) -> list[Drift]:
    """A row for each batch in order of arrival, without the first if nothing came with it.

    A batch is compared with the prior times the factors of all that had arrived. Its factor has precision Λ and
    precision times mean h; where nothing has changed h is N(Λθ, Λ), with θ as the others say. That is exact for
    Gaussian likelihoods, and approximate where factors are nearly likelihoods.
    """
    found = []
    with enable_x64(True):
        for batch in stream.batches:
            others = [
                other.name for other in stream.batches if other.arrived <= batch.arrived and other.name != batch.name
            ]
            if not others:
                continue
            assert stream.state is not None
            before = stream.state.current_prior
            for name in others:
                before = before * stream.factor(name).natural
            if bool(before.is_proper()):
                found.append(_compared(batch.name, before, before * stream.factor(batch.name).natural))
    return found


def _compared(name: str, before: Family, after: Family) -> Drift:
    found = distance(_moments(after), _moments(before))
    return Drift(name, found.nats, found.directions / 2, 1.0 if found.p is None else found.p)


def _moments(q: Family) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    return np.asarray(q.moments()[0]), np.asarray(gaussian(q).covariance)
