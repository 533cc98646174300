"""Power EP for generalised linear models (`alg:pep`): one site per row, matched by one-dimensional integrals."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from partita.data.shard import Shard
from partita.errors import SettingsError
from partita.expectations.blocks import BLOCK, Block, over_blocks
from partita.expectations.capabilities import LinearPredictor, offered
from partita.families import Gaussian
from partita.families.factor import Factor
from partita.families.gaussian import Standard, gaussian
from partita.inputs import check_flag, check_fraction, check_whole
from partita.local.objective import Problem
from partita.local.solvers.base import Outcome, Progress, Solution, Solver, running, single_step_outcome, within
from partita.local.solvers.moment_matching import MomentMatching
from partita.local.solvers.newton import gram, linear_start
from partita.local.solvers.power import check_power
from partita.models import Model
from partita.numerics.trees import all_finite, where

__all__ = ["MIN_DAMPING", "Coordinates", "Memory", "PowerEP", "Search", "Sites", "Tilted", "ends", "mode", "tilted"]

_Number: TypeAlias = Float[Array, ""]
_Scalar: TypeAlias = Callable[[Array], Array]
"""A function of a predictor, elementwise."""
_LOG_DENSITY_DROP = 32.0
"""The integration limits are where the log tilted density has fallen by this much from its mode."""
_MAX_GROWTH = 1.5
"""ρ is halved if a pass moves more than this multiple of the smallest pass since the last halving."""
_DAMPING_RECOVERY = 1.1
"""The factor by which ρ grows after other passes."""
MIN_DAMPING = 1 / 64
"""The smallest ρ; below it, the size of a pass does not measure the distance from a fixed point."""
_DROP_SLACK = 8.0
"""The tolerance of `_LOG_DENSITY_DROP`: the log density may have fallen by this much more."""
_NEWTON_DECREMENT = 1e-3
"""The mode search stops when the Newton decrement is below this."""
_MAX_SEARCH_STEPS = 60
"""The maximum number of steps in the searches for the mode and the limits."""
_MIN_EFFECTIVE_POINTS = 5
"""The smallest effective number of quadrature points; with fewer, the tilted density was not resolved."""


class Sites(eqx.Module):
    """An unnormalised Gaussian factor s_n for every row: exp(shift·u − precision·u²/2 + log_scale).

    With a full covariance u is the row's predictor f, so a site has two numbers and a scale. With a mean-field family
    u is θ, and its coordinates are matched separately. Of all rows, the first axis is the row; one row has none.
    """

    shift: Float[Array, "*site"]
    precision: Float[Array, "*site"]
    log_scale: Float[Array, "..."]

    def product(self, like: Gaussian, shard: Shard) -> Factor:
        """Π_n s_n^(w_n), over rows of these weights."""

        def sums(block: Block) -> tuple[Array, Array, Array]:
            (x, site), weights = block.data, block.weights
            if like.precision.ndim == 1:
                return weights @ site.shift, weights @ site.precision, weights @ site.log_scale
            return (weights * site.shift) @ x, gram(x, weights * site.precision, x), weights @ site.log_scale

        shift, precision, log_scale = over_blocks(sums, dataclasses.replace(shard, data=(shard.data.x, self)))
        return Factor(dataclasses.replace(like, precision_mean=shift, precision=precision), log_scale)


class Coordinates(NamedTuple):
    """Means and variances of the coordinates u that one row's site is in, and f's direction in them."""

    mean: _Number | Float[Array, " d"]
    variance: _Number | Float[Array, " d"]
    direction: _Number | Float[Array, " d"]

    @classmethod
    def of(cls, q: Standard, x: Float[Array, " d"]) -> "Coordinates":
        """Those of a row: θ's own where q is mean-field, else f alone."""
        mean, variance = q
        if variance.ndim == 1:
            return cls(mean, variance, x)
        return cls(x @ mean, x @ (variance @ x), jnp.ones((), mean.dtype))

    def lift(self, q: Standard, x: Float[Array, " d"]) -> Standard:
        """q with this marginal for the row's coordinates and the conditional of θ unchanged: a rank-one update."""
        mean, variance = q
        if variance.ndim == 1:
            return Standard(self.mean, self.variance)
        before = variance @ x
        spread = jnp.where(x @ before > 0, x @ before, 1)
        slope = before / spread
        moved = mean + slope * (self.mean - x @ mean)
        return Standard(moved, variance + jnp.outer(slope, slope) * (self.variance - spread))

    def without(self, site: Sites, alpha: _Number) -> "Coordinates":
        """The cavity q / s^α; its variances are not positive where it is improper."""
        left = 1 - alpha * site.precision * self.variance
        mean = (self.mean - alpha * site.shift * self.variance) / left
        return Coordinates(mean, self.variance / left, self.direction)

    def predictor(self) -> tuple[_Number, _Number]:
        """Mean and variance of f."""
        return jnp.sum(self.direction * self.mean), jnp.sum(jnp.square(self.direction) * self.variance)

    def matched(self, tilted: "Tilted", alpha: _Number) -> tuple[Sites, Bool[Array, ""]]:
        """The site that gives cavity · s^α the tilted density's moments and mass, and whether there is one.

        Everything is divided by α beforehand: α → 0 is the fixed point's ∇_μ ell (`prop:pep-fp`), to rounding.
        """
        bend = jnp.square(self.direction) * tilted.curvature
        left = 1 - alpha * self.variance * bend
        precision = bend / left
        shift = (self.direction * tilted.slope + bend * self.mean) / left
        growth = alpha * self.variance * precision
        exponent = shift * self.mean - precision * self.mean**2 / 2 + alpha * self.variance * shift**2 / 2
        mass = jnp.sum(exponent / (1 + growth) - jnp.log1p(growth) / (2 * alpha))
        site = Sites(shift, precision, tilted.log_mass - mass)
        return site, jnp.all(left > 0) & jnp.all(self.variance >= 0) & all_finite(site)


