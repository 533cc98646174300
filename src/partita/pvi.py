"""Partitioned variational inference (`alg:vmp`): init, step, run."""

import dataclasses
import enum
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from partita import checkpoint as checkpoints
from partita.aggregation import Aggregation, Damped, Ledger, Taken
from partita.client import Recipe, Reply
from partita.engines import LocalEngine, Task
from partita.errors import InputError
from partita.families import Family
from partita.history import History
from partita.models import Model
from partita.objective import Cavity, Context, Factor
from partita.partition.shard import Partition
from partita.predict import Posterior
from partita.progress import Progress
from partita.schedules import Schedule, Sequential, Turns
from partita.solvers import Outcome, Solver


class Method(eqx.Module):
    """One member of each axis that tells methods apart; `partita.methods` names some compositions."""

    solver: Solver
    schedule: Schedule = Sequential()
    aggregation: Aggregation = Damped()
    context: Context = Cavity()
    trust_region: float = 1.0
    start: Family | None = None
    """Where clients begin to climb while the posterior is still the prior; None for there."""
    passes: int | None = eqx.field(static=True, default=None)
    """How often each client answers in all; None for as often as it takes."""
    anew: bool = eqx.field(static=True, default=False)
    """Whether clients begin at `start` in every visit."""
    temperature: float = 1.0
    """By what every KL divergence is multiplied: 1 is Bayes, and less is colder. The history says so."""

    def __check_init__(self) -> None:
        if not 0 < self.temperature < np.inf:
            raise InputError(f"The temperature is a number above 0, not {self.temperature}.")
        if self.anew and self.start is None:
            raise InputError("To begin every visit anew takes a start: give one.")

    def recipe(self, model: Model) -> Recipe:
        """What the clients need to know of it."""
        return Recipe(model, self.solver, self.context, self.trust_region, self.start, self.anew, self.temperature)


@dataclasses.dataclass(frozen=True)
class State:
    """All that the server knows; a file of it is a complete checkpoint. Never changed in place.

    Under product aggregation `posterior == prior · Π factors` after every step.
    """

    prior: Family
    posterior: Family
    factors: tuple[Factor, ...]
    versions: tuple[int, ...]
    """How many of each client's answers were taken in; with client and seed it gives the client's random key."""
    residual: np.ndarray
    age: np.ndarray
    in_flight: tuple[Task, ...]
    seed: int
    memory: PyTree = None
    """What the aggregation remembers."""
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
    refused: tuple[int, ...] = ()
    """The clients whose answers were refused since one was last taken in."""


@dataclasses.dataclass(frozen=True)
class Event:
    """What a step did."""

    clients: tuple[int, ...]
    damping: float
    staleness: int
    refusals: dict[int, str]
    replies: dict[int, Reply]


class Status(enum.Enum):
    """How a run ended."""

    CONVERGED = "converged"
    COMPLETE = "complete"
    BUDGET_SPENT = "budget spent"
    IMPROPER = "improper"
    DIVERGED = "diverged"
    STALLED = "stalled"


@dataclasses.dataclass(frozen=True)
class Result:
    """The posterior of a run, how the run ended, and its history."""

    posterior: Posterior
    status: Status
    message: str
    history: History
    state: State

    @property
    def free_energy(self) -> float:
        """The last global free energy that was computed: a lower bound on log p(y)."""
        known = [row["free_energy"] for row in self.history if "free_energy" in row]
        return known[-1] if known else float("nan")


def init(prior: Family, clients: int, seed: int = 0, aggregation: Aggregation | None = None) -> State:
    """t_m = 1 for every client and q = p, unless the aggregation begins elsewhere."""
    if clients < 1:
        raise InputError("There are no clients: give the data of at least one.")
    if not prior.is_proper():
        raise InputError("The prior is improper: give it finite natural parameters and positive precision.")
    ledger = (aggregation or Damped()).init(prior, clients)
    return State(
        prior=prior,
        posterior=ledger.posterior,
        factors=tuple(ledger.factors[k] for k in range(clients)),
        versions=(0,) * clients,
        residual=np.full(clients, np.inf),
        age=np.zeros(clients, int),
        in_flight=(),
        seed=seed,
        memory=ledger.memory,
    )


