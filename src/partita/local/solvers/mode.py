"""The fixed point from a tight start: a Laplace approximation at the mode, where that is better than q."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.errors import SettingsError
from partita.families import Gaussian
from partita.families.full_gaussian import symmetric
from partita.families.gaussian import check_vector, gaussian
from partita.local.objective import Problem
from partita.local.solvers.base import Progress, Solver, length, running
from partita.local.solvers.fixed_point import FixedPoint
from partita.local.solvers.newton import with_precision
from partita.numerics.trees import where

__all__ = ["ModeFixedPoint"]

_TRIES = 200
"""The most evaluations on the way to the mode."""
_HALVINGS = 30
_FLATTEST = 1e-10
"""The least curvature that a direction is given, as a share of the largest."""
_TANGENTS = 8
"""How many columns of a Hessian are computed together."""
_NEAR = 1e-9
"""The step to the mode that ends the climb, as a gain in nats."""


class ModeFixedPoint(FixedPoint):
    """`FixedPoint` for a Gaussian over one vector, and any model with smooth row densities.

    Under a wide q, such as a prior, expected curvatures are small, or not even those of a density; the first
    natural-gradient steps would be poor, or improper. So every visit begins by climbing to the mode of context and
    rows, with one density a row instead of a quadrature: Newton steps with the absolute eigenvalues of the Hessian,
    halved while they would lower the density. Unless q has the higher free energy, the Laplace approximation there is
    the start.
    """

    max_steps: int = 200
    tolerance: float | None = 1e-13

    @property
    def for_densities(self) -> Solver:
        return FixedPoint(max_steps=self.max_steps, tolerance=self.tolerance)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        q = gaussian(problem.start, "ModeFixedPoint", "use Gradient", SettingsError)
        check_vector(q.mean)
        laplace = with_precision(q, *_mode(problem, q))
        # in turn, so that the free energy is compiled once
        members = jax.tree.map(lambda *leaves: jnp.stack(leaves), q, laplace)
        values = jax.lax.map(lambda member: problem.free_energy(member, key), members)
        # under a wide q the expectation may overflow, to something that is no number
        better = laplace.is_proper() & problem.within(laplace) & jnp.isfinite(values[1]) & ~(values[0] >= values[1])
        start, value = where(better, (laplace, values[1]), (q, values[0]))
        return Progress(start, value, running(), jnp.asarray(jnp.inf, values.dtype))

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, target = progress.q, self.target(problem, progress.q, index, key)
        moved, value, outcome, _ = self.towards(target, problem, progress, index, key)
        return Progress(moved, value, outcome, length(q, target))

    def ahead(self, problem: Problem, progress: Progress, key: Key[Array, ""]) -> Float[Array, ""]:
        """From where the last step began, which is where a solver that stalls still is."""
        return progress.memory


class _Climb(NamedTuple):
    """Where a climb to the mode has come to."""

    at: Float[Array, " d"]
    value: Float[Array, ""]
    hessian: Float[Array, "d d"]
    direction: Float[Array, " d"]
    size: Float[Array, ""]
    """How much of the direction is tried next."""
    gain: Float[Array, ""]
    """By how much the whole of it would raise the log density."""
    tries: Int[Array, ""]


def _mode(problem: Problem, q: Gaussian) -> tuple[Float[Array, " d"], PyTree]:
    """The mode of context and rows, climbed to from the mean of q, and the precision of q's kind there.

    A try that lowers the density is halved; after one that does not, the next direction follows from the same
    evaluation. So the second derivatives of a density, which take long to compile, are in the program once.
    """
    context = gaussian(problem.context.natural)

    def log_density(theta: Float[Array, " d"]) -> Float[Array, ""]:
        rows = jax.vmap(problem.model.log_density, in_axes=(None, 0))(theta, problem.shard.data)
        pulled = theta @ context.precision_mean - theta @ context.times(theta) / 2
        return problem.weight * (problem.shard.weights @ rows) + pulled

    def evaluated(theta: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
        def along(tangent: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " d"]]:
            (value, slope), (_, column) = jax.jvp(jax.value_and_grad(log_density), (theta,), (tangent,))
            return value, slope, column

        axes = jnp.eye(len(theta), dtype=theta.dtype)
        values, slopes, columns = jax.lax.map(along, axes, batch_size=min(_TANGENTS, len(theta)))
        return values[0], slopes[0], symmetric(columns)

    def go_on(climb: _Climb) -> Bool[Array, ""]:
        return (climb.gain > _NEAR) & (climb.size > 0.5**_HALVINGS) & (climb.tries < _TRIES)

    def step(climb: _Climb) -> _Climb:
        tried = climb.at + climb.size * climb.direction
        value, slope, hessian = evaluated(tried)
        values, vectors = jnp.linalg.eigh(hessian)
        sizes = jnp.maximum(jnp.abs(values), _FLATTEST * jnp.max(jnp.abs(values)))
        direction = vectors @ ((vectors.T @ slope) / sizes)
        one = jnp.ones_like(value)
        found = _Climb(tried, value, hessian, direction, one, slope @ direction / 2, climb.tries + 1)
        rose = (value >= climb.value) & jnp.all(jnp.isfinite(direction))
        return where(rose, found, climb._replace(size=climb.size / 2, tries=climb.tries + 1))

    mean = q.standard().mean
    far, still = jnp.asarray(jnp.inf, mean.dtype), jnp.zeros_like(mean)
    first = _Climb(mean, -far, jnp.zeros((len(mean),) * 2, mean.dtype), still, jnp.ones_like(far), far, jnp.asarray(0))
    found = jax.lax.while_loop(go_on, step, first)
    return found.at, q.cut(-found.hessian)
