"""Newton's method for models whose data act through a linear predictor, with Gaussian families over one vector."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.errors import InputError
from partita.expectations import Derivatives
from partita.families import Family, FullGaussian, Gaussian, MeanFieldGaussian
from partita.families.gaussian import Standard
from partita.models import GeneralisedLinear
from partita.models.glm import gaussian
from partita.objective import Problem
from partita.partition.shard import Shard
from partita.solvers.base import Climb, Outcome, Progress, Solver, after, climb

Path = Callable[[Float[Array, ""]], Family]
"""Where a step of a given size, 1 for all of it, leads to; it rises for small sizes."""


class Memory(NamedTuple):
    """What Newton remembers between steps."""

    factor: Float[Array, "p p"]
    """Cholesky's factor of the negative Hessian, as last computed."""
    moved: Float[Array, ""]
    """How far the last step went, in nats of KL."""
    stale: Bool[Array, ""]
    """Whether the Hessian is to be computed anew."""


class Newton(Solver):
    """Newton steps on mean and scale, halved while they would lower the free energy.

    For a log-concave likelihood the local free energy of a mean-field q is concave in means and standard deviations
    together, and so is its quadrature; where mean and scale are moved in turns instead, wide predictors make it crawl.
    A Hessian is kept while steps with it shrink tenfold: close to the optimum it hardly changes and is all of the cost.
    """

    max_steps: int = 50
    tolerance: float = 1e-6
    """Stops after a step that moves q by less than this, in nats of KL."""
    halvings: int = eqx.field(static=True, default=30)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """Starts from q, or from its mean with the variance of Laplace's approximation there if that is better.

        Under a wide q, such as a prior, quadrature sees little curvature and the first steps would be short.
        """
        if not isinstance(problem.model, GeneralisedLinear):
            raise InputError(
                f"Newton needs a generalised linear model, not {type(problem.model).__name__}: "
                "use Gradient or FixedPoint."
            )
        progress = super().init(problem, key)
        q = gaussian(progress.q)
        _, spread = q.project(problem.shard.data.x)

        def tight() -> Climb:
            return climb(problem, q, progress.free_energy, lambda _: laplace(q, problem), 1, key)

        def as_it_is() -> Climb:
            return Climb(q, progress.free_energy, jnp.asarray(False), jnp.asarray(False))

        found = jax.lax.cond(jnp.mean(spread) > 1, tight, as_it_is)
        size = sum(leaf.size for leaf in jax.tree.leaves(q.standard().mean)) * (2 - (q.precision.ndim - 1))
        memory = Memory(
            jnp.eye(size, dtype=q.precision.dtype), jnp.asarray(jnp.inf, q.precision.dtype), jnp.asarray(True)
        )
        return Progress(found.q, found.free_energy, progress.outcome, memory)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, context, memory = gaussian(progress.q), gaussian(problem.context.natural), progress.memory
        path, factor = newton_path(q, context, problem, memory)
        found = climb(problem, q, progress.free_energy, lambda trial: path(0.5**trial), self.halvings, key)
        moved = found.q.kl(q)
        outcome = after(found, moved, self.tolerance)
        outcome = jnp.where((outcome == Outcome.STALLED) & ~memory.stale, Outcome.RUNNING, outcome)
        slow = (moved > 0.1) | (moved > 0.1 * memory.moved) | ~found.rose
        return Progress(found.q, found.free_energy, outcome, Memory(factor, moved, slow))


@functools.singledispatch
def newton_path(q: Gaussian, context: Gaussian, problem: Problem, memory: Memory) -> tuple[Path, Float[Array, "p p"]]:
    """The path of a Newton step from q, and the factor of the Hessian it used; one function per family."""
    raise InputError(f"Newton does not know the family {type(q).__name__}: use Gradient or FixedPoint.")


@newton_path.register
def _(
    q: MeanFieldGaussian, context: MeanFieldGaussian, problem: Problem, memory: Memory
) -> tuple[Path, Float[Array, "p p"]]:
    """Newton's step in means m and standard deviations s, the latter falling exponentially so as to stay positive.

    The Hessian directs the step and no more, so its sums over rows are formed in single precision.
    """
    mean, sd = q.mean, q.sd

    def slopes(block: Shard) -> tuple[tuple[Array, Array], Derivatives]:
        x = block.data.x
        rows = derivatives(problem, block, *q.project(x))
        return (rows.mean @ x, jnp.sum(jnp.square(x) * rows.variance[:, None], axis=0)), rows

    def slopes_and_curvatures(block: Shard) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        first, rows = slopes(block)
        low = block.data.x.astype(jnp.float32)
        squares = jnp.square(low)
        return first, (
            gram(low, rows.mean_mean, low),
            gram(low, rows.mean_variance, squares),
            gram(squares, rows.variance_variance, squares),
        )

    def gradient(by_mean: Array, by_variance: Array) -> tuple[Array, Array, Array]:
        by_variance = 2 * by_variance - context.precision
        return by_mean + context.precision_mean - context.precision * mean, sd * by_variance + 1 / sd, by_variance

    def anew() -> tuple[Array, Array, Float[Array, "p p"]]:
        first, (mean_mean, mean_variance, variance_variance) = over_blocks(slopes_and_curvatures, problem.shard)
        by_mean, by_sd, by_variance = gradient(*first)
        mean_sd = 2 * mean_variance * sd
        sd_sd = 4 * variance_variance * jnp.outer(sd, sd) + jnp.diag(by_variance - 1 / sd**2)
        hessian = jnp.block([[mean_mean - jnp.diag(context.precision), mean_sd], [mean_sd.T, sd_sd]])
        return by_mean, by_sd, positive_factor(-hessian)

    def again() -> tuple[Array, Array, Float[Array, "p p"]]:
        by_mean, by_sd, _ = gradient(*over_blocks(lambda block: slopes(block)[0], problem.shard))
        return by_mean, by_sd, memory.factor

    by_mean, by_sd, factor = jax.lax.cond(memory.stale, anew, again)
    step = jsp.linalg.cho_solve((factor, True), jnp.concatenate([by_mean, by_sd]))
    of_mean, of_sd = step[: mean.size], step[mean.size :] / sd

    def path(size: Float[Array, ""]) -> Family:
        change = size * of_sd
        moved = sd * jnp.where(change > 0, 1 + change, jnp.exp(jnp.minimum(change, 0)))
        return q.with_standard(Standard(mean + size * of_mean, jnp.square(moved)))

    return path, factor


