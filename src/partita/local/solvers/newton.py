"""Newton's method for generalised linear models with a Gaussian family over one vector."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.expectations import Derivatives
from partita.expectations.capabilities import LinearInTable
from partita.families import Family, FullGaussian, Gaussian, MeanFieldGaussian
from partita.families.gaussian import Standard
from partita.local.objective import Problem
from partita.local.solvers.base import LineSearchResult, Outcome, Progress, Solver, after, line_search
from partita.models.glm import gaussian

Path = Callable[[Float[Array, ""]], Family]
"""Maps a step size (1 for the full step) to a member; the free energy rises for small step sizes."""


class Memory(NamedTuple):
    """Newton's state between steps."""

    factor: Float[Array, "p p"]
    """The Cholesky factor of the negative Hessian, as last computed."""
    moved: Float[Array, ""]
    """KL of the last step, in nats."""
    stale: Bool[Array, ""]
    """Whether the Hessian must be recomputed."""


class Newton(Solver):
    """Newton steps on means and standard deviations together, halved while they would lower the free energy.

    For a log-concave likelihood the local free energy and its quadrature are jointly concave in means and standard
    deviations; updating the two alternately converges slowly if some predictors have a large variance. With a full
    covariance the correlations are fixed during such a step and then updated by a natural-gradient step of the
    precision. The Hessian dominates the cost and hardly changes near the optimum: it is reused while steps are below
    1 nat and shrink at least tenfold.
    """

    max_steps: int = 50
    tolerance: float = 1e-6
    """Stops after a step that moves q by less than this, in nats of KL."""
    halvings: int = eqx.field(static=True, default=30)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """Starts from q, or from a Laplace approximation at its mean if that has a higher free energy.

        Under a wide q, such as a prior, the expected curvature is small and the first steps would be poor.
        """
        if not isinstance(problem.model, LinearInTable):
            raise SettingsError(
                f"Newton needs a generalised linear model, not {type(problem.model).__name__}: "
                "use Gradient or FixedPoint."
            )
        if not isinstance(problem.start, MeanFieldGaussian | FullGaussian):
            raise SettingsError(f"Newton needs a Gaussian family, not {type(problem.start).__name__}: use Gradient.")
        progress = super().init(problem, key)
        q = gaussian(progress.q)
        mean, spread = q.project(problem.shard.data.x)

        def tight() -> LineSearchResult:
            narrow = jnp.full_like(spread, 1e-4)
            laplace = with_precision(q, optimal_precision(q, problem, mean, narrow))
            return line_search(problem, q, progress.free_energy, lambda _: laplace, 1, key)

        def as_it_is() -> LineSearchResult:
            return LineSearchResult(q, progress.free_energy, jnp.asarray(False), jnp.asarray(0), jnp.asarray(False))

        found = jax.lax.cond(jnp.mean(spread) > 1, tight, as_it_is)
        size, dtype = 2 * len(q.precision), q.precision.dtype
        memory = Memory(jnp.eye(size, dtype=dtype), jnp.asarray(jnp.inf, dtype), jnp.asarray(True))
        return Progress(found.q, found.free_energy, progress.outcome, memory)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, memory = gaussian(progress.q), progress.memory
        path, factor = mean_and_scale(q, problem, memory)
        found = line_search(problem, q, progress.free_energy, lambda trial: path(0.5**trial), self.halvings, key)
        if isinstance(q, FullGaussian):
            turned = correlations(gaussian(found.q), problem)
            then = line_search(
                problem, found.q, found.free_energy, lambda trial: turned(0.5**trial), self.halvings, key
            )
            found = then._replace(rose=found.rose | then.rose, limited=found.limited | then.limited)
        moved = found.q.kl(q)
        outcome = after(found, moved, self.tolerance)
        outcome = jnp.where((outcome == Outcome.STALLED) & ~memory.stale, Outcome.RUNNING, outcome)
        slow = (moved > 1) | (moved > 0.1 * memory.moved) | ~found.rose
        return Progress(found.q, found.free_energy, outcome, Memory(factor, moved, slow))


