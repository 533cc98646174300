"""What the server does (`alg:vmp`): it sends tasks, collects answers, and aggregates them. A step is these three."""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Bool

from partita.engines.base import Answer, Engine, Failure, Task
from partita.errors import SettingsError
from partita.families import Family
from partita.families.factor import Factor
from partita.io.wire import equal
from partita.local.client import RESIDUAL_UNDEFINED, Reply
from partita.models import Model
from partita.numerics.compiled import Compiled
from partita.server.admission import Admission, Admitted, admit
from partita.server.aggregation import FreeEnergy, Report
from partita.server.bound import free_energy
from partita.server.convergence import measured, unmeasured
from partita.server.evidence import with_masses
from partita.server.learn import learn
from partita.server.method import Method
from partita.server.refusal import Reason, Refusal
from partita.server.rules import Rules
from partita.server.schedules import ScheduleView
from partita.server.state import State
from partita.server.store import Requests, Store

__all__ = ["LEFT_OUT", "Event", "aggregate", "collect", "dispatch", "ended", "receive", "step"]

_POLL_SECONDS = 5.0
"""How often the server looks for requests from outside while it waits for clients."""
_TOGETHER_SECONDS = 0.1
"""For how long answers that wait for others are taken in at least before they are kept."""
_SHARE = 10.0
"""And how many times as long as the last writing took, so that most of the time goes into answers."""
_BOUNDS_AFTER_ROUNDS = 5
"""After how many rounds of answers bounds are applied though some clients have never answered."""
LEFT_OUT = Refusal(Reason.LEFT_OUT, "was left out with those that were refused")


@dataclasses.dataclass(frozen=True)
class Event:
    """The report of one server step."""

    clients: tuple[int, ...]
    """Who answered; nobody where the step was interrupted."""
    damping: float
    staleness: int
    """How many updates the posterior had seen since the oldest of the answers' was sent."""
    refusals: dict[int, Refusal]
    replies: dict[int, Reply]
    unanswered: dict[int, str]
    """The clients that were sent a task and were skipped in this step, with the reason."""
    returned: bool = False
    """Whether the answers were set aside, and the step before was taken again with more damping."""


def step(
    method: Method,
    model: Model,
    engine: Engine,
    state: State,
    rules: Rules | None = None,
    store: Store | None = None,
    requests: Requests | None = None,
    tolerance: float | None = 1e-6,
) -> tuple[State, Event]:
    """One iteration of `alg:vmp`, then a hyperparameter step if any are learned; the engine must be bound.

    An invalid answer is refused; it never raises. An answer within `tolerance` nats counts as converged.
    """
    rules, store, requests = rules or Rules(), store or Store(), requests or Requests()
    state = dispatch(method, state, engine.away(state.names))
    store.keep(state)
    state, unanswered, complete = collect(method, engine, state, rules, store.keep, requests.pending)
    if not complete:
        return state, Event((), 0.0, 0, {}, {}, unanswered)
    new, event = aggregate(method, engine, state, rules.admission)
    for task, _ in state.arrived:
        if task.client in event.refusals:
            engine.notify(task, event.refusals[task.client].sentence)
    if method.learning is not None:
        new = learn(method, method.learning, model, engine, new, len(event.clients), tolerance)
    new = unmeasured(new) if event.returned else measured(new)
    return new, dataclasses.replace(event, unanswered=unanswered)


def dispatch(method: Method, state: State, away: Bool[np.ndarray, " m"]) -> State:
    """① Server: select clients, and send them the posterior. Turns of clients that are away are skipped.

    A round that is under way goes on first.
    """
    if method.schedule.answers_per_step is None and (state.in_flight or state.arrived):
        return state
    clients = len(state.factors)
    busy = away | state.inactive
    # a hosted client answers at once: it waits until as many answers of others have come as are in flight
    busy |= state.hosted & (state.age < len(state.in_flight))
    busy[state.in_flight.clients()] = True
    busy[[task.client for task, _ in state.arrived]] = True
    for turn in range(state.turn, state.turn + 2 * clients):
        selected = method.schedule.select(ScheduleView(turn, state.size, state.age, busy, state.seed))
        selected = [k for k in selected if not busy[k]]
        if selected:
            break
    tasks, moved_since = [state.task(k, _id(turn, k)) for k in selected], state.moved_since.copy()
    moved_since[selected] = 0.0
    turn, in_flight = turn if selected else state.turn, state.in_flight.added(tasks)
    return dataclasses.replace(state, turn=turn, in_flight=in_flight, moved_since=moved_since)


