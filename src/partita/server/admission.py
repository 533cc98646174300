"""Admission: the checks that an answer must pass before it changes the posterior."""

import itertools
import math
import operator
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from partita.engines.base import Task
from partita.families import Family
from partita.families.factor import Factor
from partita.inputs import check_number
from partita.local.client import Reply
from partita.numerics.compiled import Compiled
from partita.numerics.trees import where
from partita.server.aggregation import Aggregated, Aggregation, FreeEnergy, Iterate
from partita.server.refusal import Reason, Refusal

__all__ = ["Admission", "Admitted", "admit", "divergence", "products_of_others", "ratios"]

_INFINITE = float("inf")


class Admission(NamedTuple):
    """Bounds on a single client's factor; by default it only has to be finite.

    Shapes, dtypes, versions and senders are checked when a message is read; that the posterior stays proper is checked
    by the aggregation.
    """

    change: float = _INFINITE
    """The largest KL between the posterior with and without the client's factor, in nats.

    It is checked on the whole factor and not on the last change, so many small changes cannot exceed it.
    """
    dominance: float = _INFINITE
    """The largest ratio, over all directions, of a factor's precision to the precision of its cavity."""
    prominence: float = _INFINITE
    """The largest ratio of a client's KL (as in `change`) to the median of the other clients'.

    Unlike `change` it needs no knowledge of how much clients differ. It needs at least three clients.
    """
    deficit: float = _INFINITE
    """The largest negative precision of a factor, relative to its cavity; about 0 for log-concave likelihoods."""

    @property
    def compares(self) -> bool:
        """Whether a bound is set that compares a client's factor with all others."""
        return min(self.change, self.dominance, self.prominence) < _INFINITE

    def check(self) -> None:
        """Raises an `InputError` for an invalid bound."""
        for what, bound in self._asdict().items():
            if what == "deficit":
                check_number("bound on deficit", bound, lambda number: number >= 0, "0 or more")
            else:
                check_number(f"bound on {what}", bound, lambda number: number > 0, "above 0")

    def refusals(self, arrived: Sequence[tuple[Task, Reply]], trusted: Collection[int] = ()) -> dict[int, Refusal]:
        """The clients whose answers are invalid on their own, with the refusal; no bounds on those trusted."""
        not_finite = Refusal(Reason.NOT_FINITE, "is not finite")
        refused = {task.client: not_finite for task, reply in arrived if not reply.info.finite}
        for task, reply in arrived if self.deficit < _INFINITE else ():
            if task.client not in refused and task.client not in trusted:
                q = task.posterior
                least = float(ratios(q, task.factor.natural, reply.delta.natural, q.one())[0])
                if not least >= -self.deficit:
                    text = f"takes away {-least:.3g} times the precision of all others"
                    refused[task.client] = _beyond(Reason.DEFICIT, text, self.deficit)
        return refused

    def worst(
        self, before: Iterate, after: Iterate, judged: Collection[int], heard: Collection[int]
    ) -> tuple[int, Refusal] | None:
        """The checked client with the largest violation of a bound, and that bound; None if there is none.

        Clients are compared with all in `heard`, whether checked or not.
        """
        if not self.compares or not judged:
            return None
        moved = after.factors.differing(before.factors)
        changes = {k: after.factors[k].natural / before.factors[k].natural for k in moved}
        one = before.posterior.one()
        *others, everybody = products_of_others([*changes.values(), one])
        beside = dict(zip(changes, others, strict=True))
        about = {
            k: (before.posterior, before.factors[k].natural, changes.get(k, one), beside.get(k, everybody))
            for k in {*judged, *heard}
        }
        found = [excess for k in judged for excess in self._excesses(k, about[k])]
        if self.prominence < _INFINITE:
            found.append(self._prominent(about, judged))
        worst = max(found, key=lambda excess: (excess.times, excess.client))
        return (worst.client, worst.refusal) if worst.times > 1 else None

    def _excesses(self, client: int, about: "_About") -> Iterator["_Excess"]:
        """The ratio of each measure to its bound for a client's factor after the step, with the reason."""
        if self.change < _INFINITE:
            nats = float(divergence(*about))
            refusal = _beyond(Reason.CHANGE, f"lies {nats:.3g} nats from all others", self.change)
            yield _Excess(_times(nats, self.change), refusal, client)
        if self.dominance < _INFINITE:
            greatest = float(ratios(*about)[1])
            text = f"has {greatest:.3g} times the precision of all others"
            yield _Excess(_times(greatest, self.dominance), _beyond(Reason.DOMINANCE, text, self.dominance), client)

    def _prominent(self, abouts: Mapping[int, "_About"], judged: Collection[int]) -> "_Excess":
        """The same for the client with the largest KL, relative to the median KL of the others without it."""
        own, farthest = max((float(divergence(*abouts[k])), k) for k in judged)
        q, factor, _, beside = abouts[farthest]
        without, one = q / factor * beside, q.one()
        others = [
            float(divergence(without, factor * change, one, one))
            for k, (_, factor, change, _) in abouts.items()
            if k != farthest
        ]
        times = _times(own, statistics.median(others)) if len(others) > 1 else 0.0
        text = f"lies {times:.3g} times as far from all others as they do"
        return _Excess(times / self.prominence, _beyond(Reason.PROMINENCE, text, self.prominence), farthest)


