"""What the server does (`alg:vmp`): it sends tasks, receives answers, and takes them in. A step is these three."""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from partita.engines import Answer, Engine, Failure, Task
from partita.errors import InputError
from partita.io.wire import equal
from partita.local.client import HELD_BACK, Reply
from partita.models import Model
from partita.server.admission import Admission, admit
from partita.server.aggregation import Aggregation
from partita.server.bound import free_energy
from partita.server.learn import learn
from partita.server.method import Method
from partita.server.refusal import Reason, Refusal
from partita.server.schedules import Turns
from partita.server.state import State
from partita.server.store import Journal

LOOK = 5.0
"""Seconds after which the server looks whether anything was asked for from outside, while it waits for clients."""
SILENT = 5
"""How many times as many answers as there are clients make up for clients that have never answered."""

LEFT_OUT = Refusal(Reason.LEFT_OUT, "was left out with those that were refused")


@dataclasses.dataclass(frozen=True)
class Event:
    """What a step did."""

    clients: tuple[int, ...]
    damping: float
    staleness: int
    refusals: dict[int, Refusal]
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

    def check(self, aggregation: Aggregation) -> None:
        """Raises an `InputError` for a setting that makes no sense, or that the aggregation cannot keep."""
        if not (self.deadline > 0 and self.pause > 0):
            raise InputError(f"A deadline ({self.deadline}) and a pause ({self.pause}) are times above 0.")
        if not 0 <= self.quorum <= 1:
            raise InputError(f"The quorum is a part of the clients from 0 to 1, not {self.quorum}.")
        self.admission.check()
        if self.admission.compares and not aggregation.keeps_product:
            raise InputError(
                f"{type(aggregation).__name__} does not keep every client's own factor, so that bounds on change, "
                "dominance and prominence cannot be judged: leave them out, or use PVI with damping."
            )


def step(
    method: Method,
    model: Model,
    engine: Engine,
    state: State,
    rules: Rules | None = None,
    journal: Journal | None = None,
    tolerance: float = 1e-6,
) -> tuple[State, Event]:
    """One pass through the body of `alg:vmp`, and a step in ε where it is learned; the engine is bound already.

    Raises nothing for what a client answers: a bad answer is refused. Answers within the tolerance have settled.
    """
    journal, rules = journal or Journal(), rules or Rules()
    state = dispatch(method, state, engine.away(state.names))
    journal.keep(state)
    state, unanswered, whole = gather(method, engine, state, rules, journal)
    if not whole:
        return state, Event((), 0.0, 0, {}, {}, unanswered)
    new, event = take_in(method, engine, state, rules.admission)
    for task, _ in state.arrived:
        if task.client in event.refusals:
            engine.tell(task, event.refusals[task.client].sentence)
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
    method: Method, engine: Engine, state: State, rules: Rules, journal: Journal
) -> tuple[State, dict[int, str], bool]:
    """② Clients: each maximises its local free energy and replies with the change of its factor.

    Waits until as many have answered as the schedule awaits, or the others are beyond the deadline, or have failed, and
    the quorum is there. Those are left out; the reasons are given. While it is not there, they are asked again. Last
    comes whether that was achieved: once the time is up, or something is asked for from outside, answers and tasks are
    left for another time. Answers that wait for others are kept on the way; the last one is kept with what the step
    makes of it.
    """
    unanswered = dict[int, str]()
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
                engine.submit(task)
            again = np.inf
        due = min(engine.posted(task.id) for task in state.in_flight) + rules.deadline
        coming = engine.next(min(due, again, rules.until, engine.now() + LOOK) - engine.now())
        if isinstance(coming, Answer):
            state = receive(state, coming)
            if state.in_flight and len(state.arrived) < awaited:
                journal.keep(state)
        elif isinstance(coming, Failure):
            failed = [task for task in state.in_flight if task.id == coming.task]
            state = leave_out(failed, coming.reason)
            if coming.final and any(task.id == coming.task for task in state.in_flight):
                raise InputError(f"{failed[0].name} {coming.reason}")
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


