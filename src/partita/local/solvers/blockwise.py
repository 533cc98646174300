"""Block coordinate ascent over the leaves of q."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from partita.errors import SettingsError
from partita.families import Family
from partita.inputs import check_kind, check_texts
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solver, within
from partita.numerics.trees import where

__all__ = ["Blockwise", "free_leaves"]


def _blocks(blocks: Any) -> tuple[tuple[str, ...], ...]:
    check_kind("blocks", blocks, list | tuple, 'give such as [("precision_mean",), ("precision",)]', name="a list")
    for block in blocks:
        check_texts("names of a block", block)
    return tuple(map(tuple, blocks))


class Blockwise(Solver):
    """Sweeps over blocks of q's leaves, solving for one block with the others fixed (VMP, mean-only updates).

    A block is a tuple of names; a leaf belongs to it when one of the names is on its path, be it the name of a
    component of a product, a key of θ, or a natural parameter such as "precision_mean". A block that holds some natural
    parameters of a Gaussian and not the others is for `FixedPoint`, `Gradient` and `LBFGS`; `Conjugate` takes whole
    components, and solvers that cannot leave leaves as they are are refused. What stays is η, not the mean: with the
    block "precision" alone a Gaussian keeps Λm, and its mean moves.
    """

    solver: Solver
    blocks: tuple[tuple[str, ...], ...] = eqx.field(static=True, converter=_blocks)
    max_steps: int = eqx.field(default=20, kw_only=True)
    """How many sweeps."""
    tolerance: float | None = eqx.field(default=1e-10, kw_only=True)
    """Stops when a sweep moves q by less than this, in nats of KL: converged, if the solver says so of every block."""

    def __check_init__(self) -> None:
        check_kind("solver", self.solver, Solver, "use one of partita.solvers")

    @property
    def for_densities(self) -> Solver:
        return dataclasses.replace(self, solver=self.solver.for_densities)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value = progress.q, progress.free_energy
        limited, worst = jnp.asarray(False), jnp.asarray(int(Outcome.CONVERGED))
        for block in self.blocks:
            part = dataclasses.replace(problem, start=q, free=free_leaves(q, block))
            if not self.solver.can_free(part):
                raise SettingsError(
                    f"{type(self.solver).__name__} cannot solve for the block {block} of a {type(q).__name__} while "
                    "its other leaves stay: use FixedPoint, Gradient or LBFGS, or blocks of whole components."
                )
            solution = self.solver.solve(part, key)
            q, value = solution.q, solution.free_energy
            limited = limited | (solution.outcome == Outcome.TRUST_REGION)
            worst = jnp.where(solution.outcome == Outcome.CONVERGED, worst, solution.outcome)
        # each block's ball is around where that block began: the whole way is held within the one around the start
        inside = problem.within(q)
        q, value = where(inside, (q, value), (progress.q, progress.free_energy))
        worst = jnp.where(worst == Outcome.STEP_LIMIT, Outcome.RUNNING, worst)
        outcome = jnp.where(within(q.kl(progress.q), self.tolerance), worst, Outcome.RUNNING)
        return Progress(q, value, jnp.where(limited | ~inside, Outcome.TRUST_REGION, outcome))


def free_leaves(q: Family, block: tuple[str, ...]) -> tuple[bool, ...]:
    """For each leaf of q whether its path holds one of the block's names."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(q)]
    names = [{str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path} for path in paths]
    free = tuple(bool(set(block) & found) for found in names)
    if not any(free):
        known = ", ".join(sorted(set().union(*names)))
        raise SettingsError(f"No leaf of {type(q).__name__} belongs to the block {block}: its names are {known}.")
    return free
