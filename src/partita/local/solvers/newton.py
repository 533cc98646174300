"""Newton's method for generalised linear models with a Gaussian family over one vector."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.errors import SettingsError
from partita.expectations import Derivatives, GaussHermite, root
from partita.expectations.blocks import Block, over_blocks, rows_by_blocks
from partita.expectations.capabilities import LinearInTable
from partita.families import Family, Gaussian
from partita.families.capabilities import IndependentGaussian
from partita.families.gaussian import Standard, gaussian
from partita.inputs import check_whole
from partita.local.objective import Problem
from partita.local.solvers.base import LineSearchResult, Outcome, Progress, Solver, after, line_search, running, unmoved
from partita.local.solvers.fixed_point import FixedPoint
from partita.numerics.trees import where

__all__ = [
    "Newton",
    "gram",
    "linear_start",
    "with_precision",
]
_Path = Callable[[Float[Array, ""]], Family]
"""Maps a step size (1 for the full step) to a member; the free energy rises for small step sizes."""
_Pairs = Callable[[Float[Array, "b d"]], tuple[tuple[Array, Array], ...]]
"""The columns whose products are summed, left and right, from inputs."""
_Predictors = Callable[[Float[Array, "b d"]], tuple[Float[Array, " b"], Float[Array, " b"]]]
"""The mean and the variance of each row's predictor, from inputs."""
_LENGTH = 512
"""The rows of a block, of which products are formed in both precisions."""
_CHANGED = 0.1
"""A row is summed into the Hessian again once its curvatures are so far from those that were, relative to them."""


class _Point(NamedTuple):
    """What rows say at a member q."""

    variance: Float[Array, " n"]
    """The variance of each row's predictor."""
    rows: Derivatives
    """Derivatives of w·ell in the mean and the variance of each row's predictor."""


class _Memory(NamedTuple):
    """Newton's state between steps."""

    point: _Point
    """At the present q."""
    held: tuple[Float[Array, " n"], ...]
    """The curvatures of rows that are in `sums`."""
    sums: tuple[Float[Array, "d d"], ...]
    """The Hessian's sums over rows."""
    moved: Float[Array, ""]
    """KL of the last step, in nats."""
    stale: Bool[Array, ""]
    """Whether all rows must be summed again."""