def _id(turn: int, client: int) -> str:
    """A task's id."""
    return f"{turn}.{client}"


def _under_way(state: State, id: str) -> Task | None:
    """The task in flight with this id, if there is one: the id says whose it is."""
    client = id.rpartition(".")[2]
    task = state.in_flight.of(int(client)) if client.isdecimal() else None
    return task if task is not None and task.id == id else None


def collect(
    method: Method,
    engine: Engine,
    state: State,
    rules: Rules,
    keep: Callable[[State], None],
    interrupted: Callable[[], bool],
) -> tuple[State, dict[int, str], bool]:
    """② Clients: each maximises its local free energy and replies with the change of its factor.

    Waits until as many have answered as the schedule awaits; or, where the quorum is met, until the others have failed
    or exceeded the deadline. Those are left out, with the reason. Without a quorum they are asked again. Returned last
    is whether the step can go on: when the time is up, or there is a request, answers and tasks are left for the
    next step. Answers that wait for others are kept as they come, those that come fast together; the
    last ones are kept with what the step makes of them.
    """
    unanswered = dict[int, str]()
    awaited = min(method.schedule.answers_per_step or np.inf, len(state.in_flight) + len(state.arrived))
    needed = int(rules.quorum * awaited)
    retry_at, pause = -np.inf, _TOGETHER_SECONDS

    def leave_out(tasks: Sequence[Task], reason: str) -> State:
        """The state without these tasks, if the quorum can be met without them."""
        if len(state.arrived) + len(state.in_flight) - len(tasks) < needed:
            return state
        unanswered.update({task.client: reason for task in tasks})
        return dataclasses.replace(state, in_flight=state.in_flight.without([task.client for task in tasks]))

    while state.in_flight and len(state.arrived) < awaited and engine.now() < rules.until and not interrupted():
        timed = state.in_flight if rules.deadline < np.inf else ()
        late = [task for task in timed if engine.now() >= engine.sent_at(task.id) + rules.deadline]
        for task in late:
            engine.cancel(task.id)
        if late:
            engine.submit_again()
            state, retry_at = leave_out(late, "did not answer in time"), engine.now()
            continue
        if engine.now() >= retry_at:
            engine.submit_all(state.in_flight)
            retry_at = np.inf
        due = min((engine.sent_at(task.id) for task in timed), default=np.inf) + rules.deadline
        received = engine.next(min(due, retry_at, rules.until, engine.now() + _POLL_SECONDS) - engine.now())
        if isinstance(received, Answer):
            state = receive(state, _together(engine, received, awaited - len(state.arrived), pause))
            if state.in_flight and len(state.arrived) < awaited:
                began = time.perf_counter()
                keep(state)
                pause = max(_TOGETHER_SECONDS, _SHARE * (time.perf_counter() - began))
        elif isinstance(received, Failure):
            engine.submit_again()
            failed = _under_way(state, received.task)
            if failed is not None:
                state = leave_out([failed], received.reason)
                if received.final and state.in_flight.of(failed.client) is not None:
                    raise SettingsError(f"{failed.name} {received.reason}")
            retry_at = min(retry_at, engine.now() + rules.pause)
    if not state.arrived and not state.in_flight:
        engine.next(min(rules.pause, max(rules.until - engine.now(), 0.0)))
    return state, unanswered, not state.in_flight or len(state.arrived) >= awaited


def _together(engine: Engine, first: Answer, most: float, seconds: float) -> list[Answer]:
    """An answer with those that come within some time after it, so that they are kept by one writing."""
    answers, until = [first], time.perf_counter() + seconds
    while len(answers) < most and engine.ready and time.perf_counter() < until:
        answer = engine.next(0.0)
        if not isinstance(answer, Answer):
            break
        answers.append(answer)
    return answers


def receive(state: State, answers: Sequence[Answer]) -> State:
    """The state with answers that have arrived.

    One to a task that is not under way, or to another version of the client's factor, is repeated or stale, and is
    ignored.
    """
    arrived = dict[int, tuple[Task, Reply]]()
    for answer in answers:
        task = _under_way(state, answer.task)
        if task is not None and task.version == state.versions[task.client] and task.client not in arrived:
            arrived[task.client] = task, answer.reply
    if not arrived:
        return state
    return dataclasses.replace(
        state,
        in_flight=state.in_flight.without(arrived),
        arrived=(*state.arrived, *arrived.values()),
        clock=max(state.clock, *(answer.time for answer in answers if _under_way(state, answer.task) is not None)),
    )