def take_in(method: Method, engine: Engine, state: State, admission: Admission) -> tuple[State, Event]:
    """③ Server: take the changes in, damped."""
    clients = len(state.factors)
    replies = {
        task.client: Reply(reply.delta, *jax.device_get((reply.info, reply.gradient))) for task, reply in state.arrived
    }
    refusals = admission.refusals([(task, replies[task.client]) for task, _ in state.arrived])
    deltas = {k: replies[k].delta for k in sorted(replies) if k not in refusals}

    bounds = admission if _comparable(state, replies) else Admission()
    held = {k for k, version in enumerate(state.versions) if version > 0 and state.keeps_product}
    # factors from before there was anybody to compare them with are judged as soon as there is
    judged = held & deltas.keys() if _comparable(state, ()) else held
    climbed = functools.partial(free_energy, method, engine, state)
    taken, beyond, divided = admit(method.aggregation, bounds, state.holdings, deltas, judged, held, climbed)
    refusals |= beyond | taken.refusals
    holdings = taken.holdings
    for k in refusals:
        holdings = method.aggregation.without_estimate(holdings, k)

    accepted = set(deltas) - set(refusals) if taken.damping > 0 else set()
    residual, age, ell = state.residual.copy(), state.age + 1, state.ell.copy()
    outcome, gradients = state.outcome.copy(), {name: column.copy() for name, column in state.gradients.items()}
    elsewhere = {
        task.client
        for task, _ in state.arrived
        if method.learning is not None and method.learning.waits and not equal(task.hyper, state.hyper)
    }
    for k, reply in replies.items():
        own = float(reply.info.residual) if taken.residual is None else taken.residual
        residual[k] = own if k in accepted and int(reply.info.outcome) not in HELD_BACK else np.inf
        outcome[k] = int(reply.info.outcome)
        age[k], ell[k] = 0, reply.info.ell if np.isfinite(reply.info.ell) else ell[k]
        for name, column in gradients.items() if k in accepted else ():
            column[k] = reply.gradient[name]
    residual[[*divided, *elsewhere]] = np.inf
    for column in gradients.values():
        column[list(divided)] = np.nan
    others = {k: refusal for k, refusal in state.refused.items() if k not in replies}
    new = dataclasses.replace(
        state,
        posterior=holdings.posterior,
        factors=tuple(holdings.factors[k] for k in range(clients)),
        memory=holdings.memory,
        versions=tuple(version + (k in accepted | divided) for k, version in enumerate(state.versions)),
        residual=residual,
        age=age,
        ell=ell,
        outcome=outcome,
        gradients=gradients,
        in_flight=tuple(task for task in state.in_flight if task.client not in divided),
        arrived=(),
        turn=state.turn + 1,
        updates=state.updates + (holdings.posterior is not state.posterior),
        answers=state.answers + len(replies),
        communications=state.communications + len(replies) + taken.trials * clients,
        gradient_steps=state.gradient_steps + sum(int(reply.info.steps) for reply in replies.values()),
        synchronous_steps=state.synchronous_steps + max((int(r.info.steps) for r in replies.values()), default=0),
        refused={} if accepted else {**{k: refusals.get(k, LEFT_OUT) for k in replies}, **others},
    )
    staleness = max((state.updates - task.updates for task, _ in state.arrived), default=0)
    return new, Event(tuple(replies), taken.damping, staleness, refusals, replies, {})


def _comparable(state: State, replies: Collection[int]) -> bool:
    """Whether there is somebody to compare an answer with: everybody has been heard.

    Some may never come: then most of them, and many answers, do.
    """
    taking_part = set(np.flatnonzero(~state.gone).tolist())
    heard = taking_part & ({k for k, version in enumerate(state.versions) if version > 0} | set(replies))
    many = state.answers + len(replies) >= SILENT * len(state.names)
    return heard == taking_part or (many and 2 * len(heard) > len(taking_part))