def mean_and_scale(q: Gaussian, problem: Problem, memory: Memory) -> tuple[Path, Float[Array, "p p"]]:
    """The Newton step in means m and standard deviations s with fixed correlations R, and the Hessian's factor.

    The variance of a row's predictor is (s∘x)ᵀR(s∘x). The Hessian only determines the direction, so its sums over rows
    are in single precision. Standard deviations decrease exponentially, so that they stay positive.
    """
    mean, sd, correlation = scales(q)
    context = gaussian(problem.context.natural)
    pull = context.precision if correlation is None else context.precision * correlation

    def slopes(block: Shard) -> tuple[tuple[Array, Array], Derivatives, Array]:
        scaled = block.data.x * sd
        mixed = scaled if correlation is None else scaled @ correlation
        rows = derivatives(problem, block, block.data.x @ mean, jnp.sum(scaled * mixed, axis=-1))
        by_sd = 2 * jnp.sum(block.data.x * mixed * rows.variance[:, None], axis=0)
        return (rows.mean @ block.data.x, by_sd), rows, mixed

    def slopes_and_curvatures(block: Shard) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        first, rows, mixed = slopes(block)
        low = block.data.x.astype(jnp.float32)
        by_sd = 2 * low * mixed.astype(jnp.float32)
        if correlation is None:
            spread = jnp.diag(jnp.sum(jnp.square(low) * rows.variance.astype(jnp.float32)[:, None], axis=0))
        else:
            spread = gram(low, rows.variance, low) * correlation
        return first, (
            gram(low, rows.mean_mean, low),
            gram(low, rows.mean_variance, by_sd),
            gram(by_sd, rows.variance_variance, by_sd) + 2 * spread,
        )

    def gradient(by_mean: Array, by_sd: Array) -> Float[Array, " p"]:
        by_mean = by_mean + context.precision_mean - times(context.precision, mean)
        return jnp.concatenate([by_mean, by_sd - times(pull, sd) + 1 / sd])

    def restart() -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        first, (mean_mean, mean_sd, sd_sd) = over_blocks(slopes_and_curvatures, problem.shard)
        mean_mean = mean_mean - matrix(context.precision)
        sd_sd = sd_sd - matrix(pull) - jnp.diag(1 / sd**2)
        return gradient(*first), positive_factor(-jnp.block([[mean_mean, mean_sd], [mean_sd.T, sd_sd]]))

    def again() -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        return gradient(*over_blocks(lambda block: slopes(block)[0], problem.shard)), memory.factor

    slope, factor = jax.lax.cond(memory.stale, restart, again)
    step = jsp.linalg.cho_solve((factor, True), slope)
    of_mean, of_sd = step[: mean.size], step[mean.size :] / sd

    def path(size: Float[Array, ""]) -> Family:
        change = size * of_sd
        moved = sd * jnp.where(change > 0, 1 + change, jnp.exp(jnp.minimum(change, 0)))
        variance = jnp.square(moved) if correlation is None else jnp.outer(moved, moved) * correlation
        return q.with_standard(Standard(mean + size * of_mean, variance))

    return path, factor


def correlations(q: Gaussian, problem: Problem) -> Path:
    """The natural-gradient step of the precision around a fixed mean."""
    target = optimal_precision(q, problem, *q.project(problem.shard.data.x))
    return lambda size: with_precision(q, q.precision + size * (target - q.precision))


def optimal_precision(q: Gaussian, problem: Problem, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Array:
    """The optimal precision if the expected curvatures stayed as under predictors with this mean and variance."""
    predictors = Shard((problem.shard.data, mean, variance), problem.shard.weights, problem.shard.rows)

    def sums(block: Shard) -> Array:
        table, mean, variance = block.data
        rows = derivatives(problem, Shard(table, block.weights, block.rows), mean, variance)
        if isinstance(q, MeanFieldGaussian):
            return jnp.sum(jnp.square(table.x) * rows.variance[:, None], axis=0)
        return gram(table.x, rows.variance, table.x)

    curvature = -2 * over_blocks(sums, predictors)
    precision = gaussian(problem.context.natural).precision + curvature
    return precision if precision.ndim == 1 else (precision + precision.T) / 2


def scales(q: Gaussian) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, "d d"] | None]:
    """Mean, standard deviations and, where the family has them, correlations."""
    mean, variance = q.standard()
    if variance.ndim == 1:
        return mean, jnp.sqrt(variance), None
    sd = jnp.sqrt(jnp.diagonal(variance))
    return mean, sd, variance / jnp.outer(sd, sd)


def with_precision(q: Gaussian, precision: Array) -> Gaussian:
    """q with another precision around the same mean."""
    shift = times(precision, q.standard().mean)
    return eqx.tree_at(lambda g: (g.precision_mean, g.precision), q, (shift, precision))


def times(precision: Array, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """The product with a matrix, or with the diagonal of one."""
    return precision * vector if precision.ndim == 1 else precision @ vector


def matrix(precision: Array) -> Float[Array, "d d"]:
    """The matrix, also where only its diagonal is given."""
    return jnp.diag(precision) if precision.ndim == 1 else precision


def derivatives(problem: Problem, block: Shard, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Derivatives:
    """Derivatives of w·ell of a block of rows, whose predictors have this mean and variance."""
    rows = problem.model.expectation.derivatives(problem.model, mean, variance, block.data)
    return Derivatives(*(problem.weight * block.weights * row for row in rows))


def over_blocks(function: Callable[[Shard], PyTree], shard: Shard, length: int = 1024) -> PyTree:
    """The sum of `function` over blocks of rows small enough for their intermediates to stay in the CPU cache."""
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

    shapes = jax.eval_shape(function, jax.eval_shape(block, jnp.asarray(0)))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-rows // length), add, zeros)


def positive_factor(hessian: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """The Cholesky factor; for an indefinite Hessian (improper context) that with the absolute eigenvalues."""
    factor = jnp.linalg.cholesky(hessian)

    def indefinite() -> Float[Array, "p p"]:
        values, vectors = jnp.linalg.eigh(hessian)
        magnitude = jnp.maximum(jnp.abs(values), 1e-8 * jnp.max(jnp.abs(values)))
        return jnp.linalg.cholesky((vectors * magnitude) @ vectors.T)

    return jax.lax.cond(jnp.all(jnp.isfinite(factor)), lambda: factor, indefinite)


def gram(left: Float[Array, "n d"], rows: Float[Array, " n"], right: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """leftᵀ diag(rows) right, in the precision of `left` and returned in that of `rows`."""
    return ((left * rows[:, None].astype(left.dtype)).T @ right).astype(rows.dtype)
