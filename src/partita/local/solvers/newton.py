"""Newton's method for generalised linear models with a Gaussian family over one vector."""

import dataclasses
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
from partita.expectations.blocks import Block, over_blocks
from partita.expectations.capabilities import LinearInTable
from partita.families import Family, Gaussian
from partita.families.capabilities import IndependentGaussian
from partita.families.gaussian import Standard, gaussian
from partita.inputs import check_whole
from partita.local.objective import Problem
from partita.local.solvers.base import LineSearchResult, Outcome, Progress, Solver, after, line_search, unmoved

__all__ = [
    "Memory",
    "Newton",
    "Path",
    "correlations",
    "derivatives",
    "gram",
    "linear_start",
    "matrix",
    "mean_and_scale",
    "scales",
    "times",
    "with_precision",
]
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
    precision. With many parameters the Hessian is that of the means alone, a quarter of the numbers, and the precision
    follows by natural-gradient steps, whatever its form. The Hessian dominates the cost and hardly changes near the
    optimum: it is reused while steps are below 1 nat and shrink at least tenfold.
    """

    max_steps: int = 50
    tolerance: float | None = 1e-6
    """Stops after a step that moves q by less than this, in nats of KL."""
    halvings: int = eqx.field(static=True, default=30)
    together: int = eqx.field(static=True, default=500)
    """With more parameters than these the steps are in means alone, and then in the precision."""

    def __check_init__(self) -> None:
        check_whole("number of halvings", self.halvings)
        check_whole("number of parameters to move together", self.together, 0)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """Starts from q, or from a Laplace approximation at its mean if that has a higher free energy.

        Under a wide q, such as a prior, the expected curvature is small and the first steps would be poor.
        """
        q = linear_start(problem, "Newton", "use Gradient or FixedPoint")
        progress = super().init(problem, key)
        mean, spread = q.project(problem.shard.data.x)

        def tight() -> LineSearchResult:
            precision = _optimal_precision(q, problem, mean, jnp.full_like(spread, 1e-4))
            laplace = with_precision(q, q.standard().mean, precision)
            return line_search(problem, q, progress.free_energy, lambda _: laplace, 1, key)

        found = jax.lax.cond(jnp.mean(spread) > 1, tight, lambda: unmoved(q, progress.free_energy))
        size, dtype = q.precision_mean.size * (1 + self._is_joint(q)), q.precision_mean.dtype
        memory = Memory(jnp.eye(size, dtype=dtype), jnp.asarray(jnp.inf, dtype), jnp.asarray(True))
        return Progress(found.q, found.free_energy, progress.outcome, memory)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, memory = gaussian(progress.q), progress.memory
        path, factor = (mean_and_scale if self._is_joint(q) else _mean_alone)(q, problem, memory)
        found = line_search(problem, q, progress.free_energy, lambda trial: path(0.5**trial), self.halvings, key)
        if not (self._is_joint(q) and isinstance(q, IndependentGaussian)):
            turn, value = correlations(gaussian(found.q), problem), found.free_energy
            then = line_search(problem, found.q, value, lambda trial: turn(0.5**trial), self.halvings, key)
            trials = jnp.maximum(found.trials, then.trials)
            found = then._replace(rose=found.rose | then.rose, limited=found.limited | then.limited, trials=trials)
        moved = found.q.kl(q)
        outcome = after(found, moved, moved, self.tolerance)
        outcome = jnp.where((outcome == Outcome.STALLED) & ~memory.stale, Outcome.RUNNING, outcome)
        slow = (moved > 1) | (moved > 0.1 * memory.moved) | ~found.rose
        return Progress(found.q, found.free_energy, outcome, Memory(factor, moved, slow))

    def _is_joint(self, q: Gaussian) -> bool:
        """Whether means and standard deviations are moved together, by one Hessian."""
        return bool(q.precision_mean.size <= self.together)


def linear_start(problem: Problem, who: str, instead: str) -> Gaussian:
    """The start of a solver for generalised linear models and Gaussians; raises a `SettingsError` for others."""
    if not isinstance(problem.model, LinearInTable):
        raise SettingsError(f"{who} needs a generalised linear model, not {type(problem.model).__name__}: {instead}.")
    return gaussian(problem.start, who, instead, SettingsError)


def mean_and_scale(q: Gaussian, problem: Problem, memory: Memory) -> tuple[Path, Float[Array, "p p"]]:
    """The Newton step in means m and standard deviations s with fixed correlations R, and the Hessian's factor.

    The variance of a row's predictor is (s∘x)ᵀR(s∘x). The Hessian only determines the direction, so its sums over rows
    are in single precision. Standard deviations decrease exponentially, so that they stay positive.
    """
    mean, sd, correlation = scales(q)
    context = gaussian(problem.context.natural)
    pull = context.precision if correlation is None else context.matrix() * correlation

    def slopes(block: Block) -> tuple[tuple[Array, Array], Derivatives, Array]:
        scaled = block.data.x * sd
        mixed = scaled if correlation is None else scaled @ correlation
        rows = derivatives(problem, block, block.data.x @ mean, jnp.sum(scaled * mixed, axis=-1))
        by_sd = 2 * jnp.sum(block.data.x * mixed * rows.variance[:, None], axis=0)
        return (rows.mean @ block.data.x, by_sd), rows, mixed

    def slopes_and_curvatures(block: Block) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        first, rows, mixed = slopes(block)
        low = block.data.x.astype(jnp.float32)
        by_sd = 2 * low * mixed.astype(jnp.float32)
        if correlation is None:
            spread = jnp.diag(jnp.sum(jnp.square(low) * rows.variance.astype(jnp.float32)[:, None], axis=0))
        else:
            spread = gram(low, rows.variance, low) * correlation
        across, within = gram(low, rows.mean_variance, by_sd), gram(by_sd, rows.variance_variance, by_sd) + 2 * spread
        return first, (gram(low, rows.mean_mean, low), across, within)

    def gradient(by_mean: Array, by_sd: Array) -> Float[Array, " p"]:
        by_mean = by_mean + context.precision_mean - context.times(mean)
        return jnp.concatenate([by_mean, by_sd - times(pull, sd) + 1 / sd])

    def restart() -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        first, (mean_mean, mean_sd, sd_sd) = over_blocks(slopes_and_curvatures, problem.shard)
        mean_mean = mean_mean - context.matrix()
        sd_sd = sd_sd - matrix(pull) - jnp.diag(1 / sd**2)
        return gradient(*first), _positive_factor(-jnp.block([[mean_mean, mean_sd], [mean_sd.T, sd_sd]]))

    def again() -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        return gradient(*over_blocks(lambda block: slopes(block)[0], problem.shard)), memory.factor

    slope, factor = jax.lax.cond(memory.stale, restart, again)
    step = jsp.linalg.cho_solve((factor, True), slope)
    of_mean, of_sd = step[: mean.size], step[mean.size :] / sd

    def path(size: Float[Array, ""]) -> Family:
        change = size * of_sd
        moved = sd * jnp.where(change > 0, 1 + change, jnp.exp(jnp.minimum(change, 0)))
        variance = jnp.square(moved) if correlation is None else q.cut(jnp.outer(moved, moved) * correlation)
        return q.with_standard(Standard(mean + size * of_mean, variance))

    return path, factor


def _mean_alone(q: Gaussian, problem: Problem, memory: Memory) -> tuple[Path, Float[Array, "p p"]]:
    """The Newton step in means with a fixed covariance, and the Hessian's factor."""
    mean, context = q.standard().mean, gaussian(problem.context.natural)
    predictors = _with_predictors(problem, *q.project(problem.shard.data.x))

    def slopes(block: Block) -> tuple[Array, Derivatives, Array]:
        table, centre, spread = block.data
        rows = derivatives(problem, block._replace(data=table), centre, spread)
        return rows.mean @ table.x, rows, table.x

    def slopes_and_curvatures(block: Block) -> tuple[Array, Array]:
        first, rows, x = slopes(block)
        low = x.astype(jnp.float32)
        return first, gram(low, rows.mean_mean, low)

    def restart() -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        first, second = over_blocks(slopes_and_curvatures, predictors)
        return first, _positive_factor(context.matrix() - second)

    def again() -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        return over_blocks(lambda block: slopes(block)[0], predictors), memory.factor

    slope, factor = jax.lax.cond(memory.stale, restart, again)
    step = jsp.linalg.cho_solve((factor, True), slope + context.precision_mean - context.times(mean))
    return lambda size: dataclasses.replace(q, precision_mean=q.times(mean + size * step)), factor


