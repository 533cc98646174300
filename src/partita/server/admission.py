"""Does an answer count? What the server checks of answers before they touch the posterior."""

import itertools
import math
import operator
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.engines.base import Task
from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.local.client import Reply
from partita.numerics.compiled import Compiled
from partita.server.aggregation import Aggregation, FreeEnergy, Holdings, Taken
from partita.server.refusal import Reason, Refusal

INFINITE = float("inf")


class Admission(NamedTuple):
    """Bounds on what a single client may say; by default it need only be finite.

    Shapes, kinds of numbers, versions and senders are checked where messages are read, and that the posterior stays
    proper where answers are taken in.
    """

    change: float = INFINITE
    """How far a client may move what prior and everybody else say, in nats of KL; about N times the mean loss of a row.

    It counts all that the client has said, and not only its last answer: many small steps lead no farther than one.
    """
    dominance: float = INFINITE
    """How many times the precision of prior and everybody else's factors a factor may have, in every direction."""
    prominence: float = INFINITE
    """How many times as far a client may move what all others say as these, in the median, do among themselves.

    Unlike `change` it needs no knowledge of how much clients differ, and there must be three of them at least.
    """
    deficit: float = INFINITE
    """How many times that precision a factor may take away; next to nothing where the log-likelihood is concave."""

    @property
    def compares(self) -> bool:
        """Whether a client's factor is compared with everybody else's."""
        return min(self.change, self.dominance, self.prominence) < INFINITE

    def check(self) -> None:
        """Raises an `InputError` for a bound that makes no sense."""
        if not (self.change > 0 and self.dominance > 0 and self.prominence > 0 and self.deficit >= 0):
            raise SettingsError(f"Bounds on answers are not negative, as one of {tuple(self)} is.")

    def refusals(self, arrived: Sequence[tuple[Task, Reply]]) -> dict[int, Refusal]:
        """The clients whose answers are refused for what they are by themselves, and why."""
        not_finite = Refusal(Reason.NOT_FINITE, "is not finite")
        refused = {task.client: not_finite for task, reply in arrived if not reply.info.finite}
        if self.deficit == INFINITE:
            return refused
        for task, reply in arrived:
            if task.client not in refused:
                one = task.posterior.one()
                least = float(ratios(task.posterior, task.factor.natural, reply.delta.natural, one)[0])
                if not least >= -self.deficit:
                    taken = f"takes away {-least:.3g} times the precision of all others"
                    refused[task.client] = Refusal(Reason.DEFICIT, f"{taken}, where {self.deficit:.3g} are allowed")
        return refused

    def worst(
        self, before: Holdings, after: Holdings, judged: Collection[int], heard: Collection[int]
    ) -> tuple[int, Refusal] | None:
        """Of the clients judged, the one that is farthest beyond a bound beside all others, and which bound, if any.

        Those heard, whether judged or not, are who it is compared with.
        """
        if not self.compares or not judged:
            return None
        changes = {
            k: after.factors[k].natural / before.factors[k].natural
            for k in after.factors
            if after.factors[k] is not before.factors[k]
        }
        one = before.posterior.one()
        *others, everybody = products_of_others([*changes.values(), one])
        beside = dict(zip(changes, others, strict=True))
        about = {
            k: (before.posterior, before.factors[k].natural, changes.get(k, one), beside.get(k, everybody))
            for k in {*judged, *heard}
        }
        found = [Excess(*excess, k) for k in judged for excess in self._excesses(about[k])]
        if self.prominence < INFINITE:
            found.append(self._prominent(about, judged))
        worst = max(found, key=lambda excess: (excess.times, excess.client))
        return (worst.client, worst.refusal) if worst.times > 1 else None

    def _excesses(self, about: "About") -> Iterator[tuple[float, Refusal]]:
        """How many times a bound a client's factor has, after a step that changes it and others, and in what."""
        if self.change < INFINITE:
            nats = float(divergence(*about))
            sentence = f"lies {nats:.3g} nats from all others, where {self.change:.3g} are allowed"
            yield _times(nats, self.change), Refusal(Reason.CHANGE, sentence)
        if self.dominance < INFINITE:
            greatest = float(ratios(*about)[1])
            sentence = f"has {greatest:.3g} times the precision of all others, where {self.dominance:.3g} are allowed"
            yield _times(greatest, self.dominance), Refusal(Reason.DOMINANCE, sentence)

    def _prominent(self, abouts: Mapping[int, "About"], judged: Collection[int]) -> "Excess":
        """The same for who lies farthest from all others, beside how far these lie from one another without it."""
        own, farthest = max((float(divergence(*abouts[k])), k) for k in judged)
        q, factor, _, beside = abouts[farthest]
        without, one = q / factor * beside, q.one()
        others = [
            float(divergence(without, factor * change, one, one))
            for k, (_, factor, change, _) in abouts.items()
            if k != farthest
        ]
        times = _times(own, statistics.median(others)) if len(others) > 1 else 0.0
        sentence = f"lies {times:.3g} times as far from all others as they do, where {self.prominence:.3g} are allowed"
        return Excess(times / self.prominence, Refusal(Reason.PROMINENCE, sentence), farthest)


