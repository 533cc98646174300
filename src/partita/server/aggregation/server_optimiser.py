"""A server-side optimiser on the changes of this round: exact global VI where everybody answers."""

import functools
import operator
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.compiled import Compiled
from partita.server.aggregation.base import Aggregation, FreeEnergy, Holdings, Taken, begin
from partita.server.refusal import Reason, Refusal


class ServerOptimiser(Aggregation):
    """The sum of the changes as a gradient ∇_μ F, pulled back to unconstrained coordinates for an optimiser's step.

    With `NaturalGradient` clients that all answer, this is an optimiser on pooled rows, for any number of clients. Each
    of those who answered bears an equal part of the step in its factor, so that q = p · Π t_m holds here as well.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    learning_rate: float = 1e-2
    start: Family | None = None
    """The posterior to begin with; the prior when None."""

    def __check_init__(self) -> None:
        if not self.learning_rate > 0:
            raise SettingsError(f"The learning rate is a number above 0, not {self.learning_rate}.")

    @property
    def keeps_product(self) -> bool:
        return False

    def init(self, prior: Family, clients: int) -> Holdings:
        posterior, part = begin(prior, self.start, clients)
        memory = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        return Holdings(posterior, dict.fromkeys(range(clients), part), memory)

    def update(self, holdings: Holdings, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        changes, factors = list(deltas.values()), [holdings.factors[k] for k in deltas]
        moved, factors, memory, proper, residual = ascend(self, holdings.posterior, factors, changes, holdings.memory)
        if not proper:
            refusal = Refusal(Reason.IMPROPER_STEP, "would make the posterior improper at this learning rate")
            return Taken(holdings, 0.0, 0, dict.fromkeys(deltas, refusal))
        changed = {**holdings.factors, **dict(zip(deltas, factors, strict=True))}
        return Taken(Holdings(moved, changed, memory), 1.0, 0, {}, float(residual))

    def log_evidence(self, prior: Family, holdings: Holdings) -> None:
        """None: factors bear parts of steps between densities, whose scales say nothing of the rows."""


def _ascend(
    server: ServerOptimiser, posterior: Family, factors: list[Factor], deltas: list[Factor], memory: PyTree
) -> tuple[Family, list[Factor], PyTree, Bool[Array, ""], Float[Array, ""]]:
    """One step of the server's optimiser along ∇_μ F, shared out among the factors, and whether it can be taken.

    Last comes how far the undamped fixed-point step would have led, in nats of KL: 0 at an optimum, at any rate.
    """
    total = functools.reduce(operator.mul, (delta.natural for delta in deltas))
    moved, memory = optimiser_step(server.optimiser(server.learning_rate), posterior, total, memory)
    part = (Factor.of(moved) / Factor.of(posterior)) ** (1 / len(deltas))
    target = posterior * total
    residual = jnp.where(target.is_proper(), target.kl(posterior), jnp.inf)
    return moved, [factor * part for factor in factors], memory, moved.is_proper(), residual


ascend = Compiled(_ascend)


def optimiser_step(
    optimiser: optax.GradientTransformation, posterior: Family, direction: Family, memory: PyTree
) -> tuple[Family, PyTree]:
    """The posterior after a step along ∇_μ F, pulled back to unconstrained coordinates, and the optimiser's memory."""
    coordinates = posterior.unconstrained()
    mean, pull = jax.vjp(lambda c: posterior.at_unconstrained(c).mean_parameters(), coordinates)
    (gradient,) = pull(jax.tree.unflatten(jax.tree.structure(mean), jax.tree.leaves(direction)))
    change, memory = optimiser.update(jax.tree.map(jnp.negative, gradient), memory, coordinates)
    return posterior.with_unconstrained(jax.tree.map(jnp.add, coordinates, change)), memory
