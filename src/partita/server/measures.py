"""How large an answer is: what residual order (`sec:pvi:pvi_flavours`) goes by when it chooses who comes next."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from partita.families import Family, inner
from partita.inputs import check_kind
from partita.local.client import Reply
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.results.posterior import Posterior, Predictive

__all__ = ["Divergence", "Measure", "NaturalNorm", "PredictiveChange"]


class Measure(eqx.Module):
    """How large an answer is; only ratios between clients matter."""

    @abc.abstractmethod
    def size(self, sent: Family, reply: Reply) -> float:
        """How far a client's answer to the posterior that it was sent asks to go, 0 or more; NaN is no size."""

    def check(self, prior: Family) -> None:
        """Raises an `InputError` if answers of this family cannot be measured."""


class Divergence(Measure):
    """KL(q_k ‖ q) in nats, which clients report with their answers: the whole posterior counts, seen or not."""

    def size(self, sent: Family, reply: Reply) -> float:
        return float(reply.info.residual)


class NaturalNorm(Measure):
    """‖η_k − η‖, the Euclidean norm of the change of the natural parameters, as in residual belief propagation.

    It depends on the units of θ, and parameters without effect on predictions count as others do.
    """

    def size(self, sent: Family, reply: Reply) -> float:
        return float(_norm(reply.delta.natural))


class PredictiveChange(Measure):
    """How much the predictions for some inputs would change: the mean over their rows of |E[y | x, q_k] − E[y | x, q]|.

    Parameters without effect on predictions do not count, which the paper asks for where there are many, as in
    networks. The server needs the inputs, without responses, such as public ones. Of several classes it is half the sum
    over them, the total variation.
    """

    model: Model
    x: Real[np.ndarray, "n d"]
    how: Predictive = eqx.field(static=True, default="closed")
    """How predictions are computed: see `Posterior.predict`."""
    draws: int = eqx.field(static=True, default=20)
    """How many draws they average if by Monte Carlo, the same before and after."""

    def __check_init__(self) -> None:
        check_kind("model", self.model, Model, "use one of partita.models")

    def check(self, prior: Family) -> None:
        self._predicted(prior)

    def _predicted(self, q: Family) -> np.ndarray:
        return Posterior(self.model, q).predict(self.x, self.how, self.draws)

    def size(self, sent: Family, reply: Reply) -> float:
        asked = sent * reply.delta.natural
        if not asked.is_proper():
            return float("nan")
        apart = np.abs(self._predicted(asked) - self._predicted(sent))
        return float(apart.mean() if apart.ndim == 1 else apart.sum(axis=-1).mean() / 2)


@Compiled
def _norm(change: Family) -> Float[Array, ""]:
    return jnp.sqrt(inner(change, change))