def aggregate(method: Method, engine: Engine, state: State, admission: Admission) -> tuple[State, Event]:
    """③ Server: multiply the changes into posterior and factors, damped. A refused answer changes nothing."""
    said = jax.device_get([(reply.info, reply.gradient) for _, reply in state.arrived])
    replies = {task.client: Reply(reply.delta, *own) for (task, reply), own in zip(state.arrived, said, strict=True)}
    trusted = set(np.flatnonzero(state.hosted).tolist())
    invalid = admission.refusals([(task, replies[task.client]) for task, _ in state.arrived], trusted)
    deltas = {k: replies[k].delta for k in sorted(replies) if k not in invalid}
    if state.keeps_product:
        deltas |= {
            task.client: _rebased(deltas[task.client], task.factor, state.factors[task.client])
            for task, _ in state.arrived
            if task.client in deltas and _moved(state, task)
        }

    bounds, held, judged = Admission(), set[int](), set[int]()
    if admission.compares and _bounds_apply(state, replies):
        held = set(np.flatnonzero(state.versions).tolist()) if state.keeps_product else set()
        # factors aggregated before the bounds applied are checked as soon as the bounds apply
        bounds, judged = admission, held & deltas.keys() if _bounds_apply(state, ()) else held
    # an invalid answer reports nothing, but that the likelihood is not finite at the posterior
    believed = {
        k: reply for k, reply in replies.items() if k not in invalid or np.isneginf(_number(float(reply.info.ell)))
    }
    climbed = _climbed(method, engine, state, believed)
    admitted = admit(
        method.aggregation, bounds, state.iterate, deltas, judged - trusted, held - trusted, climbed, trusted
    )
    if _none_finite(state, replies, invalid):
        admitted = admitted._replace(taken=method.aggregation.lost(state.iterate, state.current_prior))
    refusals = invalid | admitted.refusals | admitted.taken.refusals
    accepted = set(deltas) - set(refusals) if admitted.taken.damping > 0 else set()

    iterate = admitted.taken.iterate
    if method.solver.estimates_evidence and state.keeps_product and admitted.taken.damping < 1:
        iterate = with_masses(state.iterate, iterate, {k: deltas[k] for k in accepted})
    for k in refusals:
        iterate = method.aggregation.without_estimate(iterate, k)
    # answers that were formed with other hyperparameters than those that are learned now
    current = method.learning is not None and method.learning.needs_current
    stale = {task.client for task, _ in state.arrived if current and not equal(task.hyper, state.hyper)}
    # nobody has answered to the posterior that a return leads to
    stale |= set(replies) if admitted.taken.returned else set()
    sizes = {
        task.client: method.schedule.measure.size(task.posterior, replies[task.client])
        for task, _ in state.arrived
        if task.client in accepted
    }
    new = _recorded(state.with_iterate(iterate), replies, accepted, stale, admitted, sizes)
    steps = [int(reply.info.steps) for reply in replies.values()]
    others = {k: refusal for k, refusal in state.refused.items() if k not in replies}
    own = {k: refusal for k, refusal in refusals.items() if k in replies}
    # after the first of the server's own answers the clients may fare better, after others they do not
    heartening = {k for k in accepted if k not in trusted or not state.versions[k]}
    refused = own | {k: LEFT_OUT for k in replies if k not in own and k not in accepted} | others
    new = dataclasses.replace(
        new,
        in_flight=state.in_flight.without(admitted.divided),
        arrived=(),
        turn=state.turn + 1,
        answers=state.answers + len(replies),
        communications=state.communications
        + len(replies.keys() - trusted)
        + admitted.taken.trials * (len(state.factors) - len(trusted)),
        gradient_steps=state.gradient_steps + sum(steps),
        synchronous_steps=state.synchronous_steps + max(steps, default=0),
        refused={} if heartening or admitted.taken.returned else refused,
    )
    staleness = max((state.updates - task.updates for task, _ in state.arrived), default=0)
    taken = admitted.taken
    return new, Event(tuple(replies), taken.damping, staleness, refusals, replies, {}, taken.returned)


def _none_finite(state: State, replies: Mapping[int, Reply], invalid: Mapping[int, Refusal]) -> bool:
    """Whether every client's last answer since one was accepted was not finite: the posterior is to blame, not rows."""
    latest = {k: refusal for k, refusal in state.refused.items() if k not in replies} | dict(invalid)
    wrong = {k for k, refusal in latest.items() if refusal.reason is Reason.NOT_FINITE}
    return bool(invalid) and set(np.flatnonzero(state.communicating).tolist()) <= wrong


