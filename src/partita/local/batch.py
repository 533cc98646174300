"""Step ② of `alg:vmp` for many clients with equally many rows: one program answers a batch of them at a time.

A solver takes some steps for all clients of a batch; those that are done drop out, and the others are gathered into new
batches, with more steps each time. So a client that takes many steps does not hold up the rest. All batches have one
size, so that each program is compiled once.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from partita.data.shard import Shard
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.values import Hyper, likelihood_hyper
from partita.local.client import Recipe, Reply, VisitSpec, assign, client_key, formed, posed
from partita.local.objective import Problem
from partita.local.solvers import Outcome
from partita.local.solvers.base import Climb
from partita.models import Model
from partita.numerics.compiled import Compiled, Whole

__all__ = ["SIZE", "Common", "Visits", "ells", "replies"]

SIZE = 256
"""How many clients a batch has."""
_STEPS = 4
"""After how many steps the first clients drop out; twice as many each time."""

T = TypeVar("T")


class Common(NamedTuple):
    """What all clients of a batch are asked with."""

    recipe: Recipe
    prior: Family
    posterior: Family
    seed: Whole
    hyper: Hyper


class Visits(NamedTuple):
    """What each is asked with, along a leading axis."""

    factor: Factor
    shard: Shard
    share: Any
    """The part of all rows that the client has."""
    client: Any
    version: Any


def replies(common: Common, visits: Visits) -> list[Reply]:
    """The clients' answers, in NumPy: what `client_update` gives, up to rounding.

    Where rounding decides whether a solver takes another step, they differ by that step, which is below its tolerance.
    """
    number, most = len(visits.client), common.recipe.solver.max_steps
    climbs = _joined(jax.device_get(_begun(common, part)) for part, _ in _batches(visits, np.arange(number)))
    left, until, block = np.arange(number), 0, _STEPS
    while left.size and until < most:
        until, block = min(until + block, most), 2 * block
        for part, places in _batches(visits, left):
            ahead = jax.device_get(_advanced(common, part, _rows(climbs, places), until))
            jax.tree.map(lambda held, new, at=places: held.__setitem__(at, new), climbs, ahead)
        left = left[climbs[0].outcome[left] == Outcome.RUNNING]
    parts = _batches(visits, np.arange(number))
    found = _joined(jax.device_get(_ended(common, part, _rows(climbs, places))) for part, places in parts)
    return [_row(found, place) for place in range(number)]


def ells(model: Model, q: Family, shards: Shard, key: Key[Array, ""]) -> Float[np.ndarray, " n"]:
    """E_q[log p(y | θ)] of every client's rows, of which there are equally many."""
    number = len(shards.rows)
    parts = [jax.device_get(_ells(model, q, part, key)) for part, _ in _batches(shards, np.arange(number))]
    return np.concatenate(parts)[:number]


def _batches(given: T, places: Int[np.ndarray, " n"]) -> Iterator[tuple[T, Int[np.ndarray, " b"]]]:
    """What these are asked with, in batches of one size: the last is filled up with its last."""
    for start in range(0, len(places), SIZE):
        chosen = places[start : start + SIZE]
        chosen = np.concatenate([chosen, np.repeat(chosen[-1:], SIZE - len(chosen))])
        yield _rows(given, chosen), chosen


def _rows(tree: T, places: Int[np.ndarray, " n"]) -> T:
    """Some along the leading axis."""
    rows: T = jax.tree.map(lambda leaf: leaf[places], tree)
    return rows


def _row(tree: T, place: int) -> T:
    """One of those along the leading axis."""
    row: T = jax.tree.map(lambda leaf: leaf[place, ...], tree)
    return row


def _joined(parts: Iterator[Any]) -> Any:
    """All batches as one, writable, with what filled up the last."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class _Visit(NamedTuple):
    """One client's problem."""

    assignment: VisitSpec
    problem: Problem
    key: Key[Array, ""]
    solve_key: Key[Array, ""]


def _visit(common: Common, visit: Visits) -> _Visit:
    recipe, prior, q, seed, hyper = common
    assignment = assign(recipe, prior, q, visit.factor, visit.share, hyper)
    key = client_key(seed, visit.client, visit.version)
    problem = posed(recipe.model, assignment, q, visit.shard, likelihood_hyper(hyper))
    return _Visit(assignment, problem, key, jax.random.split(key)[0])


def _each(function: Callable[..., PyTree], visits: Visits, *others: PyTree) -> PyTree:
    """A function of every client of a batch."""
    return jax.vmap(function)(visits, *others)


@Compiled
def _begun(common: Common, visits: Visits) -> Climb:
    def one(visit: Visits) -> Climb:
        at = _visit(common, visit)
        return common.recipe.solver.begin(at.problem, at.solve_key)

    return _each(one, visits)


@Compiled
def _advanced(common: Common, visits: Visits, climbs: Climb, until: Whole) -> Climb:
    def one(visit: Visits, climb: Climb) -> Climb:
        at = _visit(common, visit)
        return common.recipe.solver.advance(at.problem, climb, until, at.solve_key)

    return _each(one, visits, climbs)


@Compiled
def _ended(common: Common, visits: Visits, climbs: Climb) -> Reply:
    def one(visit: Visits, climb: Climb) -> Reply:
        at, recipe = _visit(common, visit), common.recipe
        solution = recipe.solver.end(at.problem, climb, at.solve_key)
        hyper = likelihood_hyper(common.hyper)
        return formed(recipe.model, solution, at.assignment, common.posterior, visit.shard, at.key, hyper)

    return _each(one, visits, climbs)


@Compiled
def _ells(model: Model, q: Family, shards: Shard, key: Key[Array, ""]) -> Float[Array, " n"]:
    return jax.vmap(lambda shard: model.ell(q, shard.data, shard.weights, key))(shards)
