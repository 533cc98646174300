"""What the server does (`alg:vmp`): it sends tasks, receives answers, and takes them in. A step is these three."""

import dataclasses
import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from partita.admission import Admission
from partita.aggregation import Aggregation, Damped, FreeEnergy, Holdings, Taken
from partita.client import HELD_BACK, Reply
from partita.engines import Answer, Engine, Failure, Task
from partita.errors import InputError
from partita.families import Family
from partita.hyper import (
    Hyper,
    at_prior,
    begin,
    bound_gradient,
    constrained,
    of_model,
    positive,
    possible,
    unconstrained,
)
from partita.journal import Journal
from partita.learning import Learning, Standing, gain
from partita.method import Method
from partita.models import Model
from partita.objective import Factor
from partita.schedules import Turns
from partita.wire import equal

LOOK = 5.0
"""Seconds after which the server looks whether anything was asked for from outside, while it waits for clients."""
SILENT = 5
"""How many times as many answers as there are clients make up for clients that have never answered."""


@dataclasses.dataclass(frozen=True)
class State:
    """All that the server knows; a file of it is a complete checkpoint. Never changed in place.

    Under product aggregation `posterior == prior_now · Π factors` after every step.
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
    gone: Bool[np.ndarray, " m"]
    """Which clients take no part any more."""
    in_flight: tuple[Task, ...]
    """Tasks that are not answered yet."""
    arrived: tuple[tuple[Task, Reply], ...]
    """Answers that wait for others, to be taken in together."""
    seed: int
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
    refused: tuple[int, ...] = ()
    """The clients whose answers were refused since one was last taken in."""

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


@dataclasses.dataclass(frozen=True)
class Event:
    """What a step did."""

    clients: tuple[int, ...]
    damping: float
    staleness: int
    refusals: dict[int, str]
    replies: dict[int, Reply]
    unanswered: dict[int, str]
    """The clients that were asked and left out of the step, with the reason."""


class Rules(NamedTuple):
    """How long the server waits for clients, and for how many; times are in seconds of the engine's clock."""

    deadline: float = np.inf
    """How long a client has for an answer."""
    quorum: float = 1.0
    """What part of those asked must have answered, rounded down, for a step to go on without the others."""
    pause: float = 1.0
    """How long to wait before clients that failed are asked again."""
    until: float = np.inf
    """When to stop waiting at all."""
    admission: Admission = Admission()
    """What an answer must keep to."""

    def check(self) -> None:
        """Raises an `InputError` for a setting that makes no sense."""
        if not (self.deadline > 0 and self.pause > 0):
            raise InputError(f"A deadline ({self.deadline}) and a pause ({self.pause}) are times above 0.")
        if not 0 <= self.quorum <= 1:
            raise InputError(f"The quorum is a part of the clients from 0 to 1, not {self.quorum}.")
        self.admission.check()


def init(prior: Family, clients: int | Sequence[str], seed: int = 0, aggregation: Aggregation | None = None) -> State:
    """t_m = 1 for every client, named or counted, and q = p, unless the aggregation begins elsewhere."""
    names = tuple(f"client {k}" for k in range(clients)) if isinstance(clients, int) else tuple(clients)
    if not names:
        raise InputError("There are no clients: give the data of at least one.")
    if not prior.is_proper():
        raise InputError("The prior is improper: give it finite natural parameters and positive precision.")
    holdings = (aggregation or Damped()).init(prior, len(names))
    return State(
        names=names,
        prior=prior,
        posterior=holdings.posterior,
        factors=tuple(holdings.factors[k] for k in range(len(names))),
        versions=(0,) * len(names),
        residual=np.full(len(names), np.inf),
        age=np.zeros(len(names), int),
        ell=np.full(len(names), -np.inf),
        gone=np.zeros(len(names), bool),
        in_flight=(),
        arrived=(),
        seed=seed,
        memory=holdings.memory,
    )


def with_learning(state: State, learning: Learning, model: Model) -> State:
    """An initial state whose hyperparameters are to be learned."""
    hyper = begin(model, state.prior, learning.names)
    unheard = {name: np.full((len(state.names), *value.shape), np.nan) for name, value in of_model(hyper).items()}
    memory = learning.init(unconstrained(hyper, positive(model, learning.names)))
    return dataclasses.replace(state, hyper=hyper, gradients=unheard, learning=memory)