class Tilted(NamedTuple):
    """log Z of a row, with Z = E[p(y | f)^α], and its derivatives in the cavity's mean, all divided by α."""

    log_mass: _Number
    """log Z."""
    slope: _Number
    """∂ log Z."""
    curvature: _Number
    """−∂² log Z."""


class Memory(NamedTuple):
    """Power EP's state between passes."""

    sites: Sites
    rest: Factor
    """The remainder of the client's previous factor, whose sites are unknown; it counts as equal sites for all rows.

    It decays with the damping, and disappears after one undamped pass.
    """
    damping: _Number
    last: _Number
    """KL of the last pass if it were undamped, in nats."""
    moved: _Number
    """The smallest such KL since ρ was last halved."""
    skipped: Int[Array, ""]
    """The number of rows skipped in the last pass because no proper site was found."""


class PowerEP(Solver):
    """Iterates over the rows, updating sites s ← s^(1−ρ) · ŝ^ρ, until q converges.

    By default sites are updated sequentially, each with the current q. In parallel they overshoot for rows whose
    predictors are much wider than their likelihoods (on Adult by −1.8 times their error). Sequential updates need no
    damping for α = 1; a small α, which leaves most of a site in its cavity, may need it: ρ is halved when passes grow,
    and recovers slowly.

    α = 1 is expectation propagation, and α → 0 the fixed point of the free energy (`FixedPoint`). A client's answer
    depends on its context and not on its previous sites, so sites need not be stored between visits. The reported free
    energy is the log mass of context · Π s_n, power EP's estimate of the log evidence given the context.
    """

    alpha: float = 1.0
    damping: float = 1.0
    max_steps: int = 100
    tolerance: float | None = 1e-10
    """Stops after a pass that would move q by less than this undamped, in nats of KL."""
    in_turn: bool = eqx.field(static=True, default=True)
    """Whether sites are updated sequentially (starting from the context if it is proper) or in parallel."""
    points: int = eqx.field(static=True, default=96)
    estimates_evidence = True

    def __check_init__(self) -> None:
        check_power(self.alpha)
        check_fraction("damping of power EP", self.damping)
        check_whole("number of passes, max_steps,", self.max_steps)
        check_flag("setting in_turn", self.in_turn)
        check_whole("number of points", self.points)

    @property
    def for_densities(self) -> Solver:
        return MomentMatching(alpha=self.alpha)

    @property
    def matched_power(self) -> float | None:
        """That of a client of one row."""
        return None if self.in_turn or int(self.max_steps) > 1 else float(self.alpha)

    def init(self, problem: Problem, key: Key[Array, ""]) -> Progress:
        q, rows = linear_start(problem, "Power EP", "use MomentMatching or AlphaDivergence"), len(problem.shard.weights)
        if q.precision.ndim > 2:
            raise SettingsError("Power EP has no sites in blocks of parameters: use a FullGaussian as the prior.")
        if self.in_turn:
            q = where(problem.bounded(), problem.context.natural, q)
        mean = q.precision_mean
        shape = (rows, *mean.shape) if q.precision.ndim == 1 else (rows,)
        sites = Sites(jnp.zeros(shape, mean.dtype), jnp.zeros(shape, mean.dtype), jnp.zeros(rows, mean.dtype))
        damping = jnp.asarray(self.damping, mean.dtype)
        far = jnp.full_like(damping, jnp.inf)
        memory = Memory(sites, Factor.of(q) / problem.context, damping, far, far, jnp.asarray(0))
        return Progress(q, jnp.zeros((), mean.dtype), running(), memory)

    def step(self, problem: Problem, progress: Progress, index: Int[Array, ""], key: Key[Array, ""]) -> Progress:
        q, memory = gaussian(progress.q), progress.memory
        weighted = dataclasses.replace(problem.shard, weights=problem.weight * problem.shard.weights)
        damping = memory.damping
        cavity = self.without_share(q, memory, weighted)
        sites, proper = self.pass_over(problem.model, weighted, cavity, memory.sites, damping)
        rest = memory.rest ** (1 - damping)
        whole = problem.context * rest * sites.product(q, weighted)
        new = whole.natural
        moved = jnp.where(new.is_proper(), new.distance(q) / damping**2, jnp.inf)
        value = new.log_normaliser() + whole.log_scale
        skipped = jnp.sum(~proper & (problem.shard.weights > 0))
        outcome = jnp.where(within(moved, self.tolerance), Outcome.CONVERGED, Outcome.RUNNING)
        taken = Progress(new, value, outcome, Memory(sites, rest, damping, moved, moved, skipped))
        if not self.in_turn:
            return taken
        possible = jnp.isfinite(moved)
        found = where(possible, taken, progress)
        calm = possible & (moved <= _MAX_GROWTH * memory.moved)
        up, down = jnp.minimum(_DAMPING_RECOVERY * damping, self.damping), jnp.maximum(damping / 2, MIN_DAMPING)
        after = jnp.where(calm, up, down)
        seen = jnp.where(calm, jnp.minimum(moved, memory.moved), jnp.inf)
        return found._replace(memory=found.memory._replace(damping=after, moved=seen))

    def solution(self, progress: Progress, steps: Int[Array, ""], outcome: Int[Array, ""]) -> Solution:
        memory = progress.memory
        if not self.in_turn:
            outcome = single_step_outcome(self.max_steps, outcome)
        left = jnp.where(jnp.asarray(self.in_turn) & (outcome != Outcome.CONVERGED), memory.last, 0)
        return dataclasses.replace(super().solution(progress, steps, outcome), skipped=memory.skipped, left=left)

    def without_share(self, q: Gaussian, memory: Memory, shard: Shard) -> Gaussian:
        """q with a fraction α of one row's equal share of the previous factor removed."""
        cavity = q / gaussian(memory.rest.natural) ** (self.alpha / jnp.sum(shard.weights))
        return where(cavity.is_proper(), cavity, q)

    def pass_over(
        self, model: Model, shard: Shard, q: Gaussian, sites: Sites, damping: float | _Number = 1.0
    ) -> tuple[Sites, Bool[Array, " n"]]:
        """Every row's new site, or its old one if the new one is improper, and whether it is proper.

        A row of weight w counts as w copies, or for w < 1 as the power w of its likelihood.
        """
        alphas = self.alpha * jnp.where(shard.weights > 0, jnp.minimum(shard.weights, 1), 1)

        def match(q: Standard, datum: PyTree, site: Sites, alpha: _Number) -> tuple[Sites, Bool[Array, ""]]:
            cavity = Coordinates.of(q, datum.x).without(site, alpha)
            new, proper = cavity.matched(tilted(model, datum, *cavity.predictor(), alpha, self.points), alpha)
            return jax.tree.map(lambda a, b: jnp.where(proper, b + damping * (a - b), b), new, site), proper

        def follow(q: Standard, row: tuple[PyTree, Sites, Array, Array]) -> tuple[Standard, tuple[Sites, Array]]:
            datum, site, alpha, weight = row
            new, proper = match(q, datum, site, alpha)
            moved = Coordinates.of(q, datum.x).without(jax.tree.map(jnp.subtract, site, new), weight)
            proper &= jnp.all(moved.variance >= 0)
            q, site = where(proper, (moved.lift(q, datum.x), new), (q, site))
            return q, (site, proper)

        rows = (shard.data, sites, alphas)
        if self.in_turn:
            return jax.lax.scan(follow, q.standard(), (*rows, shard.weights))[1]
        if len(alphas) <= BLOCK:
            return jax.vmap(lambda *row: match(q.standard(), *row))(*rows)
        return jax.lax.map(lambda row: match(q.standard(), *row), rows, batch_size=BLOCK)