def correlations(q: Gaussian, problem: Problem) -> Path:
    """The natural-gradient step of the precision around a fixed mean."""
    target = _optimal_precision(q, problem, *q.project(problem.shard.data.x))

    def path(size: Float[Array, ""]) -> Family:
        between = jax.tree.map(lambda old, new: old + size * (new - old), q.precision, target)
        return with_precision(q, q.standard().mean, between)

    return path


def _optimal_precision(q: Gaussian, problem: Problem, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> PyTree:
    """The optimal precision if the expected curvatures stayed as under predictors with this mean and variance."""

    def sums(block: Block) -> PyTree:
        table, mean, variance = block.data
        return q.gram(table.x, derivatives(problem, block._replace(data=table), mean, variance).variance)

    total = over_blocks(sums, _with_predictors(problem, mean, variance))
    context = gaussian(problem.context.natural)
    precision = jax.tree.map(lambda own, curvature: own - 2 * curvature, context.precision, total)
    return dataclasses.replace(q, precision=precision).symmetrised().precision


def _with_predictors(problem: Problem, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Shard:
    """The rows with the mean and the variance of each one's predictor."""
    return dataclasses.replace(problem.shard, data=(problem.shard.data, mean, variance))


def scales(q: Gaussian) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, "d d"] | None]:
    """Mean, standard deviations and, where the family has them, correlations."""
    if isinstance(q, IndependentGaussian):
        return q.mean, jnp.sqrt(q.variance), None
    covariance = q.covariance
    sd = jnp.sqrt(jnp.diagonal(covariance))
    return q.standard().mean, sd, covariance / jnp.outer(sd, sd)


def with_precision(q: Gaussian, mean: Float[Array, " d"], precision: PyTree) -> Gaussian:
    """The member of q's family with this mean and precision."""
    member = dataclasses.replace(q, precision=precision)
    return dataclasses.replace(member, precision_mean=member.times(mean))


def times(precision: Array, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """The product with a matrix, or with the diagonal of one."""
    return precision * vector if precision.ndim == 1 else precision @ vector


def matrix(precision: Array) -> Float[Array, "d d"]:
    """The matrix, also where only its diagonal is given."""
    return jnp.diag(precision) if precision.ndim == 1 else precision


def derivatives(problem: Problem, block: Block, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Derivatives:
    """Derivatives of w·ell of a block of rows, whose predictors have this mean and variance."""
    rows = problem.model.expectation.derivatives(problem.model, mean, variance, block.data)
    return Derivatives(*(problem.weight * block.weights * row for row in rows))


def _positive_factor(hessian: Float[Array, "p p"]) -> Float[Array, "p p"]:
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