class Newton(Solver):
    """Newton steps on means and standard deviations together, halved while they would lower the free energy.

    For a log-concave likelihood the local free energy and its quadrature are jointly concave in means and standard
    deviations; updating the two alternately converges slowly if some predictors have a large variance. With a full
    covariance the correlations are fixed during such a step and then updated by a natural-gradient step of the
    precision. With many parameters the Hessian is that of the means alone, a quarter of the numbers, and the precision
    follows by natural-gradient steps, whatever its form.

    The Hessian's sums over rows dominate the cost. Where what is summed of a row is its curvature times numbers that
    stay, only rows whose curvature has changed by a tenth are summed again: soon a few in a thousand. Where the numbers
    are those of the present correlations, the sums are kept while steps are below 1 nat and shrink at least tenfold.
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

    @property
    def for_densities(self) -> Solver:
        return FixedPoint()

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """Starts from q, or from a Laplace approximation near the mode if that has a higher free energy.

        Under a wide q, such as a prior, the expected curvature is small and the first steps would be poor.
        """
        q = linear_start(problem, "Newton", "use Gradient or FixedPoint")

        def go_on(found: LineSearchResult) -> Bool[Array, ""]:
            return (found.trials == 0) | ((found.trials == 1) & (jnp.mean(found.at.variance) > 1))

        def consider(found: LineSearchResult) -> LineSearchResult:
            first = found.trials == 0
            member = jax.lax.cond(first, lambda: q, lambda: _near_mode(problem, q, self.halvings, key))
            value, point = _evaluated(problem, member)
            higher = jnp.isfinite(value) & ~(value <= found.free_energy)
            better = first | (member.is_proper() & problem.within(member) & higher)
            chosen, value, point = where(better, (member, value, point), (found.q, found.free_energy, found.at))
            return found._replace(q=chosen, free_energy=value, at=point, trials=found.trials + 1)

        # one after the other, so that an evaluation is compiled once
        found = jax.lax.while_loop(go_on, consider, unmoved(q, *_unseen(problem, q)))
        count = 1 if not self._is_joint(q) else 3 if _is_independent(q) else 4
        return Progress(found.q, found.free_energy, running(), _fresh(found.at, q, count))

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, value, old = gaussian(progress.q), progress.free_energy, progress.memory
        evaluate, trials = partial(_evaluated, problem), self.halvings
        path, memory = (_mean_and_scale if self._is_joint(q) else _mean_alone)(q, problem, old)
        found = line_search(problem, q, value, lambda trial: path(0.5**trial), trials, key, evaluate, old.point)
        if not (self._is_joint(q) and _is_independent(q)):
            turn, value = _turn(gaussian(found.q), problem, found.at.rows), found.free_energy
            then = line_search(problem, found.q, value, lambda trial: turn(0.5**trial), trials, key, evaluate, found.at)
            tried = jnp.maximum(found.trials, then.trials)
            found = then._replace(rose=found.rose | then.rose, limited=found.limited | then.limited, trials=tried)
        moved = found.q.kl(q)
        outcome = after(found, moved, moved, self.tolerance)
        again = (outcome == Outcome.STALLED) & ~old.stale
        outcome = jnp.where(again, Outcome.RUNNING, outcome)
        slow = (moved > 1) | (moved > 0.1 * old.moved) | ~found.rose
        stale = slow if self._is_joint(q) and not _is_independent(q) else again
        return Progress(found.q, found.free_energy, outcome, _Memory(found.at, memory.held, memory.sums, moved, stale))

    def _is_joint(self, q: Gaussian) -> bool:
        """Whether means and standard deviations are moved together, by one Hessian."""
        return bool(q.precision_mean.size <= self.together)


def _fresh(point: _Point, q: Gaussian, count: int) -> _Memory:
    """The state before the first step, whose Hessian has so many sums over rows."""
    size, dtype = q.precision_mean.size, point.variance.dtype
    held, sums = (jnp.zeros_like(point.variance),) * count, (jnp.zeros((size, size), dtype),) * count
    return _Memory(point, held, sums, jnp.asarray(jnp.inf, dtype), jnp.asarray(True))


def _near_mode(problem: Problem, q: Gaussian, halvings: int, key: Key[Array, ""]) -> Gaussian:
    """A Laplace approximation to context and rows, where a step to their mode gains less than a nat per parameter.

    The steps, from the context's mean, are in the mean alone, with one density a row, which is a quadrature of one
    point: they cost a fraction of joint ones. An improper context need not have a mode, and is answered as it is.
    """
    rows = dataclasses.replace(problem, model=eqx.tree_at(lambda m: m.expectation, problem.model, GaussHermite(1)))

    def evaluate(member: Family) -> tuple[Float[Array, ""], _Point]:
        mean = gaussian(member).standard().mean
        return _seen(rows, gaussian(member), lambda x: (x @ mean, jnp.zeros(len(x), x.dtype)))

    def go_on(climb: tuple[Progress, Float[Array, ""]]) -> Bool[Array, ""]:
        return problem.bounded() & (climb[1] > q.precision_mean.size)

    def step(climb: tuple[Progress, Float[Array, ""]]) -> tuple[Progress, Float[Array, ""]]:
        at, value, outcome, memory = climb[0]
        path, memory = _mean_alone(gaussian(at), rows, memory)
        found = line_search(rows, at, value, lambda trial: path(0.5**trial), halvings, key, evaluate, memory.point)
        memory = memory._replace(point=found.at, stale=jnp.asarray(False))
        return Progress(found.q, found.free_energy, outcome, memory), found.free_energy - value

    # where no row is seen yet, a step leads to the mean of the context
    value, point = _unseen(rows, q)
    first = Progress(q, value, running(), _fresh(point, q, 1)), -value
    at, _, _, memory = jax.lax.while_loop(go_on, step, first)[0]
    return with_precision(q, gaussian(at).standard().mean, _precision(q, problem, memory.point.rows.mean_mean))


def _is_independent(q: Gaussian) -> bool:
    return isinstance(q, IndependentGaussian)


def linear_start(problem: Problem, who: str, instead: str) -> Gaussian:
    """The start of a solver for generalised linear models and Gaussians; raises a `SettingsError` for others."""
    if not isinstance(problem.model, LinearInTable):
        raise SettingsError(f"{who} needs a generalised linear model, not {type(problem.model).__name__}: {instead}.")
    return gaussian(problem.start, who, instead, SettingsError)


def _evaluated(problem: Problem, member: Family) -> tuple[Float[Array, ""], _Point]:
    """The free energy of a member, and what rows say there."""
    q = gaussian(member)
    return _seen(problem, q, partial(q.projected, q.standard()))


def _seen(problem: Problem, q: Gaussian, predictors: _Predictors) -> tuple[Float[Array, ""], _Point]:
    """The same where predictors have these means and variances: one pass over the nodes of all rows gives both."""
    model, shard = problem.model, problem.shard

    def of(block: Block) -> tuple[Array, Array, Derivatives]:
        mean, variance = predictors(block.data.x)
        values = model.expectation.at_predictor(model, mean, variance, block.data)
        return values, variance, model.expectation.derivatives(model, mean, variance, block.data)

    values, variance, rows = rows_by_blocks(of, shard, _LENGTH)
    value = problem.weight * (shard.weights @ values) + problem.negative_divergence(q)
    return value, _Point(variance, Derivatives(*(problem.weight * shard.weights * row for row in rows)))


def _unseen(problem: Problem, q: Gaussian) -> tuple[Float[Array, ""], _Point]:
    """The free energy that everything is better than, and rows that say nothing."""
    value, point = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: _evaluated(problem, q)))
    return value - jnp.inf, point


def _summed(
    function: Callable[..., PyTree], problem: Problem, rows: tuple[Array, ...], chosen: Bool[Array, " n"] | None = None
) -> PyTree:
    """The sum over blocks of rows of a function of their inputs and of these numbers of each row."""

    def part(block: Block) -> PyTree:
        x, numbers = block.data
        return function(x, *(jnp.where(block.fresh, number, 0) for number in numbers))

    shard = dataclasses.replace(problem.shard, data=(problem.shard.data.x, rows))
    return over_blocks(part, shard, _LENGTH, chosen)


def _resummed(problem: Problem, memory: _Memory, curvatures: tuple[Array, ...], pairs: _Pairs, fixed: bool) -> _Memory:
    """The sums left diag(curvature) rightᵀ over rows, which for each curvature is one of the pairs (left, right).

    What is fixed does not change with q: of that, only rows whose curvatures have changed are summed again, by their
    differences. A Hessian of the means so kept is between 0.9 and 1.1 times the right one, in every direction, and
    KL is a hundredth after every step. It only determines the direction, so products are in single precision.
    """
    held, sums = where(memory.stale, jax.tree.map(jnp.zeros_like, memory[1:3]), memory[1:3])
    every = jnp.full(held[0].shape, memory.stale)
    changed = _have_changed(held, curvatures, memory.point.variance) if fixed else every
    taken = tuple(jnp.where(changed, new, old) for old, new in zip(held, curvatures, strict=True))

    def part(x: Float[Array, "b d"], *changes: Float[Array, " b"]) -> tuple[Array, ...]:
        sides = zip(pairs(x.astype(jnp.float32)), changes, strict=True)
        return tuple(gram(left, change, right) for (left, right), change in sides)

    more = _summed(part, problem, tuple(jax.tree.map(jnp.subtract, taken, held)), changed)
    return memory._replace(held=taken, sums=jax.tree.map(jnp.add, sums, more))


def _have_changed(old: tuple[Array, ...], new: tuple[Array, ...], variance: Float[Array, " n"]) -> Bool[Array, " n"]:
    """Which rows have other curvatures: in the mean of the predictor, and in its variance in units of that."""
    allowed, sd = _CHANGED * jnp.maximum(jnp.abs(old[0]), jnp.abs(new[0])), root(variance)
    far = [jnp.abs(b - a) * sd**place > allowed for place, (a, b) in enumerate(zip(old, new, strict=True))]
    return jnp.any(jnp.stack(far), axis=0)


def _mean_and_scale(q: Gaussian, problem: Problem, memory: _Memory) -> tuple[_Path, _Memory]:
    """The Newton step in means m and standard deviations s with fixed correlations R, and the sums for its Hessian.

    The variance of a row's predictor is (s∘x)ᵀR(s∘x), with the derivative 2 x∘R(s∘x) in s: without correlations 2 s∘x²,
    where x² stays. Standard deviations decrease exponentially, so that they stay positive.
    """
    mean, sd, correlation = _scales(q)
    context, rows = gaussian(problem.context.natural), memory.point.rows
    if correlation is None:
        pull, times, curvatures = context.precision, 2 * sd, tuple(rows[2:])
    else:
        pull, times = context.matrix() * correlation, jnp.full_like(sd, 2.0)
        curvatures = (*rows[2:], rows.variance)

    def wide(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        """The derivatives in s of the predictors' variances, divided by `times`."""
        return jnp.square(x) if correlation is None else x * ((x * sd.astype(x.dtype)) @ correlation.astype(x.dtype))

    def pairs(x: Float[Array, "b d"]) -> tuple[tuple[Array, Array], ...]:
        both = wide(x)
        return ((x, x), (x, both), (both, both), (x, x))[: len(curvatures)]

    def slopes(x: Float[Array, "b d"], by_mean: Array, by_variance: Array) -> tuple[Array, Array]:
        return by_mean @ x, by_variance @ wide(x)

    by_mean, by_sd = _summed(slopes, problem, rows[:2])
    memory = _resummed(problem, memory, curvatures, pairs, correlation is None)
    mean_mean, mean_sd, sd_sd, *spread = memory.sums
    scaled = jnp.diag(times * by_sd / sd) if correlation is None else 2 * spread[0] * correlation
    mean_mean, mean_sd = mean_mean - context.matrix(), mean_sd * times
    sd_sd = sd_sd * jnp.outer(times, times) + scaled - _matrix(pull) - jnp.diag(1 / sd**2)
    by_mean = by_mean + context.precision_mean - context.times(mean)
    slope = jnp.concatenate([by_mean, times * by_sd - _times(pull, sd) + 1 / sd])
    factor = _positive_factor(-jnp.block([[mean_mean, mean_sd], [mean_sd.T, sd_sd]]))
    step = jsp.linalg.cho_solve((factor, True), slope)
    of_mean, of_sd = step[: mean.size], step[mean.size :] / sd

    def path(size: Float[Array, ""]) -> Family:
        change = size * of_sd
        moved = sd * jnp.where(change > 0, 1 + change, jnp.exp(jnp.minimum(change, 0)))
        variance = jnp.square(moved) if correlation is None else q.cut(jnp.outer(moved, moved) * correlation)
        return q.with_standard(Standard(mean + size * of_mean, variance))

    return path, memory