def tilted(model: Model, datum: PyTree, mean: _Number, variance: _Number, alpha: _Number, points: int) -> Tilted:
    """The tilted density N(f; mean, variance) · p(y | f)^α of a row, integrated by the trapezoidal rule.

    For a smooth integrand that vanishes at both limits the error is exponentially small. Unlike Gauss–Hermite nodes on
    the cavity, it resolves likelihoods that are much narrower than the cavity. The nodes are sinh of equally spaced
    points, so that they are dense where likelihoods vary, however wide the cavity. Likelihoods are log-concave, so
    there is one mode. If the density does not vanish at both limits or is not resolved, the result is NaN.
    """
    linear = offered(model, LinearPredictor, "linear predictor", "use MomentMatching")
    data = jax.tree.map(lambda leaf: leaf[None], datum)
    positive = jnp.where(variance > 0, variance, 1)

    def log_density(f: Array) -> Array:
        return linear.log_density_at(f[None], data)[0]

    def slope(f: Array) -> Array:
        return jax.jvp(log_density, (f,), (jnp.ones_like(f),))[1]

    def height(f: Array) -> Array:
        return alpha * log_density(f) - jnp.square(f - mean) / (2 * positive)

    low, high = ends(height, mode(slope, mean, alpha * positive), jnp.sqrt(2 * _LOG_DENSITY_DROP * positive))
    even = jnp.linspace(jnp.arcsinh(low), jnp.arcsinh(high), points)
    f = jnp.sinh(even)
    value = log_density(f)
    first, second = jax.jvp(slope, (f,), (jnp.ones_like(f),))
    heights = alpha * value - jnp.square(f - mean) / (2 * positive) + jnp.log1p(jnp.square(f)) / 2
    masses = jax.nn.softmax(heights)
    log_mass = jax.nn.logsumexp(heights) + jnp.log((even[1] - even[0]) / jnp.sqrt(2 * jnp.pi * positive))
    by_mean = masses @ first
    bent = -(masses @ second) - alpha * (masses @ jnp.square(first - by_mean))
    # in a wide cavity the likelihood's derivatives are not resolved or cancel, so use moments; if the variance hardly
    # shrinks, as for α → 0, the moments cancel, so use derivatives
    centre = masses @ f
    shrunk = 1 - masses @ jnp.square(f - centre) / positive
    wide = (alpha * positive > 1) | (shrunk > 0.5)
    by_mean = jnp.where(wide, (centre - mean) / (alpha * positive), by_mean)
    found = Tilted(log_mass / alpha, by_mean, jnp.where(wide, shrunk / (alpha * positive), bent))
    vanishes = jnp.max(heights) - jnp.maximum(heights[0], heights[-1]) >= _LOG_DENSITY_DROP / 2
    seen = vanishes & (jnp.sum(jnp.square(masses)) <= 1 / _MIN_EFFECTIVE_POINTS)
    found = jax.tree.map(lambda leaf: jnp.where(seen, leaf, jnp.nan), found)
    # a row of zeros has a predictor without variance
    known, tangent = jax.jvp(slope, (mean,), (jnp.ones_like(mean),))
    return where(variance == 0, Tilted(log_density(mean), known, -tangent), found)