def step(method: Method, model: Model, engine: LocalEngine, state: State) -> tuple[State, Event]:
    """One pass through the body of `alg:vmp`. Raises nothing for what a client answers: a bad answer is refused."""
    clients = len(state.factors)

    # ① Server: select clients and send them the posterior.
    busy = np.isin(np.arange(clients), [task.client for task in state.in_flight])
    selected = method.schedule.select(Turns(state.turn, state.residual, state.age, busy, state.seed))
    sent = [engine.send(k, state.posterior, state.updates, state.clock) for k in selected]
    tasks = [*state.in_flight, *sent]

    # ② Clients: each maximises its local free energy and replies with the change of its factor.
    count = len(tasks) if method.schedule.awaits is None else method.schedule.awaits
    answers, waiting = engine.collect(tasks, count, method.recipe(model), state)
    replies = {task.client: Reply(reply.delta, jax.device_get(reply.info)) for task, reply in answers}
    refusals = {k: "is not finite" for k, reply in replies.items() if not reply.info.finite}
    deltas = {k: replies[k].delta for k in sorted(replies) if k not in refusals}

    # ③ Server: take the changes in, damped.
    def free_energy(q: Family) -> float:
        return global_free_energy(model, engine, state.prior, q, state.seed, method.temperature)

    ledger = Ledger(state.posterior, dict(enumerate(state.factors)), state.memory)
    taken = method.aggregation.update(ledger, deltas, free_energy) if deltas else Taken(ledger, 0.0, 0, {})
    refusals |= taken.refusals

    accepted = set(deltas) - set(refusals) if taken.damping > 0 else set()
    residual, age = state.residual.copy(), state.age + 1
    for k, reply in replies.items():
        own = float(reply.info.residual) if taken.residual is None else taken.residual
        residual[k] = own if k in accepted else np.inf
        age[k] = 0
    new = dataclasses.replace(
        state,
        posterior=taken.ledger.posterior,
        factors=tuple(taken.ledger.factors[k] for k in range(clients)),
        memory=taken.ledger.memory,
        versions=tuple(version + (k in accepted) for k, version in enumerate(state.versions)),
        residual=residual,
        age=age,
        in_flight=tuple(waiting),
        turn=state.turn + 1,
        updates=state.updates + bool(accepted),
        answers=state.answers + len(replies),
        communications=state.communications + len(replies) + taken.trials * clients,
        gradient_steps=state.gradient_steps + sum(int(reply.info.steps) for reply in replies.values()),
        synchronous_steps=state.synchronous_steps + max(int(reply.info.steps) for reply in replies.values()),
        clock=max([state.clock, *(task.due for task, _ in answers)]),
        refused=() if accepted else tuple(sorted({*state.refused, *replies})),
    )
    staleness = max(state.updates - task.version for task, _ in answers)
    return new, Event(tuple(replies), taken.damping, staleness, refusals, replies)


Metrics = Callable[[Posterior], Mapping[str, float]]


class Budget(NamedTuple):
    """When a run ends at the latest; backtracking takes communications without answers."""

    communications: float
    answers: float

    def spent(self, state: State) -> bool:
        """Whether it is used up."""
        return state.communications >= self.communications or state.answers >= self.answers


def run(
    method: Method,
    model: Model,
    prior: Family,
    partition: Partition,
    *,
    communications: int | None = None,
    rounds: float | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    metrics: Metrics | None = None,
    evaluate_every: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool | None = None,
    label: str = "",
) -> Result:
    """Runs `alg:vmp` until the fixed-point residual is below `tolerance` nats or a budget is spent.

    A round is as many answers as there are clients; without any budget it is 100 rounds, and never more than the
    method's own number of passes. The residual is the largest KL(q_k ‖ q) among the clients' latest answers, unless the
    aggregation has one of its own. Global free energy and `metrics` are computed every `evaluate_every` steps and at
    the end, 0 for never. With `checkpoint` the run is saved every so many steps, and goes
    on from that file when it exists, to the same numbers as if it had not been interrupted, provided that method, model
    and data are the same: that is up to the caller. `progress` is shown on a terminal unless switched off.
    """
    engine = LocalEngine(partition, speeds)
    check(method, model, prior, partition)
    if communications is None and rounds is None:
        rounds = 100.0
    whole = np.inf if method.passes is None else method.passes * len(partition)
    budget = Budget(
        np.inf if communications is None else communications,
        float(np.minimum(whole, np.inf if rounds is None else rounds * len(partition))),  # keeps NaN, to be refused
    )
    if seed < 0 or checkpoint_every < 1:
        raise InputError(
            f"A seed is not negative ({seed}), and a checkpoint is due every step at most ({checkpoint_every})."
        )
    if not (budget.communications > 0 and budget.answers > 0):
        raise InputError("The budget is empty: allow at least one communication.")

    state, history = init(prior, len(partition), seed, method.aggregation), History()
    if checkpoint is not None and os.path.exists(checkpoint):
        state, history = checkpoints.load(checkpoint, state, partition.names)
    first = global_free_energy(model, engine, prior, prior, seed) if evaluate_every else float("nan")
    before = history.rows[-1]["seconds"] if len(history) else 0.0
    started = time.perf_counter()

    ending = _ending(state, history, first, budget, whole, tolerance)
    with engine.at_work(), Progress(label or "PVI", min(budget), progress) as bar:
        while ending is None:
            state, event = step(method, model, engine, state)
            row = _row(state, event, partition.names) | {"temperature": float(method.temperature)}
            last = budget.spent(state) or bool((state.residual <= tolerance).all())
            if evaluate_every and (last or state.turn % evaluate_every == 0):
                row["free_energy"] = global_free_energy(model, engine, prior, state.posterior, seed)
                found = metrics(Posterior(model, state.posterior)) if metrics else {}
                row |= {name: float(value) for name, value in found.items()}
            row["seconds"] = before + time.perf_counter() - started
            history.append(row)
            ending = _ending(state, history, first, budget, whole, tolerance)
            if checkpoint is not None and (ending or state.turn % checkpoint_every == 0):
                checkpoints.save(checkpoint, state, history, partition.names)
            bar.update(state.answers if budget.answers < budget.communications else state.communications, row)
    status, message = ending
    return Result(Posterior(model, state.posterior), status, message, history, state)


