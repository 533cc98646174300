"""How far each batch lies from what came before it, from the factors alone."""

import dataclasses

import numpy as np
from jax import enable_x64
from jaxtyping import Float
from scipy import stats

from partita.families import Family, FullGaussian
from partita.stream import Stream

__all__ = ["Drift", "drift_of"]

_UNTOLD = 1e-9
"""A direction of which a batch has less than this share of what was known before is one it tells nothing of."""


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
    (mean, covariance), (moved, narrower) = _moments(before), _moments(after)
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(narrower)
    told, axes = np.linalg.eigh(root.T @ precision @ root - np.eye(len(mean)))
    apart = axes.T @ root.T @ precision @ (moved - mean)
    used = told > _UNTOLD
    square = float(np.sum(apart[used] ** 2 / (told[used] * (1 + told[used]))))
    return Drift(name, square / 2, float(used.sum()) / 2, float(stats.chi2.sf(square, int(used.sum()))))


def _moments(q: Family) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    mean, sd = (np.asarray(moment) for moment in q.moments())
    return mean, np.asarray(q.covariance) if isinstance(q, FullGaussian) else np.diag(sd**2)
