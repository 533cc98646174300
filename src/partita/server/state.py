"""What the server knows: a value that steps make another of, and never change.

A field is declared here and nowhere else. Its kind (`tree`, `per_client`, `number`, `described`, `apart`) says how it
is stored and what becomes of it when a client joins; checkpoint, ledger and membership follow from that.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from partita.engines.base import Task, Tasks
from partita.errors import DamagedFileError, SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.hyper.learning import Learning
from partita.hyper.values import Hyper, begin, compiled_prior_given, likelihood_hyper, positive, unconstrained
from partita.io.digest import digest
from partita.local.client import Reply
from partita.models import Model
from partita.numerics.stack import Stack
from partita.server.aggregation import Aggregation, Damped, Iterate
from partita.server.aggregation.base import multiplied
from partita.server.refusal import Refusal, refusals, written

__all__ = [
    "Kind",
    "State",
    "Stored",
    "apart",
    "columns_of",
    "described",
    "fields_of",
    "init",
    "layout",
    "number",
    "per_client",
    "restored",
    "stored_trees",
    "stored_values",
    "tree",
    "unanswered_columns",
    "with_learning",
]


class Stored(enum.Enum):
    """How a field of `State` is stored."""

    TREE = "tree"
    """As arrays."""
    COLUMN = "column"
    """As arrays with an entry a client."""
    NUMBER = "number"
    DESCRIPTION = "description"
    """As JSON that describes it."""
    APART = "apart"
    """In a way of its own."""


class Kind(NamedTuple):
    """How a field of `State` is stored, and what a client that joins finds in it."""

    stored: Stored
    first: Any = None
    """For a column: the value before a client's first answer."""
    describe: Callable[[Any], Any] = lambda value: value
    restore: Callable[[Any], Any] = lambda value: value


def tree(**settings: Any) -> Any:
    """A pytree of arrays."""
    return dataclasses.field(metadata={"kind": Kind(Stored.TREE)}, **settings)


def per_client(first: float | bool, **settings: Any) -> Any:
    """An array with an entry a client, or a pytree of such arrays; `first` before a client's first answer."""
    return dataclasses.field(metadata={"kind": Kind(Stored.COLUMN, first)}, **settings)


def number(**settings: Any) -> Any:
    """A number."""
    return dataclasses.field(metadata={"kind": Kind(Stored.NUMBER)}, **settings)


def described(describe: Callable[[Any], Any], restore: Callable[[Any], Any], **settings: Any) -> Any:
    """Anything that JSON can hold once it is described."""
    return dataclasses.field(metadata={"kind": Kind(Stored.DESCRIPTION, None, describe, restore)}, **settings)