def step(
    method: Method,
    model: Model,
    engine: Engine,
    state: State,
    rules: Rules | None = None,
    journal: Journal | None = None,
    tolerance: float = 1e-6,
) -> tuple[State, Event]:
    """One pass through the body of `alg:vmp`, and a step in ε where it is learned.

    Raises nothing for what a client answers: a bad answer is refused. Answers within the tolerance have settled.
    """
    journal, rules = journal or Journal(), rules or Rules()
    state = dispatch(method, state, engine.away(state.names))
    journal.keep(state)
    state, unanswered, whole = gather(method, model, engine, state, rules, journal)
    if not whole:
        return state, Event((), 0.0, 0, {}, {}, unanswered)
    new, event = take_in(method, model, engine, state, rules.admission)
    for task, _ in state.arrived:
        if task.client in event.refusals:
            engine.tell(task, event.refusals[task.client])
    if method.learning is not None:
        new = learn(method, method.learning, model, engine, new, len(event.clients), tolerance)
    return new, dataclasses.replace(event, unanswered=unanswered)


def dispatch(method: Method, state: State, away: Bool[np.ndarray, " m"]) -> State:
    """① Server: select clients, and put the posterior on its way to them. Turns of clients who are away pass.

    A round that is under way goes on first.
    """
    if method.schedule.awaits is None and (state.in_flight or state.arrived):
        return state
    clients = len(state.factors)
    asked = [*state.in_flight, *(task for task, _ in state.arrived)]
    busy = away | state.gone | np.isin(np.arange(clients), [task.client for task in asked])
    for turn in range(state.turn, state.turn + 2 * clients):
        selected = method.schedule.select(Turns(turn, state.residual, state.age, busy, state.seed))
        selected = [k for k in selected if not busy[k]]
        if selected:
            break
    tasks = [
        Task(
            id=f"{turn}.{k}",
            client=k,
            name=state.names[k],
            prior=state.prior,
            posterior=state.posterior,
            factor=state.factors[k],
            version=state.versions[k],
            seed=state.seed,
            updates=state.updates,
            sent=state.clock,
            hyper=state.hyper,
        )
        for k in selected
    ]
    return dataclasses.replace(state, turn=turn if selected else state.turn, in_flight=(*state.in_flight, *tasks))


def gather(
    method: Method, model: Model, engine: Engine, state: State, rules: Rules, journal: Journal
) -> tuple[State, dict[int, str], bool]:
    """② Clients: each maximises its local free energy and replies with the change of its factor.

    Waits until as many have answered as the schedule awaits, or the others are beyond the deadline, or have failed, and
    the quorum is there. Those are left out; the reasons are given. While it is not there, they are asked again. Last
    comes whether that was achieved: once the time is up, or something is asked for from outside, answers and tasks are
    left for another time. Answers that wait for others are kept on the way; the last one is kept with what the step
    makes of it.
    """
    recipe, unanswered = method.recipe(model), dict[int, str]()
    awaited = min(method.schedule.awaits or np.inf, len(state.in_flight) + len(state.arrived))
    needed = int(rules.quorum * awaited)
    again = -np.inf

    def leave_out(tasks: Sequence[Task], reason: str) -> State:
        """The state without these tasks, if the quorum may be there without them."""
        if len(state.arrived) + len(state.in_flight) - len(tasks) < needed:
            return state
        unanswered.update({task.client: reason for task in tasks})
        return without(state, tasks)

    while state.in_flight and len(state.arrived) < awaited and engine.now() < rules.until and not journal.asked():
        late = [task for task in state.in_flight if engine.now() >= engine.posted(task.id) + rules.deadline]
        for task in late:
            engine.cancel(task.id)
        if late:
            state, again = leave_out(late, "did not answer in time"), engine.now()
            continue
        if engine.now() >= again:
            for task in state.in_flight:
                engine.submit(task, recipe)
            again = np.inf
        due = min(engine.posted(task.id) for task in state.in_flight) + rules.deadline
        coming = engine.next(min(due, again, rules.until, engine.now() + LOOK) - engine.now())
        if isinstance(coming, Answer):
            state = receive(state, coming)
            if state.in_flight and len(state.arrived) < awaited:
                journal.keep(state)
        elif isinstance(coming, Failure):
            state = leave_out([task for task in state.in_flight if task.id == coming.task], coming.reason)
            again = min(again, engine.now() + rules.pause)
    if not state.arrived and not state.in_flight:
        engine.next(min(rules.pause, max(rules.until - engine.now(), 0.0)))
    return state, unanswered, not state.in_flight or len(state.arrived) >= awaited


def receive(state: State, answer: Answer) -> State:
    """The state once an answer is there.

    What answers no task under way, or another version of the client's factor, is a repetition or comes too late, and
    changes nothing.
    """
    tasks = [task for task in state.in_flight if task.id == answer.task and task.version == state.versions[task.client]]
    return dataclasses.replace(
        without(state, tasks),
        arrived=(*state.arrived, *((task, answer.reply) for task in tasks)),
        clock=max(state.clock, answer.time) if tasks else state.clock,
    )


