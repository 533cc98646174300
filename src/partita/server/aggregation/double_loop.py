"""Power EP by a convergent double loop (Heskes and Zoeter 2002; Hasenclever et al. 2017), with clients as sites.

The stationary points of power EP's estimate of the evidence are those of max_θ min_λ L(θ, λ), with

    L(θ, λ) = A(η_0 + Σ_k λ_k) + Σ_k (1/α) [log ∫ p(y_k | ϑ)^α exp⟨θ − α λ_k, T(ϑ)⟩ dϑ − A(θ)],

where η_0 is the prior's natural parameter, λ_k that of client k's factor, and θ, the outer one, that of the posterior
that clients are sent. The moments of client k's tilted density, μ_k, are what it is asked for: with `Cavity` and a
solver that matches moments, it forms p(y_k | ϑ)^α · (θ / t_k^α), and its answer Δ_k says μ_k = μ(θ · Δ_k^α).

*Inner loop.* L is convex in all λ together, whose gradients are μ(q) − μ_k, with q = p · Π t_k. Its minimum is where
every tilted density built on the θ that is held has the moments of q.

*Outer loop.* θ ← q. Let G(θ) = min_λ L. It is a convex function, with the gradient (M/α) μ(q), less (M/α) A(θ); so
G(θ') − G(θ) ≥ (M/α) [KL(q ‖ θ) − KL(q ‖ θ')] for every θ'. The step raises G by (M/α) KL(q ‖ θ) at least, and a shorter
one in its direction by something. Since G − A(η_0) is never above Σ_k max log p(y_k | ϑ), KL(q ‖ θ) goes to 0; where it
is 0, q is a fixed point of power EP, and G − A(η_0) its log evidence. If there are several, it may be any of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family, inner
from partita.families.base import Mean
from partita.families.factor import Factor
from partita.local.objective import log_partition
from partita.local.solvers.power import check_power
from partita.numerics.compiled import Compiled, Scalar, Whole
from partita.numerics.stack import Stack
from partita.numerics.trees import where
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, refused
from partita.server.refusal import Reason, Refusal

__all__ = [
    "HALVINGS",
    "NO_MOMENTS",
    "DoubleLoop",
    "MomentLoop",
    "Search",
    "apart",
    "cavities_proper",
    "evidence",
    "matched",
    "missed",
    "natural",
    "newton",
    "product",
    "rescaled",
    "search",
    "shortened",
    "stacked",
]

_INNER_TOLERANCE = 1 / 16
"""The inner loop stops when its remaining error is below this fraction of the outer step, in nats of KL."""
_SAFETY = 0.9
"""The fraction of the predicted optimal step length that is tried."""
NO_MOMENTS = Refusal(Reason.NO_MOMENTS, "has no moments: it is improper")
HALVINGS = 60
"""The maximum number of halvings to keep densities proper."""


class MomentLoop(Aggregation):
    """What answers with the moments of tilted densities are for, with power α."""

    alpha: float = 1.0

    def __check_init__(self) -> None:
        check_power(self.alpha)

    def check(self, clients: int, answers: int, power: float | None) -> None:
        if power is None:
            raise SettingsError(
                "A double loop needs the moments of tilted densities: use MomentMatching or, if every client has one "
                "row, PowerEP with max_steps=1 and in_turn=False."
            )
        if power != self.alpha:
            raise SettingsError(f"The double loop's α is {self.alpha} and the solver's {power}: use the same α.")

    def log_evidence(self, prior: Family, iterate: Iterate) -> float:
        """log ∫ p(θ) Π t_k(θ) dθ: power EP's estimate at a fixed point, with a second-order error near it.

        With Monte Carlo moments it is as noisy as the factors, and biased low by about 1/samples per client.
        """
        return float(evidence(prior, list(iterate.factors)))


class DoubleLoop(MomentLoop):
    """Keeps θ, the posterior sent to clients, fixed until the factors solve the inner problem; then updates it.

    An inner step is along the natural gradient, by the Hessian that L would have were every tilted density the
    posterior: λ_k moves along v_k − Σ_j v_j / (α + M), v_k = F⁻¹(μ_k − μ(q)), where F is the Fisher information of q.
    The next round gives the gradient at the new point. By convexity the step has lowered L if the slope there is not
    positive; otherwise the step is shortened by interpolating the two slopes, and tried again. No damping has to be
    chosen. Steps in both loops are shortened so that θ / t_k^α stays proper for every client.

    q = p · Π t_m holds only at a fixed point. Every client must answer in every round.
    """

    def init(self, prior: Family, clients: int) -> Iterate:
        still, one = stacked([prior.one()] * clients), jnp.ones((), jax.tree.leaves(prior)[0].dtype)
        return super().init(prior, clients)._replace(memory=Search(prior, still, still, 0 * one, one))

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        clients = range(len(iterate.factors))
        if len(deltas) < len(clients):
            return refused(iterate, deltas, Reason.INCOMPLETE_ROUND, "needs all other clients' answers of this round")
        trial, changes = list(iterate.factors), [deltas[k] for k in clients]
        found = search(self.alpha, iterate.posterior, trial, changes, iterate.memory)
        posterior, factors, memory, residual, proper = found
        if not proper.all():
            return refused(iterate, [k for k in clients if not proper[k]], *NO_MOMENTS)
        after = Iterate(posterior, Stack.of(factors), memory)
        return Aggregated(after, min(float(iterate.memory.step), 1.0), 0, {}, float(residual))

    def check(self, clients: int, answers: int, power: float | None) -> None:
        if answers < clients:
            raise SettingsError(
                "A double loop needs the answers of all clients in a step: use the synchronous schedule."
            )
        super().check(clients, answers, power)

    def remembered(self, memory: "Search", change: Family) -> "Search":
        return memory._replace(prior=memory.prior * change)


class Search(NamedTuple):
    """The line-search state of `DoubleLoop`'s inner loop; the first axis of its arrays is the client."""

    prior: Family
    base: Family
    """The factors' natural parameters at the last step taken."""
    direction: Family
    slope: Float[Array, ""]
    """The slope of L along the direction at the base; 0 where there is no direction."""
    step: Float[Array, ""]
    """The step length of the factors now held by clients."""