def apart(**settings: Any) -> Any:
    """What is shared among clients and tasks, and stored in a way of its own."""
    return dataclasses.field(metadata={"kind": Kind(Stored.APART)}, **settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Everything the server knows; saved to a file it is a complete checkpoint. Never changed in place.

    Where the aggregation keeps the product, `posterior == current_prior · Π factors` after every step.
    """

    names: tuple[str, ...] = described(list, tuple)
    """The clients."""
    prior: Family = tree()
    """The prior as given by the user; if its scale is learned, the current prior p(θ | ε) is `current_prior`."""
    posterior: Family = tree()
    factors: Stack[Factor] = apart()
    """t_m of every client."""
    versions: Int[np.ndarray, " m"] = per_client(0)
    """How many of each client's answers made its factor; with client and seed it gives the client's random key."""
    residual: Float[np.ndarray, " m"] = per_client(np.inf)
    """KL(q_k ‖ q) at each client's last answer."""
    size: Float[np.ndarray, " m"] = per_client(np.inf)
    """How large each client's last answer was, by the schedule's measure."""
    moved: Float[np.ndarray, " m"] = per_client(0.0)
    """The largest residual of answers that have changed q since the one that each client's last answer is about."""
    moved_since: Float[np.ndarray, " m"] = per_client(0.0)
    """The same since the q that each client was last sent."""
    last_turn: Int[np.ndarray, " m"] = per_client(0)
    """The turn after each client's last answer."""
    ell: Float[np.ndarray, " m"] = per_client(-np.inf)
    """Each client's expected log-likelihood under the last posterior it was sent."""
    ell_variance: Float[np.ndarray, " m"] = per_client(0.0)
    """The square of its standard error, where the expectation is sampled."""
    outcome: Int[np.ndarray, " m"] = per_client(0)
    """Why each client's solver stopped at its last answer (`Outcome`)."""
    inactive: Bool[np.ndarray, " m"] = per_client(False)
    """Which clients take no part any more."""
    hosted: Bool[np.ndarray, " m"] = per_client(False)
    """Which clients run in the server itself, such as the prior's: see `Engine.hosted`."""
    rows: Int[np.ndarray, " m"] = per_client(0)
    """A digest of each client's rows; 0 where they cannot be seen from here."""
    in_flight: Tasks = apart(default=Tasks())
    """Tasks that are not answered yet."""
    arrived: tuple[tuple[Task, Reply], ...] = apart(default=())
    """Answers that wait for others, to be aggregated together."""
    seed: int = number()
    origin: Mapping[str, str] = described(dict, dict, default_factory=dict)
    """Digests of the method, the model and the prior that it was made with."""
    keeps_product: bool = number(default=True)
    """Whether the aggregation keeps q = p · Π t_m; only then can a factor be checked or divided out on its own."""
    memory: PyTree = tree(default=None)
    """The aggregation's own state, such as an optimiser's."""
    hyper: Hyper = tree(default_factory=dict)
    """The current values of the learned hyperparameters ε."""
    gradients: Mapping[str, Float[np.ndarray, "m ..."]] = per_client(np.nan, default_factory=dict)
    """Each client's last ∇_ε of its expected log-likelihood, at the posterior it was sent."""
    learning: PyTree = tree(default=None)
    """The state of the hyperparameter optimiser."""
    turn: int = number(default=0)
    updates: int = number(default=0)
    """How many times the posterior has changed."""
    answers: int = number(default=0)
    communications: int = number(default=0)
    """One per client and pair of messages."""
    gradient_steps: int = number(default=0)
    synchronous_steps: int = number(default=0)
    """Gradient steps where clients that run in parallel count as the slowest of them (`fig:fmnist_homo_pvi_steps`)."""
    clock: float = number(default=0.0)
    """Simulated time."""
    round_start: Family = tree()
    """The posterior when the last round of answers was over."""
    round_began: int = number(default=0)
    """How many answers there had been then."""
    movements: tuple[float, ...] = described(list, tuple, default=())
    """How far the posterior moved in each of the last rounds, in standard deviations."""
    refused: Mapping[int, Refusal] = described(written, refusals, default_factory=dict)
    """The clients whose answers were refused since one of a client was last accepted, the latest first."""

    @property
    def active(self) -> Bool[np.ndarray, " m"]:
        """Which clients take part."""
        return ~self.inactive

    @property
    def communicating(self) -> Bool[np.ndarray, " m"]:
        """Which active clients are asked by messages."""
        return self.active & ~self.hosted

    @property
    def age(self) -> Int[np.ndarray, " m"]:
        """How many turns ago each client last answered."""
        return self.turn - self.last_turn

    @property
    def inactive_names(self) -> tuple[str, ...]:
        """The names of inactive clients."""
        return tuple(self.names[k] for k in np.flatnonzero(self.inactive))

    @property
    def current_prior(self) -> Family:
        """p(θ | ε)."""
        return compiled_prior_given(self.prior, self.hyper) if self.hyper else self.prior

    @property
    def prior_in_family(self) -> Family:
        """The prior within q's family: p(θ | ε), times the factor of a prior outside the family."""
        return multiplied([self.current_prior, *(self.factors[k].natural for k in np.flatnonzero(self.hosted))])

    @property
    def iterate(self) -> Iterate:
        """The part of the state that the aggregation updates."""
        return Iterate(self.posterior, self.factors, self.memory)

    @property
    def worst_residual(self) -> float:
        """The largest residual of the clients that take part."""
        return float(self.residual[self.active].max(initial=0.0))

    def settled(self, tolerance: float) -> bool:
        """Whether every active client's last answer lies within so many nats of the posterior, then and since."""
        return max(self.worst_residual, float(self.moved[self.active].max(initial=0.0))) <= tolerance

    def with_iterate(self, iterate: Iterate) -> "State":
        """The state with another iterate; a new posterior counts as an update."""
        changed = iterate.posterior is not self.posterior
        held = {"posterior": iterate.posterior, "factors": iterate.factors, "memory": iterate.memory}
        return dataclasses.replace(self, **held, updates=self.updates + changed)

    def changed(self, client: int, **values: Any) -> "State":
        """The state with other numbers of one client."""
        columns = {name: jax.tree.map(np.copy, getattr(self, name)) for name in values}
        for name, value in values.items():
            for column in jax.tree.leaves(columns[name]):
                column[client] = value
        return dataclasses.replace(self, **columns)

    def task(self, client: int, id: str, **earlier: Any) -> Task:
        """A task for a client: as of this state, but for what is given of an earlier one."""
        name, factor, version = self.names[client], self.factors[client], int(self.versions[client])
        sent = (self.prior, self.posterior, factor, version, self.seed, self.updates, self.clock, self.hyper)
        return Task(id, client, name, *sent)._replace(**earlier)

    def without_tasks(self, which: Callable[[Task], bool]) -> "State":
        """The state in which no such task is in flight, and no answer to one waits."""
        in_flight = self.in_flight.without([task.client for task in self.in_flight if which(task)])
        arrived = tuple((task, reply) for task, reply in self.arrived if not which(task))
        return dataclasses.replace(self, in_flight=in_flight, arrived=arrived)


def fields_of(*stored: Stored) -> Mapping[str, Kind]:
    """The kinds of the fields of `State` that are stored so, by name."""
    return {name: kind for name, kind in _kinds(State).items() if kind.stored in stored}


@functools.cache
def _kinds(state: type[State]) -> Mapping[str, Kind]:
    return {field.name: field.metadata["kind"] for field in dataclasses.fields(state)}


def layout(version: int) -> str:
    """The version of a file, with a digest of the fields and of how they are stored."""
    return f"{version}.{digest([(name, kind.stored.value) for name, kind in fields_of(*Stored).items()])}"


def stored_trees(state: State) -> dict[str, PyTree]:
    """The fields that are stored as arrays, by name."""
    return {name: getattr(state, name) for name in fields_of(Stored.TREE, Stored.COLUMN)}


def columns_of(state: State) -> dict[str, np.ndarray]:
    """The fields that are an array with a number a client, by name; not those that are pytrees of them."""
    found = {name: getattr(state, name) for name in fields_of(Stored.COLUMN)}
    return {name: column for name, column in found.items() if isinstance(column, np.ndarray)}


def stored_values(state: State) -> dict[str, Any]:
    """The fields that are stored as JSON, by name."""
    kinds = fields_of(Stored.NUMBER, Stored.DESCRIPTION)
    return {name: kind.describe(getattr(state, name)) for name, kind in kinds.items()}


def restored(like: State, trees: Mapping[str, PyTree], values: Mapping[str, Any], **others: Any) -> State:
    """The state whose fields were stored."""
    kinds = fields_of(Stored.NUMBER, Stored.DESCRIPTION)
    types = get_type_hints(State)
    for name in fields_of(Stored.NUMBER):
        if type(values[name]) is not types[name] and not (types[name] is float and type(values[name]) is int):
            raise DamagedFileError(
                f"The stored {name} is {values[name]!r:.50}: use a copy of the file, or another one."
            )
    described = {name: kind.restore(values[name]) for name, kind in kinds.items()}
    return dataclasses.replace(like, **trees, **described, **others)


def unanswered_columns(clients: int, like: Mapping[str, Any]) -> dict[str, Any]:
    """Every column for so many clients that have not answered yet; `like` has those that are pytrees."""
    plain = np.empty(1)
    return {
        name: jax.tree.map(
            lambda leaf, first=kind.first: np.full((clients, *leaf.shape[1:]), first), like.get(name, plain)
        )
        for name, kind in fields_of(Stored.COLUMN).items()
    }


def init(prior: Family, clients: int | Sequence[str], seed: int = 0, aggregation: Aggregation | None = None) -> State:
    """The initial state: t_m = 1 for every client and q = p, unless the aggregation starts elsewhere."""
    names = tuple(f"client {k}" for k in range(clients)) if isinstance(clients, int) else tuple(clients)
    if not names:
        raise SettingsError("There are no clients: give at least one.")
    if not prior.is_proper():
        raise SettingsError("The prior is improper: give it finite natural parameters and positive precision.")
    aggregation = aggregation or Damped()
    iterate = aggregation.init(prior, len(names))
    return State(
        names=names,
        prior=prior,
        posterior=iterate.posterior,
        round_start=iterate.posterior,
        factors=iterate.factors,
        seed=seed,
        keeps_product=aggregation.keeps_product,
        memory=iterate.memory,
        **unanswered_columns(len(names), {"gradients": {}}),
    )


def with_learning(state: State, learning: Learning, model: Model) -> State:
    """A state whose hyperparameters are to be learned, from where they are in the model and the prior."""
    hyper = begin(model, state.prior, learning.names)
    like = {"gradients": jax.tree.map(lambda value: value[None], likelihood_hyper(hyper))}
    unheard = unanswered_columns(len(state.names), like)["gradients"]
    memory = learning.init(unconstrained(hyper, positive(model, learning.names)))
    return dataclasses.replace(state, hyper=hyper, gradients=unheard, learning=memory)