def without(state: State, tasks: Sequence[Task]) -> State:
    """The state in which nobody waits for these tasks."""
    gone = {task.id for task in tasks}
    return dataclasses.replace(state, in_flight=tuple(task for task in state.in_flight if task.id not in gone))


def take_in(method: Method, model: Model, engine: Engine, state: State, admission: Admission) -> tuple[State, Event]:
    """③ Server: take the changes in, damped."""
    clients = len(state.factors)
    replies = {
        task.client: Reply(reply.delta, *jax.device_get((reply.info, reply.gradient))) for task, reply in state.arrived
    }
    refusals = admission.refusals([(task, replies[task.client]) for task, _ in state.arrived])
    deltas = {k: replies[k].delta for k in sorted(replies) if k not in refusals}

    bounds = admission if _comparable(state, replies) else Admission()
    held = {k for k, version in enumerate(state.versions) if version > 0 and state.memory is None}
    # factors from before there was anybody to compare them with are judged as soon as there is
    judged = held & deltas.keys() if _comparable(state, ()) else held
    climbed = functools.partial(free_energy, method, model, engine, state)
    taken, beyond, divided = admit(method.aggregation, bounds, state.holdings, deltas, judged, held, climbed)
    refusals |= beyond | taken.refusals

    accepted = set(deltas) - set(refusals) if taken.damping > 0 else set()
    residual, age, ell = state.residual.copy(), state.age + 1, state.ell.copy()
    gradients = {name: column.copy() for name, column in state.gradients.items()}
    elsewhere = {
        task.client
        for task, _ in state.arrived
        if method.learning is not None and method.learning.waits and not equal(task.hyper, state.hyper)
    }
    for k, reply in replies.items():
        own = float(reply.info.residual) if taken.residual is None else taken.residual
        residual[k] = own if k in accepted and int(reply.info.outcome) not in HELD_BACK else np.inf
        age[k], ell[k] = 0, reply.info.ell if np.isfinite(reply.info.ell) else ell[k]
        for name, column in gradients.items() if k in accepted else ():
            column[k] = reply.gradient[name]
    residual[[*divided, *elsewhere]] = np.inf
    for column in gradients.values():
        column[list(divided)] = np.nan
    new = dataclasses.replace(
        state,
        posterior=taken.holdings.posterior,
        factors=tuple(taken.holdings.factors[k] for k in range(clients)),
        memory=taken.holdings.memory,
        versions=tuple(version + (k in accepted | divided) for k, version in enumerate(state.versions)),
        residual=residual,
        age=age,
        ell=ell,
        gradients=gradients,
        in_flight=tuple(task for task in state.in_flight if task.client not in divided),
        arrived=(),
        turn=state.turn + 1,
        updates=state.updates + bool(accepted | divided),
        answers=state.answers + len(replies),
        communications=state.communications + len(replies) + taken.trials * clients,
        gradient_steps=state.gradient_steps + sum(int(reply.info.steps) for reply in replies.values()),
        synchronous_steps=state.synchronous_steps + max((int(r.info.steps) for r in replies.values()), default=0),
        refused=() if accepted else tuple(sorted({*state.refused, *replies})),
    )
    staleness = max((state.updates - task.updates for task, _ in state.arrived), default=0)
    return new, Event(tuple(replies), taken.damping, staleness, refusals, replies, {})


def learn(
    method: Method,
    learning: Learning,
    model: Model,
    engine: Engine,
    state: State,
    answers: int,
    tolerance: float,
) -> State:
    """④ Server: move ε along the gradient that clients have reported, if it is time to (`sec:hyper_learning`).

    The factors stay and q moves with the prior, so that it is still p(θ | ε) · Π t_m. What clients answered before is
    then of another problem, and their residuals say nothing any more.
    """
    present = ~state.gone
    reported = all(np.isfinite(column[present]).all() for column in state.gradients.values())
    heard = np.isfinite(state.ell[present]).all()
    if not (reported and heard):
        return state
    above = positive(model, learning.names)
    summed = {
        name: jnp.asarray(column[present].sum(0), state.hyper[name].dtype) for name, column in state.gradients.items()
    }
    gradient = bound_gradient(state.prior, state.posterior, state.hyper, summed, above, method.temperature)

    def at(u: Hyper) -> State:
        hyper = constrained({name: value.astype(state.hyper[name].dtype) for name, value in u.items()}, above)
        moved = method.aggregation.with_prior(state.holdings, at_prior(state.prior, hyper) / state.prior_now)
        return dataclasses.replace(state, hyper=hyper, posterior=moved.posterior, memory=moved.memory)

    def allowed(new: State) -> bool:
        return possible(new.hyper, above) and bool(new.prior_now.is_proper()) and bool(new.posterior.is_proper())

    def bound(u: Hyper) -> float:
        new = at(u)
        return free_energy(method, model, engine, new, new.posterior) if allowed(new) else -np.inf

    u = unconstrained(state.hyper, above)
    residual = float(state.residual[present].max())
    standing = Standing(u, gradient, bound, residual, tolerance, answers / int(present.sum()))
    moved = learning.update(standing, state.learning)
    new = state if moved.u is u else at(moved.u)
    if new is not state and state.memory is None:
        product = functools.reduce(operator.mul, (factor.natural for factor in state.factors), new.prior_now)
        new = dataclasses.replace(new, posterior=product)
    if not allowed(new):
        new, moved = state, moved._replace(left=gain(gradient))
    return dataclasses.replace(
        new,
        learning=moved.memory,
        updates=state.updates + (new is not state),
        residual=np.where(present, np.maximum(state.residual, moved.left), state.residual),
        communications=state.communications + moved.trials * int(present.sum()),
    )