class Excess(NamedTuple):
    """How many times a bound a client's factor has."""

    times: float
    refusal: Refusal
    client: int


About = tuple[Family, Family, Family, Family]
"""A posterior and one of its factors; what a step changes that factor by, and everybody else's."""


def products_of_others(members: Sequence[Family]) -> list[Family]:
    """For every member, the last of which is 1, the product of all others: of those before it and of those after it.

    Dividing the product of all by each would cancel beside a member that is far too large.
    """
    one = members[-1]
    before = itertools.accumulate(members[:-1], operator.mul, initial=one)
    after = [*itertools.accumulate(reversed(members[1:]), operator.mul, initial=one)][::-1]
    return [*map(operator.mul, before, after)]


def _divergence(q: Family, factor: Family, change: Family, beside: Family) -> Float[Array, ""]:
    """How far a factor, once changed, moves what all others say: KL of the posterior with it from that without."""
    others = _others(q, factor, beside)
    together = others * factor * change
    return jnp.where(together.is_proper(), together.kl(others), jnp.inf)


def _ratios(q: Family, factor: Family, change: Family, beside: Family) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The least and the greatest ratio of a factor's precision, once changed, to that of all others."""
    return (factor * change).precision_range(_others(q, factor, beside))


def _others(q: Family, factor: Family, beside: Family) -> Family:
    """The cavity and what changed beside; where that is improper, as it may be on the way, the posterior."""
    cavity = q / factor * beside
    proper = cavity.is_proper()
    return jax.tree.map(lambda a, b: jnp.where(proper, a, b), cavity, q)


divergence = Compiled(_divergence)
ratios = Compiled(_ratios)


def _times(value: float, other: float) -> float:
    """How many times another a value is; what is no number, or infinite, is beyond any."""
    return value / other if math.isfinite(value) and other > 0 else 0.0 if value == 0 else INFINITE


class Admitted(NamedTuple):
    """What was made of answers beside the bounds."""

    taken: Taken
    refusals: dict[int, Refusal]
    """The clients beyond a bound."""
    divided: set[int]
    """Those of them whose factor, aggregated before, was divided out."""


def admit(
    aggregation: Aggregation,
    admission: Admission,
    holdings: Holdings,
    deltas: Mapping[int, Factor],
    judged: Collection[int],
    held: Collection[int],
    free_energy: FreeEnergy,
) -> Admitted:
    """Aggregates changes without those of clients beyond a bound; the worst goes first, since it makes others look odd.

    Of factors that are held already, those to be judged that are beyond a bound beside what others have said since, as
    may be found of the first answers of a sequential run, are divided out.
    """
    deltas, judged, held = dict(deltas), set(judged), set(held)
    refusals, divided = dict[int, Refusal](), set[int]()
    while True:
        taken = aggregation.update(holdings, deltas, free_energy) if deltas else Taken(holdings, 0.0, 0, {})
        new = set(deltas) - set(taken.refusals)
        beyond = admission.worst(holdings, taken.holdings, (judged - set(deltas)) | new, held | new)
        if beyond is None:
            return Admitted(taken, refusals, divided)
        k, refusal = beyond
        if k in new:
            refusals[k] = refusal
            del deltas[k]
            continue
        judged.discard(k)
        rest = aggregation.divided(holdings, k)
        if rest.posterior.is_proper():
            refusals[k] = refusal
            divided.add(k)
            held.discard(k)
            holdings = rest