def _number(ell: float) -> float:
    """What a client expects; −∞ if it is no number."""
    return -np.inf if np.isnan(ell) else ell


def _moved(state: State, task: Task) -> bool:
    """Whether the client's factor is another one than when the task was sent."""
    return task.updates != state.updates and not equal(task.factor, state.factors[task.client])


@Compiled
def _rebased(delta: Factor, sent: Factor, held: Factor) -> Factor:
    """A change of the factor that was sent as one of the factor that is held now, to the same new factor."""
    return delta * (sent / held)


def ended(method: Method, engine: Engine, state: State, ask: bool) -> State:
    """The state that a run returns when it ends here; if it may `ask`, clients say what the newest posterior is worth.

    That takes one communication per client, of one number.
    """
    climbed, asked = _climbed(method, engine, state, {}), list[Family]()

    def counted(q: Family) -> float:
        asked.append(q)
        return climbed(q)

    final = method.aggregation.final(state.iterate, climbed._replace(ask=counted) if ask else None)
    ended = state if final.posterior is state.posterior else state.with_iterate(final)
    return dataclasses.replace(ended, communications=state.communications + len(asked) * int(state.communicating.sum()))


def _climbed(method: Method, engine: Engine, state: State, replies: Mapping[int, Reply]) -> FreeEnergy:
    """The free energy that the aggregation climbs, with what these replies say of it."""
    ask = functools.partial(free_energy, method, engine, state)
    sent = {task.client: (task.posterior, task.updates == state.updates) for task, _ in state.arrived}
    reported = {
        k: Report(_number(float(reply.info.ell)), float(reply.info.ell_variance), *sent[k])
        for k, reply in replies.items()
    }
    return FreeEnergy(ask, state.current_prior, method.temperature, reported, state.inactive)


def _recorded(
    state: State,
    replies: Mapping[int, Reply],
    accepted: Collection[int],
    stale: Collection[int],
    admitted: Admitted,
    sizes: Mapping[int, float],
) -> State:
    """The state with what the clients' answers say of each of them; `sizes` has those that were accepted."""
    divided, common = list(admitted.divided), admitted.taken.residual
    known = {name: getattr(state, name) for name in ("versions", "residual", "last_turn", "outcome", "gradients")}
    known |= {name: getattr(state, name) for name in ("ell", "ell_variance", "moved", "moved_since", "size")}
    columns = jax.tree.map(np.copy, known)
    clients, infos = list(replies), [reply.info for reply in replies.values()]
    outcomes = np.array([int(info.outcome) for info in infos], int)
    residual = np.array([float(info.residual) for info in infos]) if common is None else np.full(len(infos), common)
    usable = np.isin(clients, list(accepted)) & ~np.isin(outcomes, RESIDUAL_UNDEFINED)
    columns["residual"][clients] = np.where(usable, residual, np.inf)
    size = np.array([sizes.get(k, np.nan) for k in clients])
    columns["size"][clients] = np.where(usable & ~np.isnan(size), size, np.inf)
    columns["moved"][clients] = state.moved_since[clients]  # of other answers, while they formed theirs
    step = np.inf if divided else columns["residual"][list(accepted)].max(initial=0.0)
    for name in ("moved", "moved_since"):
        columns[name] = np.maximum(columns[name], step)
    columns["outcome"][clients] = outcomes
    reported = [(k, info) for k, info in zip(clients, infos, strict=True) if np.isfinite(info.ell)]
    columns["ell"][[k for k, _ in reported]] = [info.ell for _, info in reported]
    columns["ell_variance"][[k for k, _ in reported]] = [info.ell_variance for _, info in reported]
    for name, column in columns["gradients"].items():
        for k in accepted:
            column[k] = replies[k].gradient[name]
        column[divided] = np.nan
    columns["last_turn"][clients] = state.turn + 1
    columns["versions"][[*accepted, *divided]] += 1
    for name in ("residual", "size"):
        columns[name][[*divided, *stale]] = np.inf
    return dataclasses.replace(state, **columns)


def _bounds_apply(state: State, replies: Collection[int]) -> bool:
    """Whether there are others to compare an answer with: every active client has answered.

    Some may never do: then more than half of them, and several rounds of answers, suffice.
    """
    known = state.versions > 0
    known[list(replies)] = True
    active, heard = int(state.active.sum()), int((known & state.active).sum())
    many = state.answers + len(replies) >= _BOUNDS_AFTER_ROUNDS * len(state.names)
    return heard == active or (many and 2 * heard > active)