def unmoved(learning: Learning, state: State) -> str:
    """Why hyperparameters are still as they began, with the remedy."""
    known = [np.isfinite(column).reshape(len(column), -1).all(1) for column in (state.ell, *state.gradients.values())]
    silent = [name for k, name in enumerate(state.names) if not state.gone[k] and not all(heard[k] for heard in known)]
    reason = learning.waiting
    if silent:
        reason = (
            f"no answer of {', '.join(silent)} could be taken in, without which the bound is not known: let them leave"
        )
    return f"Hyperparameters are as they began ({', '.join(learning.names)}): {reason}."


def _comparable(state: State, replies: Collection[int]) -> bool:
    """Whether there is somebody to compare an answer with: everybody has been heard.

    Some may never come: then most of them, and many answers, do.
    """
    taking_part = set(np.flatnonzero(~state.gone).tolist())
    heard = taking_part & ({k for k, version in enumerate(state.versions) if version > 0} | set(replies))
    many = state.answers + len(replies) >= SILENT * len(state.names)
    return heard == taking_part or (many and 2 * len(heard) > len(taking_part))


def admit(
    aggregation: Aggregation,
    admission: Admission,
    holdings: Holdings,
    deltas: Mapping[int, Factor],
    judged: Collection[int],
    held: Collection[int],
    free_energy: FreeEnergy,
) -> tuple[Taken, dict[int, str], set[int]]:
    """Takes changes in without those of clients beyond a bound, the worst first; with the reasons.

    Of factors that are held already, those to be judged that are beyond a bound beside what others have said since, as
    may be found of the first answers of a sequential run, are divided out; last come those clients.
    """
    deltas, judged, held = dict(deltas), set(judged), set(held)
    refusals, divided = dict[int, str](), set[int]()
    while True:
        taken = aggregation.update(holdings, deltas, free_energy) if deltas else Taken(holdings, 0.0, 0, {})
        new = set(deltas) - set(taken.refusals)
        beyond = admission.worst(holdings, taken.holdings, (judged - set(deltas)) | new, held | new)
        if beyond is None:
            return taken, refusals, divided
        k, reason = beyond
        if k in new:
            refusals[k] = reason
            del deltas[k]
            continue
        judged.discard(k)
        rest = holdings.posterior / holdings.factors[k].natural
        if rest.is_proper():
            refusals[k] = reason
            divided.add(k)
            held.discard(k)
            holdings = Holdings(rest, {**holdings.factors, k: Factor.one(rest)})


def free_energy(method: Method, model: Model, engine: Engine, state: State, q: Family) -> float:
    """What all clients climb together, with the state's hyperparameters and the method's temperature.

    A client that has left has no rows any more; its factor, which stays, speaks for it.
    """
    at = (state.seed, method.temperature, state.left, state.hyper)
    stay = [factor for factor, gone in zip(state.factors, state.gone, strict=True) if gone]
    said = sum(float(factor.expected_log(q)) for factor in stay)
    return global_free_energy(model, engine, state.prior_now, q, *at) + method.temperature * said


def global_free_energy(
    model: Model,
    engine: Engine,
    prior: Family,
    q: Family,
    seed: int,
    temperature: float = 1.0,
    left: Collection[str] = (),
    hyper: Hyper | None = None,
) -> float:
    """F(q) = Σ_k ell_k(q) − KL(q ‖ p), which equals Σ F_m + log Z_q where q = p · Π t_m (`prop:local-fe-global-fe`).

    With a temperature the divergence has that weight: what tempered clients climb together. The rows of clients that
    have left do not count. Hyperparameters are the model's own unless given.
    """
    return engine.ell(model, q, jax.random.key(seed), left, hyper) - temperature * float(divergence(q, prior))


@eqx.filter_jit
def divergence(q: Family, prior: Family) -> jax.Array:
    """KL(q ‖ prior)."""
    return q.kl(prior)