Search = tuple[Array, Array, Array, Array, Array, Array]
"""The state of the mode search: position, bracket (low, high), last step, last gain, and iteration."""


def mode(slope: _Scalar, mean: _Number, reach: _Number) -> _Number:
    """Solves f = mean + reach · slope(f), where `slope` is the derivative of a concave function.

    Newton steps while they halve and stay in the bracket; otherwise bisection in arcsinh, which handles large values
    (as for a Poisson likelihood).
    """
    end = mean + reach * slope(mean)
    low, high = jnp.minimum(mean, end), jnp.maximum(mean, end)

    def go_on(carry: Search) -> Bool[Array, ""]:
        *_, gain, index = carry
        return (gain > _NEWTON_DECREMENT) & (index < _MAX_SEARCH_STEPS)

    def narrow(carry: Search) -> Search:
        f, low, high, last, _, index = carry
        first, second = jax.jvp(slope, (f,), (jnp.ones_like(f),))
        ahead = mean + reach * first - f
        low, high = jnp.where(ahead > 0, f, low), jnp.where(ahead > 0, high, f)
        bend = 1 + reach * jnp.maximum(-second, 0)
        step = f + ahead / bend
        newton = (step >= low) & (step <= high) & (jnp.abs(step - f) <= last / 2)
        halved = jnp.sinh((jnp.arcsinh(low) + jnp.arcsinh(high)) / 2)
        new = jnp.where(newton, step, halved)
        gain = jnp.where(newton, jnp.square(ahead) / (bend * reach), jnp.inf)
        return new, low, high, jnp.abs(new - f), gain, index + 1

    start = (mean, low, high, jnp.full_like(mean, jnp.inf), jnp.full_like(mean, jnp.inf), jnp.asarray(0))
    return jax.lax.while_loop(go_on, narrow, start)[0]


