"""A server-side optimiser on the changes of the current round: exact global VI if every client answers."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from partita.families import Family
from partita.families.base import check_start
from partita.families.factor import Factor
from partita.inputs import check_finite_number, check_optimiser
from partita.numerics.compiled import Compiled, Scalar
from partita.numerics.stack import Stack
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, begin, multiplied, refused
from partita.server.refusal import Reason

__all__ = ["IMPROPER", "ServerOptimiser", "optimiser_step"]

IMPROPER = "would make the posterior improper at this learning rate"


class ServerOptimiser(Aggregation):
    """Uses the sum of the changes as the gradient ∇_μ F of an optimiser step in unconstrained coordinates.

    If all clients answer with `NaturalGradient`, this equals the optimiser on pooled rows, for any number of clients.
    The step is divided equally among the factors of the clients that answered, so that q = p · Π t_m holds. Factors
    that are one stay one: where all clients answer there is one set of natural parameters, as global VI needs.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    learning_rate: float = 1e-2
    start: Family | None = None
    """The initial posterior; the prior if None."""

    def __check_init__(self) -> None:
        check_optimiser(self.optimiser)
        check_finite_number("learning rate", self.learning_rate, above=0)
        check_start(self.start)

    @property
    def tuned(self) -> tuple[str, float]:
        return "learning_rate", self.learning_rate

    def init(self, prior: Family, clients: int) -> Iterate:
        posterior, part = begin(prior, self.start, clients)
        memory = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        return Iterate(posterior, Stack.repeated(part, clients), memory)

    def update(self, iterate: Iterate, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Aggregated:
        everybody = {k: iterate.factors[k] for k in deltas}
        held = {id(factor): factor for factor in everybody.values()}
        given = (list(held.values()), list(deltas.values()), iterate.memory, len(deltas) / len(iterate.factors))
        moved, factors, memory, proper, residual = _ascend(self, iterate.posterior, *given)
        if not proper:
            return refused(iterate, deltas, Reason.IMPROPER_STEP, IMPROPER)
        after = dict(zip(held, factors, strict=True))
        if len(held) == 1 and len(deltas) == len(iterate.factors):
            changed = Stack.repeated(factors[0], len(deltas))
        else:
            changed = iterate.factors.replaced({k: after[id(given)] for k, given in everybody.items()})
        return Aggregated(Iterate(moved, changed, memory), 1.0, 0, {}, float(residual))

    def log_evidence(self, prior: Family, iterate: Iterate) -> None:
        """None: the factors are shares of optimiser steps, whose scales are unrelated to the evidence."""


@Compiled
def _ascend(
    server: ServerOptimiser,
    posterior: Family,
    factors: list[Factor],
    deltas: list[Factor],
    memory: PyTree,
    answered: Scalar,
) -> tuple[Family, list[Factor], PyTree, Bool[Array, ""], Float[Array, ""]]:
    """One optimiser step along ∇_μ F, divided among the factors, and whether the posterior is proper.

    The last value is the residual: KL of the undamped fixed-point step, in nats.
    """
    total = multiplied(delta.natural for delta in deltas)
    moved, memory = optimiser_step(server.optimiser(server.learning_rate), posterior, total, memory, answered)
    part = (Factor.of(moved) / Factor.of(posterior)) ** (1 / len(deltas))
    target = posterior * total
    residual = jnp.where(target.is_proper(), target.kl(posterior), jnp.inf)
    return moved, [factor * part for factor in factors], memory, moved.is_proper(), residual


def optimiser_step(
    optimiser: optax.GradientTransformation, posterior: Family, direction: Family, memory: PyTree, part: Scalar
) -> tuple[Family, PyTree]:
    """The posterior after a step along ∇_μ F in unconstrained coordinates, and the optimiser's state.

    An optimiser may ask which `part` of all clients has answered.
    """
    coordinates = posterior.unconstrained()
    mean, pull = jax.vjp(lambda c: posterior.at_unconstrained(c).mean_parameters(), coordinates)
    (gradient,) = pull(jax.tree.unflatten(jax.tree.structure(mean), jax.tree.leaves(direction)))
    steps = optax.with_extra_args_support(optimiser)
    change, memory = steps.update(jax.tree.map(jnp.negative, gradient), memory, coordinates, part=part)
    return posterior.with_unconstrained(jax.tree.map(jnp.add, coordinates, change)), memory