def matched(alpha: Scalar, theta: Family, deltas: list[Factor]) -> Family:
    """The members with the moments of the clients' tilted densities, from their answers, along a first axis."""
    return stacked([theta * delta.natural**alpha for delta in deltas])


@Compiled
def search(
    alpha: Scalar, theta: Family, trial: list[Factor], deltas: list[Factor], memory: Search
) -> tuple[Family, list[Factor], Search, Float[Array, ""], Bool[Array, " m"]]:
    """θ, the next trial factors, the memory, the residual in nats, and which answers are proper.

    If any answer is improper, the other results are invalid.
    """
    prior, base, direction, slope, step = memory
    tried, clients = stacked([factor.natural for factor in trial]), len(trial)
    q = product(prior, tried)
    tilted = matched(alpha, theta, deltas)
    gradients = missed(q, tilted)
    steepest = jax.vmap(lambda gradient: natural(q, gradient))(gradients)
    left, outer = jnp.max(jax.vmap(inner)(steepest, gradients)) / 2, q.distance(theta)

    ahead = inner(direction, gradients)
    lowered, sloped = ahead <= 0, slope < 0
    step = step * jnp.where(sloped, jnp.clip(_SAFETY / (1 - ahead / jnp.where(sloped, slope, 1)), 0.1, 2), 1)
    onward = newton(alpha, steepest, clients)
    base, direction = where(lowered, (tried, onward), (base, direction))
    slope = jnp.where(lowered, inner(onward, gradients), slope)

    solved = lowered & (left <= _INNER_TOLERANCE * outer)

    def outward(length: Float[Array, ""]) -> Family:
        return theta * (q / theta) ** length

    far = shortened(jnp.ones_like(step), lambda length: cavities_proper(alpha, outward(length), base))
    held = where(solved, outward(far), theta)
    # predict how the inner solution moves with θ, as if every tilted density were the posterior
    following = jax.tree.map(lambda a, b: jnp.broadcast_to(a / (alpha + clients), b.shape), held / theta, base)
    towards = where(solved, following, direction)

    def possible(length: Float[Array, ""]) -> Bool[Array, ""]:
        factors = base * towards**length
        return cavities_proper(alpha, held, factors) & product(prior, factors).is_proper()

    length = shortened(jnp.where(solved, 1, step), possible)
    direction, slope, step = where(solved, (direction.one(), 0 * slope, step), (direction, slope, length))
    told = [factor * delta for factor, delta in zip(trial, deltas, strict=True)]
    after = [rescaled(factor, at, q) for factor, at in zip(told, apart(base * towards**length, clients), strict=True)]
    proper = jax.vmap(lambda member: member.is_proper())(tilted)
    return held, after, Search(prior, base, direction, slope, step), jnp.maximum(left, outer), proper


evidence = Compiled(log_partition)


def rescaled(factor: Factor, natural: Family, q: Family) -> Factor:
    """A factor with new natural parameters and the same E_q[log t].

    To first order p · Π t_k keeps its mass, so that near a fixed point, where it is stationary, the evidence is kept.
    """
    return Factor(natural, factor.expected_log(q) - q.cross(natural))


def missed(q: Family, tilted: Family) -> Mean:
    """μ(q) − μ_k for every client: the gradients of L in their λ_k."""
    theirs = jax.vmap(lambda member: member.mean_parameters())(tilted)
    return jax.tree.map(jnp.subtract, q.mean_parameters(), theirs)


def natural(q: Family, change: Mean) -> Family:
    """F⁻¹ times a change of q's mean parameters: the corresponding change of its natural parameters."""
    return jax.jvp(q.with_mean_parameters, (q.mean_parameters(),), (change,))[1]


def newton(alpha: Scalar, steepest: Family, clients: Whole) -> Family:
    """The Newton steps of the λ_k if every tilted density were q, where the Hessian is F ⊗ (11ᵀ + αI)."""
    return jax.tree.map(lambda v: (jnp.sum(v, axis=0) / (alpha + clients) - v) / alpha, steepest)


def product(prior: Family, factors: Family) -> Family:
    """p · Π t_k."""
    return prior * jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), factors)


def cavities_proper(alpha: Scalar, theta: Family, factors: Family) -> Bool[Array, ""]:
    """Whether θ / t_k^α is proper for every client, so that its tilted density has moments."""
    return jnp.all(jax.vmap(lambda factor: (theta / factor**alpha).is_proper())(factors))


def shortened(length: Float[Array, ""], possible: Callable[[Float[Array, ""]], Bool[Array, ""]]) -> Float[Array, ""]:
    """The step length, halved until it is feasible."""
    shortest = length * 0.5**HALVINGS
    return jax.lax.while_loop(lambda a: ~possible(a) & (a > shortest), lambda a: a / 2, length)


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Several trees as one, along a first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def apart(tree: PyTree, number: int) -> list[PyTree]:
    """The trees that were stacked."""
    return [jax.tree.map(lambda leaf, k=k: leaf[k], tree) for k in range(number)]