@newton_path.register
def _(q: FullGaussian, context: FullGaussian, problem: Problem, memory: Memory) -> tuple[Path, Float[Array, "p p"]]:
    """The natural-gradient step of the precision, and Newton's of the mean with that precision as its Hessian.

    The curvature is part of the answer here and not only of the way to it, so it is always computed anew.
    """

    def sums(block: Shard) -> tuple[Array, ...]:
        x = block.data.x
        rows = derivatives(problem, block, *q.project(x))
        return rows.mean @ x, gram(x, -2 * rows.variance, x)

    by_mean, curvature = over_blocks(sums, problem.shard)
    precision = context.precision + (curvature + curvature.T) / 2
    mean = q.standard().mean
    factor = positive_factor(precision)
    gradient = by_mean + context.precision_mean - context.precision @ mean
    of_mean = jsp.linalg.cho_solve((factor, True), gradient)

    def path(size: Float[Array, ""]) -> Family:
        moved = q.precision + size * (precision - q.precision)
        return FullGaussian(moved @ (mean + size * of_mean), moved, q.layout)

    return path, factor


def laplace(q: Gaussian, problem: Problem) -> Gaussian:
    """The mean of q with the precision of Laplace's approximation there."""
    context, mean = gaussian(problem.context.natural), q.standard().mean

    def sums(block: Shard) -> Array:
        x = block.data.x
        predictor = x @ mean
        curvature = -2 * derivatives(problem, block, predictor, jnp.full_like(predictor, 1e-4)).variance
        if isinstance(q, MeanFieldGaussian):
            return jnp.sum(jnp.square(x) * curvature[:, None], axis=0)
        return gram(x, curvature, x)

    precision = context.precision + over_blocks(sums, problem.shard)
    shift = precision * mean if precision.ndim == 1 else precision @ mean
    return eqx.tree_at(lambda g: (g.precision_mean, g.precision), q, (shift, precision))


def derivatives(problem: Problem, block: Shard, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Derivatives:
    """Derivatives of w·ell of a block of rows, whose predictors have this mean and variance."""
    rows = problem.model.expectation.derivatives(problem.model, mean, variance, block.data)
    return Derivatives(*(problem.weight * block.weights * row for row in rows))


def over_blocks(function: Callable[[Shard], PyTree], shard: Shard, length: int = 1024) -> PyTree:
    """The sum of `function` over blocks of rows small enough that what it computes on the way stays in the cache."""
    rows = len(shard.weights)
    if rows <= length:
        return function(shard)

    def block(index: Int[Array, ""]) -> Shard:
        start = jnp.minimum(index * length, rows - length)
        data, weights = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, length), (shard.data, shard.weights)
        )
        fresh = start + jnp.arange(length) >= index * length
        return Shard(data, jnp.where(fresh, weights, 0), shard.rows)

    def add(index: Int[Array, ""], total: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, total, function(block(index)))

    blocks = -(-rows // length)
    return jax.lax.fori_loop(1, blocks, add, function(block(jnp.asarray(0))))


def positive_factor(hessian: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Cholesky's factor; where an improper context leaves the Hessian indefinite, with its eigenvalues' magnitudes."""
    factor = jnp.linalg.cholesky(hessian)

    def indefinite() -> Float[Array, "p p"]:
        values, vectors = jnp.linalg.eigh(hessian)
        magnitude = jnp.maximum(jnp.abs(values), 1e-8 * jnp.max(jnp.abs(values)))
        return jnp.linalg.cholesky((vectors * magnitude) @ vectors.T)

    return jax.lax.cond(jnp.all(jnp.isfinite(factor)), lambda: factor, indefinite)


def gram(left: Float[Array, "n d"], rows: Float[Array, " n"], right: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """leftᵀ diag(rows) right, in the precision of `left` and returned in that of `rows`."""
    return ((left * rows[:, None].astype(left.dtype)).T @ right).astype(rows.dtype)
