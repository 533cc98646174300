"""A server-side optimiser on all clients' last gradients: SAG, SAGA and in between, with factors as gradient table."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from partita.families import Family
from partita.families.base import check_start
from partita.families.factor import Factor
from partita.inputs import check_finite_number, check_number, check_optimiser
from partita.numerics.compiled import Compiled, Scalar, Whole
from partita.numerics.stack import Stack
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, begin, multiplied, refused
from partita.server.aggregation.server_optimiser import IMPROPER, optimiser_step
from partita.server.refusal import Reason

__all__ = ["Incremental", "agile_adam", "track"]


_MOMENTUM = 0.9
_PASSES = 20.0
"""Momentum is the passes made over this, until it is 0.9."""
_SIZES = 0.99
"""The memory of gradients' sizes."""


class _Moments(NamedTuple):
    """The state of `agile_adam`."""

    steps: Int[Array, ""]
    passes: Float[Array, ""]
    """How many passes over all clients the steps have been."""
    first: PyTree
    second: PyTree


def agile_adam(learning_rate: Scalar) -> optax.GradientTransformationExtraArgs:
    """Adam for many clients, one or some of them a step: it forgets what was true of posteriors long left.

    Sizes of gradients, which shrink quickly, have b2 = 0.99 instead of 0.999. Momentum b1 is a delay of b1/(1 − b1)
    steps. In the first passes clients' last gradients are out of date already, and where clients are unlike, nine steps
    more let q run away from those that it has not visited for a while: so b1 grows from 0 by 1/20 a pass, up to Adam's
    0.9, which is needed near the fixed point, where steps of a size that does not fall would swing. A step counts as
    `part` of a pass, the part of all clients whose answers it has. Since b1 begins at 0, it needs no correction.
    """

    def init(parameters: PyTree) -> _Moments:
        first, second = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
        return _Moments(jnp.zeros((), int), jnp.zeros(()), first, second)

    def update(
        gradient: PyTree, memory: PyTree, parameters: PyTree | None = None, *, part: Scalar = 1.0, **_: Any
    ) -> tuple[PyTree, PyTree]:
        momentum = jnp.minimum(memory.passes / _PASSES, _MOMENTUM)
        seen = 1 - _SIZES ** (memory.steps + 1)
        first = jax.tree.map(lambda m, g: (momentum * m + (1 - momentum) * g).astype(g.dtype), memory.first, gradient)
        second = jax.tree.map(lambda v, g: _SIZES * v + (1 - _SIZES) * g**2, memory.second, gradient)
        change = jax.tree.map(
            lambda m, v: (-learning_rate * m / (jnp.sqrt(v / seen) + 1e-8)).astype(m.dtype), first, second
        )
        return change, _Moments(memory.steps + 1, memory.passes + part, first, second)

    return optax.GradientTransformationExtraArgs(init, update)


class Incremental(Aggregation):
    """A server-side optimiser of the free energy that uses every client's last gradient, most of them stale.

    A client's factor is its last natural gradient ∇_μ ell_k, so that (prior · factors) / posterior estimates ∇_μ F. The
    newest changes have the weight max(1, `gain` · M / number of answers). This is an incremental gradient method with
    the factors as gradient table: `gain` = 1/M is SAG (Schmidt et al. 2017), 1 is SAGA (Defazio et al. 2014), which is
    unbiased. If every client answers, it is an optimiser on pooled rows. During the first pass missing factors are
    replaced by the geometric mean of the others (`sec:stochastic-approx`).

    Unlike in stochastic global VI, the variance of a client's gradient and the bias from heterogeneous clients vanish
    as the factors converge. q = p · Π t_m holds only at a fixed point.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=agile_adam)
    learning_rate: float = 1e-3
    gain: float = 0.5
    start: Family | None = None
    """The initial posterior; the prior if None."""

    def __check_init__(self) -> None:
        check_optimiser(self.optimiser)
        check_finite_number("learning rate", self.learning_rate, above=0)
        check_number("gain", self.gain, lambda gain: 0 <= gain <= 1, "from 0 to 1")
        check_start(self.start)

    @property
    def tuned(self) -> tuple[str, float]:
        return "learning_rate", self.learning_rate

    def init(self, prior: Family, clients: int) -> Iterate:
        posterior, _ = begin(prior, self.start, clients)
        optimiser = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        memory = _Tracked(optimiser, prior, prior.one(), np.zeros(clients, bool))
        return Iterate(posterior, Stack.repeated(Factor.one(prior), clients), memory)

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        clients, heard = len(iterate.factors), iterate.memory.heard.copy()
        heard[list(deltas)] = True
        weight = max(1.0, self.gain * clients / len(deltas))
        factors, changes = [iterate.factors[k] for k in deltas], list(deltas.values())
        moved, factors, optimiser, evidence, proper, residual = track(
            self, iterate.posterior, factors, changes, iterate.memory, weight, clients / int(heard.sum()), clients
        )
        if not proper:
            return refused(iterate, deltas, Reason.IMPROPER_STEP, IMPROPER)
        memory = _Tracked(optimiser, iterate.memory.prior, evidence, heard)
        after = Iterate(moved, iterate.factors.replaced(dict(zip(deltas, factors, strict=True))), memory)
        return Aggregated(after, 1.0, 0, {}, float(residual) if heard.all() else np.inf)

    def log_evidence(self, prior: Family, iterate: Iterate) -> None:
        """None: clients maximise a bound, and q = p · Π t_m does not hold before convergence."""

    def remembered(self, memory: "_Tracked", change: Family) -> "_Tracked":
        return memory._replace(prior=memory.prior * change)


class _Tracked(NamedTuple):
    """The memory of `Incremental`: the optimiser's state, the prior, who has answered, and the product of all factors.

    The product is cached, so that a step does not have to read all factors.
    """

    optimiser: PyTree
    prior: Family
    evidence: Family
    heard: Bool[np.ndarray, " m"]


@Compiled
def track(
    server: Incremental,
    posterior: Family,
    factors: list[Factor],
    deltas: list[Factor],
    memory: _Tracked,
    weight: Scalar,
    unheard: Scalar,
    clients: Whole,
) -> tuple[Family, list[Factor], PyTree, Family, Bool[Array, ""], Float[Array, ""]]:
    """The posterior after an optimiser step, the factors, the optimiser's state, the factors' product, whether it is
    proper, and the residual: KL from prior times factors to the posterior, in nats.
    """
    total = multiplied(delta.natural for delta in deltas)
    evidence = memory.evidence * total
    product = memory.prior * evidence**unheard
    direction = product * total ** (weight - 1) / posterior
    steps, part = server.optimiser(server.learning_rate), len(deltas) / clients
    moved, optimiser = optimiser_step(steps, posterior, direction, memory.optimiser, part)
    residual = jnp.where(product.is_proper(), product.kl(posterior), jnp.inf)
    changed = [factor * delta for factor, delta in zip(factors, deltas, strict=True)]
    return moved, changed, optimiser, evidence, moved.is_proper(), residual
