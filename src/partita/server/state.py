"""What the server knows, and the free energy there: a value that steps make another of, and never change."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from partita.engines import Task
from partita.errors import InputError
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.learning import Learning
from partita.hyper.values import Hyper, at_prior, begin, of_model, positive, unconstrained
from partita.local.client import Reply
from partita.models import Model
from partita.server.aggregation import Aggregation, Damped, Holdings
from partita.server.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class State:
    """All that the server knows; a file of it is a complete checkpoint. Never changed in place.

    Where the aggregation keeps the product, `posterior == prior_now · Π factors` after every step.
    """

    names: tuple[str, ...]
    """The clients."""
    prior: Family
    """The prior as it was given: where its scale is learned, p(θ | ε) is another."""
    posterior: Family
    factors: tuple[Factor, ...]
    versions: tuple[int, ...]
    """How many of each client's answers were taken in; with client and seed it gives the client's random key."""
    residual: Float[np.ndarray, " m"]
    """KL(q_k ‖ q) at each client's last answer; infinite before the first."""
    age: Int[np.ndarray, " m"]
    """How many turns ago each client last answered."""
    ell: Float[np.ndarray, " m"]
    """Each client's expected log-likelihood under the last posterior it was sent; −∞ before its first answer."""
    outcome: Int[np.ndarray, " m"]
    """Why each client's solver stopped at its last answer (`Outcome`); 0 before the first."""
    gone: Bool[np.ndarray, " m"]
    """Which clients take no part any more."""
    in_flight: tuple[Task, ...]
    """Tasks that are not answered yet."""
    arrived: tuple[tuple[Task, Reply], ...]
    """Answers that wait for others, to be taken in together."""
    seed: int
    keeps_product: bool = True
    """Whether the aggregation keeps the product; a factor can then be judged by itself, and divided out."""
    memory: PyTree = None
    """What the aggregation remembers."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """The hyperparameters ε that are learned."""
    gradients: Mapping[str, Float[np.ndarray, "m ..."]] = dataclasses.field(default_factory=dict)
    """Each client's last ∇_ε of its expected log-likelihood, at the posterior it was sent; NaN before its first."""
    learning: PyTree = None
    """What the way of learning ε remembers."""
    turn: int = 0
    updates: int = 0
    """How many times the posterior has changed."""
    answers: int = 0
    communications: int = 0
    """One per client and pair of messages."""
    gradient_steps: int = 0
    synchronous_steps: int = 0
    """The same, where clients that work at the same time count as the slowest of them (`fig:fmnist_homo_pvi_steps`)."""
    clock: float = 0.0
    """Simulated time."""
    refused: Mapping[int, Refusal] = dataclasses.field(default_factory=dict)
    """The clients whose answers were refused since one was last taken in, the latest first."""

    @property
    def left(self) -> tuple[str, ...]:
        """The names of clients that take no part any more."""
        return tuple(name for name, gone in zip(self.names, self.gone, strict=True) if gone)

    @property
    def prior_now(self) -> Family:
        """p(θ | ε)."""
        return at_prior(self.prior, self.hyper) if self.hyper else self.prior

    @property
    def holdings(self) -> Holdings:
        """What the aggregation sees of it."""
        return Holdings(self.posterior, dict(enumerate(self.factors)), self.memory)

    def settled(self, tolerance: float) -> bool:
        """Whether the last answer of everybody who takes part lay within so many nats of the posterior."""
        return bool(np.all((self.residual <= tolerance) | self.gone))


def init(prior: Family, clients: int | Sequence[str], seed: int = 0, aggregation: Aggregation | None = None) -> State:
    """t_m = 1 for every client, named or counted, and q = p, unless the aggregation begins elsewhere."""
    names = tuple(f"client {k}" for k in range(clients)) if isinstance(clients, int) else tuple(clients)
    if not names:
        raise InputError("There are no clients: give the data of at least one.")
    if not prior.is_proper():
        raise InputError("The prior is improper: give it finite natural parameters and positive precision.")
    aggregation = aggregation or Damped()
    holdings = aggregation.init(prior, len(names))
    return State(
        names=names,
        prior=prior,
        posterior=holdings.posterior,
        factors=tuple(holdings.factors[k] for k in range(len(names))),
        versions=(0,) * len(names),
        residual=np.full(len(names), np.inf),
        age=np.zeros(len(names), int),
        ell=np.full(len(names), -np.inf),
        outcome=np.zeros(len(names), int),
        gone=np.zeros(len(names), bool),
        in_flight=(),
        arrived=(),
        seed=seed,
        keeps_product=aggregation.keeps_product,
        memory=holdings.memory,
    )


def with_learning(state: State, learning: Learning, model: Model) -> State:
    """An initial state whose hyperparameters are to be learned."""
    hyper = begin(model, state.prior, learning.names)
    unheard = {name: np.full((len(state.names), *value.shape), np.nan) for name, value in of_model(hyper).items()}
    memory = learning.init(unconstrained(hyper, positive(model, learning.names)))
    return dataclasses.replace(state, hyper=hyper, gradients=unheard, learning=memory)