def _beyond(reason: Reason, text: str, bound: float) -> Refusal:
    """The refusal of what is beyond a bound."""
    return Refusal(reason, f"{text}, where {bound:.3g} are allowed")


class _Excess(NamedTuple):
    """The ratio of a measure to its bound, for one client."""

    times: float
    refusal: Refusal
    client: int


_About = tuple[Family, Family, Family, Family]
"""The posterior, one of its factors, the step's change of that factor, and the step's change of all others."""


def products_of_others(members: Sequence[Family]) -> list[Family]:
    """For every member (the last is 1) the product of all others, from prefix and suffix products.

    Dividing the full product by each member would lose precision next to a very large member.
    """
    one = members[-1]
    before = itertools.accumulate(members[:-1], operator.mul, initial=one)
    after = [*itertools.accumulate(reversed(members[1:]), operator.mul, initial=one)][::-1]
    return [*map(operator.mul, before, after)]


@Compiled
def divergence(q: Family, factor: Family, change: Family, beside: Family) -> Float[Array, ""]:
    """KL between the posterior with and without a factor, after the step."""
    others = _others(q, factor, beside)
    together = others * factor * change
    return jnp.where(together.is_proper(), together.kl(others), jnp.inf)


@Compiled
def ratios(q: Family, factor: Family, change: Family, beside: Family) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The smallest and largest ratio of a factor's precision to its cavity's, after the step."""
    return (factor * change).precision_range(_others(q, factor, beside))


def _others(q: Family, factor: Family, beside: Family) -> Family:
    """The cavity after the step; if it is improper, as it may be before convergence, the posterior."""
    cavity = q / factor * beside
    proper = cavity.is_proper()
    return where(proper, cavity, q)


def _times(value: float, other: float) -> float:
    """value / other, where a value that is not finite counts as infinite."""
    return value / other if math.isfinite(value) and other > 0 else 0.0 if value == 0 else _INFINITE


class Admitted(NamedTuple):
    """What was made of answers beside the bounds."""

    taken: Aggregated
    refusals: dict[int, Refusal]
    """The clients beyond a bound."""
    divided: set[int]
    """Those of them whose factor, aggregated before, was divided out."""


def admit(
    aggregation: Aggregation,
    admission: Admission,
    iterate: Iterate,
    deltas: Mapping[int, Factor],
    judged: Collection[int],
    held: Collection[int],
    free_energy: FreeEnergy,
    trusted: Collection[int] = (),
) -> Admitted:
    """Aggregates changes without those of clients beyond a bound; the worst goes first, since it makes others look odd.

    Of factors that are held already, those to be judged that are beyond a bound beside what others have said since, as
    may be found of the first answers of a sequential run, are divided out. Trusted clients are neither
    judged nor compared with others.
    """
    deltas, judged, held = dict(deltas), set(judged), set(held)
    refusals, divided = dict[int, Refusal](), set[int]()
    while True:
        taken = aggregation.update(iterate, deltas, free_energy) if deltas else Aggregated(iterate, 0.0, 0, {})
        new = set(deltas) - set(taken.refusals) - set(trusted)
        beyond = admission.worst(iterate, taken.iterate, (judged - set(deltas)) | new, held | new)
        if beyond is None:
            return Admitted(taken, refusals, divided)
        k, refusal = beyond
        if k in new:
            refusals[k] = refusal
            del deltas[k]
            continue
        judged.discard(k)
        rest = aggregation.divided(iterate, k)
        if rest.posterior.is_proper():
            refusals[k] = refusal
            divided.add(k)
            held.discard(k)
            iterate = rest