def ends(height: _Scalar, mode: _Number, reach: _Number) -> Float[Array, "2"]:
    """The points on either side of the mode where a concave function has fallen by about `_LOG_DENSITY_DROP`.

    Newton steps from outside, combined with bisection towards the mode.
    """
    sides = jnp.array([-1.0, 1.0], mode.dtype)
    floor = height(mode) - _LOG_DENSITY_DROP

    def go_on(carry: tuple[Array, Array, Array, Array]) -> Bool[Array, ""]:
        _, _, above, index = carry
        return jnp.any(above < floor - _DROP_SLACK) & (index < _MAX_SEARCH_STEPS)

    def nearer(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        inside, away, _, index = carry
        above, falls = jax.jvp(lambda t: height(mode + sides * t), (away,), (jnp.ones_like(away),))
        step = away - (above - floor) / falls
        away = jnp.where((step > inside) & (step < away), step, away)
        middle = (inside + away) / 2
        beyond = height(mode + sides * middle) < floor
        inside, away = jnp.where(beyond, inside, middle), jnp.where(beyond, middle, away)
        return inside, away, height(mode + sides * away), index + 1

    farthest = jnp.full(2, reach, mode.dtype)
    start = (jnp.zeros_like(farthest), farthest, height(mode + sides * farthest), jnp.asarray(0))
    return mode + sides * jax.lax.while_loop(go_on, nearer, start)[1]