def _mean_alone(q: Gaussian, problem: Problem, memory: _Memory) -> tuple[_Path, _Memory]:
    """The Newton step in means with a fixed covariance, and the sums for its Hessian."""
    mean, context, rows = q.standard().mean, gaussian(problem.context.natural), memory.point.rows
    slope = _summed(lambda x, by_mean: by_mean @ x, problem, rows[:1])
    memory = _resummed(problem, memory, (rows.mean_mean,), lambda x: ((x, x),), True)
    factor = _positive_factor(context.matrix() - memory.sums[0])
    step = jsp.linalg.cho_solve((factor, True), slope + context.precision_mean - context.times(mean))
    return lambda size: dataclasses.replace(q, precision_mean=q.times(mean + size * step)), memory


def _turn(q: Gaussian, problem: Problem, rows: Derivatives) -> _Path:
    """The natural-gradient step of the precision around a fixed mean."""
    target = _precision(q, problem, 2 * rows.variance)

    def path(size: Float[Array, ""]) -> Family:
        between = jax.tree.map(lambda old, new: old + size * (new - old), q.precision, target)
        return with_precision(q, q.standard().mean, between)

    return path


def _precision(q: Gaussian, problem: Problem, curvatures: Float[Array, " n"]) -> PyTree:
    """The precision of context and rows, of q's kind, given the curvature of each row's w·ell in its predictor."""
    total = _summed(q.gram, problem, (curvatures,))
    precision = jax.tree.map(jnp.subtract, gaussian(problem.context.natural).precision, total)
    return dataclasses.replace(q, precision=precision).symmetrised().precision


def _scales(q: Gaussian) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, "d d"] | None]:
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


def _times(precision: Array, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """The product with a matrix, or with the diagonal of one."""
    return precision * vector if precision.ndim == 1 else precision @ vector


def _matrix(precision: Array) -> Float[Array, "d d"]:
    """The matrix, also where only its diagonal is given."""
    return jnp.diag(precision) if precision.ndim == 1 else precision


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
