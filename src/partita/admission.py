"""Does an answer count? What the server checks of answers before they touch the posterior."""

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.client import Reply
from partita.compiled import Compiled
from partita.engines.base import Task
from partita.errors import InputError
from partita.families import Family
from partita.objective import Factor

INFINITE = float("inf")


class Admission(NamedTuple):
    """Bounds on what a single answer may say; by default it need only be finite.

    Shapes, kinds of numbers, versions and senders are checked where messages are read, and that the posterior stays
    proper where answers are taken in.
    """

    change: float = INFINITE
    """How far an answer may lie from the posterior it was formed against, in nats of KL."""
    dominance: float = INFINITE
    """How many times the precision of prior and everybody else's factors a factor may have, in every direction.

    Everybody else's are those after the round: the first answers have only each other to be compared with.
    """
    deficit: float = INFINITE
    """How many times that precision a factor may take away; next to nothing where the log-likelihood is concave."""

    def check(self) -> None:
        """Raises an `InputError` for a bound that makes no sense."""
        if not (self.change > 0 and self.dominance > 0 and self.deficit >= 0):
            raise InputError(f"Bounds on answers are not negative, as one of {tuple(self)} is.")

    def refusals(self, arrived: Sequence[tuple[Task, Reply]]) -> dict[int, str]:
        """The clients whose answers are refused, with the reason."""
        refused = {task.client: "is not finite" for task, reply in arrived if not reply.info.finite}
        if self == Admission():
            return refused
        deltas = {task.client: reply.delta for task, reply in arrived if task.client not in refused}
        tasks = {task.client: task for task, _ in arrived}
        alone = {k: self._alone(tasks[k], delta) for k, delta in deltas.items()}
        refused |= {k: reason for k, reason in alone.items() if reason}
        if self.dominance == INFINITE:
            return refused
        deltas = {k: delta for k, delta in deltas.items() if k not in refused}
        others = products_of_others([delta.natural for delta in deltas.values()])
        among = {k: self._among(tasks[k], deltas[k], beside) for k, beside in zip(deltas, others, strict=True)}
        return refused | {k: reason for k, reason in among.items() if reason}

    def _alone(self, task: Task, delta: Factor) -> str:
        """What speaks against an answer by itself."""
        if self.deficit < INFINITE:
            least = float(ratios(task.posterior, task.factor, delta, None)[0])
            if not least >= -self.deficit:
                return (
                    f"takes away {-least:.3g} times the precision of all others, where {self.deficit:.3g} are allowed"
                )
        if self.change < INFINITE:
            change = float(divergence(task.posterior, delta))
            if not change <= self.change:
                return f"lies {change:.3g} nats from the posterior, where {self.change:.3g} are allowed"
        return ""

    def _among(self, task: Task, delta: Factor, beside: Family | None) -> str:
        """What speaks against an answer beside those of the same round."""
        greatest = float(ratios(task.posterior, task.factor, delta, beside)[1])
        if not greatest <= self.dominance:
            return f"has {greatest:.3g} times the precision of all others, where {self.dominance:.3g} are allowed"
        return ""


def products_of_others(members: Sequence[Family]) -> list[Family | None]:
    """For every member the product of all others, if there are any: of those before it, and of those after it.

    Dividing the product of all by each would cancel beside a member that is far too large.
    """
    if len(members) < 2:
        return [None] * len(members)
    before = [*itertools.accumulate(members[:-1], operator.mul)]
    after = [*itertools.accumulate(reversed(members[1:]), operator.mul)][::-1]
    return [after[0], *map(operator.mul, before[:-1], after[1:]), before[-1]]


def _divergence(q: Family, delta: Factor) -> Float[Array, ""]:
    """KL(q·Δ ‖ q)."""
    answer = q * delta.natural
    return jnp.where(answer.is_proper(), answer.kl(q), jnp.inf)


def _ratios(
    q: Family, factor: Factor, delta: Factor, beside: Family | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The least and the greatest ratio of the new factor's precision to that of all others.

    All others are the cavity and what came beside; where that is improper, as it may be on the way, the posterior takes
    its place.
    """
    cavity = q / factor.natural
    cavity = cavity if beside is None else cavity * beside
    proper = cavity.is_proper()
    others = jax.tree.map(lambda a, b: jnp.where(proper, a, b), cavity, q)
    return (factor.natural * delta.natural).precision_range(others)


divergence, ratios = Compiled(_divergence), Compiled(_ratios)
