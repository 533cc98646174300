"""A server-side optimiser on everybody's last gradients: SAG, SAGA and between, with the factors as their table."""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.numerics.compiled import Compiled
from partita.server.aggregation.base import Aggregation, FreeEnergy, Holdings, Taken, begin
from partita.server.aggregation.server_optimiser import optimiser_step
from partita.server.refusal import Reason, Refusal


def agile_adam(learning_rate: float) -> optax.GradientTransformation:
    """Adam that remembers squares for a hundred steps instead of a thousand, in which gradients become far smaller."""
    return optax.adam(learning_rate, b2=0.99)


class Incremental(Aggregation):
    """An optimiser climbs the free energy that all clients' last gradients tell, however old most of them are.

    A client's factor is its last natural gradient ∇_μ ell_k, so that prior times factors over posterior estimates
    ∇_μ F; the newest changes count several times, `gain` · M / (how many answered) and at least once. That is an
    incremental gradient method with the factors as its table: `gain` = 1/M is SAG (Schmidt et al. 2017), 1 is SAGA
    (Defazio et al. 2014), whose estimate is unbiased. Where every client answers it is an optimiser on pooled rows.
    In the first pass the factors of clients not heard yet are the geometric mean of the others'
    (`sec:stochastic-approx`).

    The noise of a single client's gradient vanishes as its factor becomes right, which stochastic global VI's does not,
    and so does the bias of clients who are unlike. On the way q is not p · Π t_m; at a fixed point it is.
    """

    optimiser: Callable[..., optax.GradientTransformation] = eqx.field(static=True, default=agile_adam)
    learning_rate: float = 1e-3
    gain: float = 0.5
    start: Family | None = None
    """The posterior to begin with; the prior when None."""

    def __check_init__(self) -> None:
        if not self.learning_rate > 0:
            raise SettingsError(f"The learning rate is a number above 0, not {self.learning_rate}.")
        if not 0 <= self.gain <= 1:
            raise SettingsError(f"The gain is a number from 0 to 1, not {self.gain}.")

    @property
    def keeps_product(self) -> bool:
        return False

    def init(self, prior: Family, clients: int) -> Holdings:
        posterior, _ = begin(prior, self.start, clients)
        optimiser = self.optimiser(self.learning_rate).init(posterior.unconstrained())
        memory = Tracked(optimiser, prior, prior.one(), np.zeros(clients, bool))
        return Holdings(posterior, dict.fromkeys(range(clients), Factor.one(prior)), memory)

    def update(self, holdings: Holdings, deltas: Mapping[int, Factor], free_energy: FreeEnergy) -> Taken:
        clients, heard = len(holdings.factors), holdings.memory.heard.copy()
        heard[list(deltas)] = True
        weight = max(1.0, self.gain * clients / len(deltas))
        factors, changes = [holdings.factors[k] for k in deltas], list(deltas.values())
        moved, factors, optimiser, evidence, proper, residual = track(
            self, holdings.posterior, factors, changes, holdings.memory, weight, clients / int(heard.sum())
        )
        if not proper:
            refusal = Refusal(Reason.IMPROPER_STEP, "would make the posterior improper at this learning rate")
            return Taken(holdings, 0.0, 0, dict.fromkeys(deltas, refusal))
        memory = Tracked(optimiser, holdings.memory.prior, evidence, heard)
        changed = {**holdings.factors, **dict(zip(deltas, factors, strict=True))}
        return Taken(Holdings(moved, changed, memory), 1.0, 0, {}, float(residual) if heard.all() else np.inf)

    def log_evidence(self, prior: Family, holdings: Holdings) -> None:
        """None: it is for clients that climb a bound, and on the way q is not p · Π t_m."""

    def with_prior(self, holdings: Holdings, change: Family) -> Holdings:
        memory = holdings.memory._replace(prior=holdings.memory.prior * change)
        return super().with_prior(holdings._replace(memory=memory), change)


class Tracked(NamedTuple):
    """What `Incremental` remembers: its optimiser, the prior, who has answered, and the product of all factors.

    The last could be had from the factors, at the cost of reading all of them at every step.
    """

    optimiser: PyTree
    prior: Family
    evidence: Family
    heard: Bool[np.ndarray, " m"]


def _track(
    server: Incremental,
    posterior: Family,
    factors: list[Factor],
    deltas: list[Factor],
    memory: Tracked,
    weight: float,
    unheard: float,
) -> tuple[Family, list[Factor], PyTree, Family, Bool[Array, ""], Float[Array, ""]]:
    """A step of the server's optimiser, the factors, its memory, all factors' product, and whether it can be taken.

    Last comes how far prior times factors lies from the posterior, in nats of KL.
    """
    total = functools.reduce(operator.mul, (delta.natural for delta in deltas))
    evidence = memory.evidence * total
    product = memory.prior * evidence**unheard
    direction = product * total ** (weight - 1) / posterior
    moved, optimiser = optimiser_step(server.optimiser(server.learning_rate), posterior, direction, memory.optimiser)
    residual = jnp.where(product.is_proper(), product.kl(posterior), jnp.inf)
    changed = [factor * delta for factor, delta in zip(factors, deltas, strict=True)]
    return moved, changed, optimiser, evidence, moved.is_proper(), residual


track = Compiled(_track)
