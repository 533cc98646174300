"""Newton's method for models whose data act through a linear predictor, with Gaussian families over one vector."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jaxtyping import Array, Float, Int, Key

from partita.errors import InputError
from partita.expectations import Derivatives
from partita.families import Family, FullGaussian, Gaussian, MeanFieldGaussian
from partita.families.gaussian import Standard
from partita.models import GeneralisedLinear
from partita.models.glm import gaussian
from partita.objective import Problem
from partita.solvers.base import Progress, Solver, after, climb

Path = Callable[[Float[Array, ""]], Family]
"""Where a step of a given size, 1 for all of it, leads to; it rises for small sizes."""


class Newton(Solver):
    """Newton steps on mean and scale, halved while they would lower the free energy.

    For a log-concave likelihood the local free energy of a mean-field q is concave in means and standard deviations
    together, and so is its quadrature; where mean and scale are moved in turns instead, wide predictors make it crawl.
    """

    max_steps: int = 50
    tolerance: float = 1e-8
    """Stops after a step that moves q by less than this, in nats of KL."""
    halvings: int = eqx.field(static=True, default=30)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        """Starts from q, or from its mean with the variance of Laplace's approximation there if that is better.

        Under a wide q, such as a prior, quadrature sees little curvature and the first steps would be short.
        """
        if not isinstance(problem.model, GeneralisedLinear):
            raise InputError(
                f"Newton needs a generalised linear model, not {type(problem.model).__name__}: use Gradient or FixedPoint."
            )
        progress = super().init(problem, key)
        q, context = gaussian(progress.q), gaussian(problem.context.natural)
        x = problem.shard.data.x
        predictor, _ = q.project(x)
        rows = derivatives(problem, predictor, jnp.full_like(predictor, 1e-4))
        tight = with_precision(q, optimal_precision(context, x, rows.variance))
        found = climb(problem, q, progress.free_energy, lambda _: tight, 1, key)
        return progress._replace(q=found.q, free_energy=found.free_energy)

    def step(
        self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]
    ) -> Progress:
        q, context = gaussian(progress.q), gaussian(problem.context.natural)
        path = newton_path(q, context, problem)
        found = climb(
            problem, q, progress.free_energy, lambda trial: path(0.5**trial), self.halvings, key
        )
        return Progress(found.q, found.free_energy, after(found, q, self.tolerance))


def derivatives(problem: Problem, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Derivatives:
    """Derivatives of w·ell, row by row, where the rows' predictors have this mean and variance."""
    model, shard = problem.model, problem.shard
    rows = model.expectation.derivatives(model, mean, variance, shard.data)
    return Derivatives(*(problem.weight * shard.weights * row for row in rows))


@functools.singledispatch
def newton_path(q: Gaussian, context: Gaussian, problem: Problem) -> Path:
    """The path of a Newton step from q, one function per family."""
    raise InputError(f"Newton does not know the family {type(q).__name__}: use Gradient or FixedPoint.")


@newton_path.register
def _(q: MeanFieldGaussian, context: MeanFieldGaussian, problem: Problem) -> Path:
    """Newton's step in means m and standard deviations s, the latter moved multiplicatively so as to stay positive.

    The Hessian directs the step and no more, so its sums over rows are formed in single precision.
    """
    x = problem.shard.data.x
    mean, sd = q.mean, q.sd
    rows = derivatives(problem, *q.project(x))

    by_mean = rows.mean @ x + context.precision_mean - context.precision * mean
    by_variance = 2 * _weighted_squares(x, rows.variance) - context.precision
    by_sd = sd * by_variance + 1 / sd

    low = x.astype(jnp.float32)
    squares = jnp.square(low)
    cross = _gram(low, -rows.mean_variance, squares) * (2 * sd)
    within = _gram(squares, -rows.variance_variance, squares) * jnp.outer(2 * sd, 2 * sd)
    hessian = jnp.block(
        [
            [_gram(low, -rows.mean_mean, low) + jnp.diag(context.precision), cross],
            [cross.T, within + jnp.diag(1 / sd**2 - by_variance)],
        ]
    )
    step = ascent(hessian, jnp.concatenate([by_mean, by_sd]))
    of_mean, of_log_sd = step[: mean.size], step[mean.size :] / sd

    def path(size: Float[Array, ""]) -> Family:
        variance = jnp.square(sd * jnp.exp(size * of_log_sd))
        return q.with_standard(Standard(mean + size * of_mean, variance))

    return path


@newton_path.register
def _(q: FullGaussian, context: FullGaussian, problem: Problem) -> Path:
    """The natural-gradient step of the precision, and Newton's of the mean with that precision as its Hessian."""
    x = problem.shard.data.x
    rows = derivatives(problem, *q.project(x))
    precision = optimal_precision(context, x, rows.variance)
    mean = q.standard().mean
    of_mean = ascent(precision, rows.mean @ x + context.precision_mean - context.precision @ mean)

    def path(size: Float[Array, ""]) -> Family:
        moved = q.precision + size * (precision - q.precision)
        return FullGaussian(moved @ (mean + size * of_mean), moved, q.layout)

    return path


def optimal_precision(context: Gaussian, x: Float[Array, "n d"], by_variance: Float[Array, " n"]) -> Array:
    """The precision that would be optimal if the rows' curvatures, twice their derivatives in the variance, stayed."""
    if context.precision.ndim == 1:
        return context.precision - 2 * _weighted_squares(x, by_variance)
    precision = context.precision - 2 * ((x * by_variance[:, None]).T @ x)
    return (precision + precision.T) / 2


def with_precision(q: Gaussian, precision: Array) -> Gaussian:
    """q with another precision around the same mean."""
    mean = q.standard().mean
    shift = precision * mean if precision.ndim == 1 else precision @ mean
    return eqx.tree_at(lambda g: (g.precision_mean, g.precision), q, (shift, precision))


def ascent(hessian: Float[Array, "d d"], gradient: Float[Array, " d"]) -> Float[Array, " d"]:
    """hessian⁻¹ · gradient; where an improper context leaves the Hessian indefinite, with its eigenvalues' magnitudes."""
    factor = jnp.linalg.cholesky(hessian)

    def indefinite() -> Float[Array, " d"]:
        values, vectors = jnp.linalg.eigh(hessian)
        magnitude = jnp.maximum(jnp.abs(values), jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values)))
        return vectors @ ((vectors.T @ gradient) / magnitude)

    return jax.lax.cond(
        jnp.all(jnp.isfinite(factor)), lambda: jsp.linalg.cho_solve((factor, True), gradient), indefinite
    )


def _weighted_squares(x: Float[Array, "n d"], rows: Float[Array, " n"]) -> Float[Array, " d"]:
    """Σ_n rows_n x_n², without a copy of the squares."""
    return jnp.sum(jnp.square(x) * rows[:, None], axis=0)


def _gram(left: Float[Array, "n d"], rows: Float[Array, " n"], right: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """leftᵀ diag(rows) right, in the precision of `left` and returned in that of `rows`."""
    return ((left * rows[:, None].astype(left.dtype)).T @ right).astype(rows.dtype)