def global_free_energy(
    model: Model, engine: LocalEngine, prior: Family, q: Family, seed: int, temperature: float = 1.0
) -> float:
    """F(q) = Σ_k ell_k(q) − KL(q ‖ p), which equals Σ F_m + log Z_q where q = p · Π t_m (`prop:local-fe-global-fe`).

    With a temperature the divergence has that weight: what tempered clients climb together.
    """
    return engine.ell(model, q, jax.random.key(seed)) - temperature * float(divergence(q, prior))


@eqx.filter_jit
def divergence(q: Family, prior: Family) -> jax.Array:
    """KL(q ‖ prior)."""
    return q.kl(prior)


def check(method: Method, model: Model, prior: Family, partition: Partition) -> None:
    """Raises an `InputError` that names the client whose data cannot be used, or the setting that does not fit."""
    method.schedule.check(len(partition))
    if method.start is not None:
        method.start.fitting(prior, "start")
    for shard, name, size in zip(partition.shards, partition.names, partition.sizes, strict=True):
        try:
            model.check(jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], shard.data))
        except InputError as error:
            raise InputError(f"{name}: {error}.") from None
    shard = partition.shards[0]
    try:
        jax.eval_shape(lambda q: model.ell(q, shard.data, shard.weights, jax.random.key(0)), prior)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The prior does not fit the data: {str(error).splitlines()[0]}") from error


def _row(state: State, event: Event, names: Sequence[str]) -> dict[str, Any]:
    return {
        "step": state.turn,
        "communications": state.communications,
        "rounds": state.answers / len(names),
        "gradient_steps": state.gradient_steps,
        "synchronous_steps": state.synchronous_steps,
        "clock": state.clock,
        "clients": [names[k] for k in event.clients],
        "staleness": event.staleness,
        "residual": float(state.residual.max()),
        "damping": event.damping,
        "refused": {names[k]: reason for k, reason in event.refusals.items()},
        "unsolved": {
            names[k]: outcome.sentence
            for k, reply in event.replies.items()
            if (outcome := Outcome(int(reply.info.outcome))) is not Outcome.CONVERGED
        },
    }


_REFUSED = {
    "learning rate": (Status.IMPROPER, "Lower it."),
    "improper": (Status.IMPROPER, "Damp more, or backtrack."),
    "lower the free energy": (Status.STALLED, "Start elsewhere, or let clients solve less far."),
    "not finite": (Status.DIVERGED, "Look at that client's rows and at the model."),
}


def _ending(
    state: State, history: History, first: float, budget: Budget, whole: float, tolerance: float
) -> tuple[Status, str] | None:
    """How the run has ended, if it has. Falling free energy is what tells divergence: precisions may stay positive."""
    known = [first, *(row["free_energy"] for row in history if "free_energy" in row)]
    latest, best = known[-1], max(known)
    if len(state.refused) == len(state.factors):
        name, reason = next(iter(history.rows[-1]["refused"].items()), ("everybody", "was left out"))
        stalled = (Status.STALLED, "Look at the aggregation.")
        status, remedy = next((ending for words, ending in _REFUSED.items() if words in reason), stalled)
        return status, f"No answer could be taken in: that of {name} {reason}. {remedy}"
    if len(history) and not latest > first - 10 * (1 + abs(first)) and not np.isnan(first):
        return Status.DIVERGED, f"The free energy ran away to {latest:.6g}. Damp more."
    if (state.residual <= tolerance).all():
        return Status.CONVERGED, f"Every client's answer lies within {tolerance:g} nats of the posterior."
    if not budget.spent(state):
        return None
    if state.answers >= whole:
        left_out = sorted({name for _, name, _ in history.refusals})
        if left_out:
            return Status.STALLED, f"The only pass is over, and what {', '.join(left_out)} answered was refused."
        return Status.COMPLETE, "Every client has answered as often as the method asks."
    if best - latest > (best - first) / 2:
        return Status.DIVERGED, f"The free energy fell from {best:.6g} to {latest:.6g}. Damp more."
    worst = state.residual.max()
    return Status.BUDGET_SPENT, f"The budget is spent with a residual of {worst:.3g} nats left."
