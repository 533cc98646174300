"""Partitioned variational inference (`alg:vmp`), run until it has converged or its budget is spent."""

import dataclasses
import enum
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from partita.data.shard import Partition
from partita.engines import Engine, LocalEngine
from partita.errors import InputError
from partita.families import Family
from partita.hyper.values import model_at
from partita.io.wire import equal
from partita.local.solvers import Outcome
from partita.models import Model
from partita.results.history import History
from partita.results.posterior import Posterior
from partita.server.bound import divergence, global_free_energy
from partita.server.learn import unmoved
from partita.server.membership import join
from partita.server.method import Method
from partita.server.progress import Progress
from partita.server.refusal import Reason
from partita.server.state import State, init, with_learning
from partita.server.step import Event, Rules, step
from partita.server.store import Journal
from partita.storage.checkpoint import Checkpoint


class Status(enum.Enum):
    """How a run ended."""

    CONVERGED = "converged"
    COMPLETE = "complete"
    BUDGET_SPENT = "budget spent"
    IMPROPER = "improper"
    DIVERGED = "diverged"
    STALLED = "stalled"
    TIMED_OUT = "timed out"


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
        return self._last("free_energy")

    @property
    def log_evidence(self) -> float:
        """Power EP's estimate of log p(y), from the factors' scales; NaN where the aggregation has none.

        Methods that climb the bound have that alone.
        """
        return self._last("log_evidence")

    def _last(self, name: str) -> float:
        return next((row[name] for row in reversed(self.history.rows) if name in row), float("nan"))


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
    partition: Partition | None = None,
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
    engine: Engine | None = None,
    rules: Rules | None = None,
    journal: Journal | None = None,
) -> Result:
    """Runs `alg:vmp` until the fixed-point residual is below `tolerance` nats or a budget is spent.

    Clients run in this process, on the rows of `partition`, or wherever the `engine` has them. A round is as many
    answers as there are clients; without any budget it is 100 rounds, and never more than the method's own number of
    passes. The residual is the largest KL(q_k ‖ q) among the clients' latest answers, unless the aggregation has one of
    its own. Global free energy and `metrics` are computed every `evaluate_every` steps and at the end, 0 for never: the
    free energy is then what clients have reported with their last answers, which costs nothing and lags behind. With
    `checkpoint` the run is saved every so many steps, and goes on from that file when it exists, to the same numbers
    as if it had not been interrupted, provided that method, model and data are the same: that is up to the caller. A
    `journal` may keep more. `progress` is shown on a terminal unless switched off.
    """
    engine = _engine(partition, engine, speeds)
    method.check(prior, len(engine.names))
    if partition is not None:
        check_rows(model, prior, partition)
    clients = len(engine.names)
    if communications is None and rounds is None:
        rounds = 100.0
    whole = np.inf if method.passes is None else method.passes * clients
    budget = Budget(
        np.inf if communications is None else communications,
        float(np.minimum(whole, np.inf if rounds is None else rounds * clients)),  # keeps NaN, to be refused
    )
    if seed < 0:
        raise InputError(f"A seed is not negative, as {seed} is.")
    if not (budget.communications > 0 and budget.answers > 0):
        raise InputError("The budget is empty: allow at least one communication.")
    # whoever is elsewhere may be gone for good
    rules = rules or (Rules() if partition is not None else Rules(deadline=3600.0, until=engine.now() + 86400.0))
    rules.check(method.aggregation)
    journal = journal or (Journal() if checkpoint is None else Checkpoint(checkpoint, checkpoint_every))

    engine.bind(method.recipe(model), prior)
    fresh = init(prior, engine.names, seed, method.aggregation)
    if method.learning is not None:
        fresh = with_learning(fresh, method.learning, model)
    state, history = journal.load(fresh)
    state = journal.amend(state, method.aggregation)
    first = global_free_energy(engine, prior, prior, seed, left=state.left) if evaluate_every else float("nan")
    before = history.rows[-1]["seconds"] if len(history) else 0.0
    started = time.perf_counter()

    ending = _ending(state, history, first, budget, whole, tolerance)
    with engine.at_work(), Progress(label or "PVI", min(budget), progress) as bar:
        while ending is None:
            for name in engine.names:
                state = state if name in state.names else join(state, name, method.aggregation)
            state, event = step(method, model, engine, state, rules, journal, tolerance)
            if engine.now() >= rules.until:
                ending = Status.TIMED_OUT, "The time is up."
            if not event.clients:
                amended = journal.amend(state, method.aggregation)
                if amended is not state:
                    state, ending = amended, ending or _ending(amended, history, first, budget, whole, tolerance)
                continue
            row = _row(state, event) | {"temperature": float(method.temperature)}
            last = budget.spent(state) or state.settled(tolerance)
            if evaluate_every and (last or state.turn % evaluate_every == 0):
                at = (seed, 1.0, state.left, state.hyper)
                row["free_energy"] = global_free_energy(engine, state.prior_now, state.posterior, *at)
                found = metrics(posterior_of(model, state)) if metrics else {}
                row |= {name: float(value) for name, value in found.items()}
            elif not evaluate_every and (known := np.isfinite(state.ell))[~state.gone].all():
                apart = float(divergence(state.posterior, state.prior_now))
                row["reported_free_energy"] = state.ell[known].sum() - apart
            if method.solver.estimates_evidence:
                evidence = method.aggregation.log_evidence(state.prior_now, state.holdings)
                row |= {} if evidence is None else {"log_evidence": evidence}
            row["seconds"] = before + time.perf_counter() - started
            history.append(row)
            ending = ending or _ending(state, history, first, budget, whole, tolerance)
            journal.close(state, history, ending is not None)
            state = journal.amend(state, method.aggregation)
            bar.update(state.answers if budget.answers < budget.communications else state.communications, row)
    status, message = ending
    message = " ".join([message, *history.remarks])
    if method.learning is not None and status is not Status.CONVERGED and equal(state.hyper, fresh.hyper):
        message = f"{message} {unmoved(method.learning, state)}"
    return Result(posterior_of(model, state), status, message, history, state)


def posterior_of(model: Model, state: State) -> Posterior:
    """The posterior as a user holds it, with the hyperparameters learned in their places."""
    return Posterior(model_at(model, state.hyper), state.posterior, state.hyper)


def _engine(partition: Partition | None, engine: Engine | None, speeds: Sequence[float] | None) -> Engine:
    if engine is None and partition is not None:
        return LocalEngine(partition, speeds)
    if engine is None or partition is not None or speeds is not None:
        raise InputError("Give the clients' rows, for clients in this process, or an engine that has them.")
    return engine


def check_rows(model: Model, prior: Family, partition: Partition) -> None:
    """Raises an `InputError` that names the client whose data cannot be used."""
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


def _row(state: State, event: Event) -> dict[str, Any]:
    names = state.names
    return {
        "step": state.turn,
        "communications": state.communications,
        "rounds": state.answers / len(names),
        "gradient_steps": state.gradient_steps,
        "synchronous_steps": state.synchronous_steps,
        "clock": state.clock,
        "clients": [names[k] for k in event.clients],
        "staleness": event.staleness,
        "residual": float(state.residual[~state.gone].max(initial=0.0)),
        "damping": event.damping,
        **({"hyper": {name: np.asarray(value).tolist() for name, value in state.hyper.items()}} if state.hyper else {}),
        "refused": {names[k]: refusal.sentence for k, refusal in event.refusals.items()},
        "unanswered": {names[k]: reason for k, reason in event.unanswered.items()},
        "skipped": {names[k]: rows for k, reply in event.replies.items() if (rows := int(reply.info.skipped))},
        "unsolved": {
            names[k]: outcome.sentence
            for k, reply in event.replies.items()
            if (outcome := Outcome(int(reply.info.outcome))) is not Outcome.CONVERGED
        },
    }


_REFUSED: Mapping[Reason, tuple[Status, str]] = {
    Reason.NOT_FINITE: (Status.DIVERGED, "Look at that client's rows and at the model."),
    Reason.IMPROPER: (Status.IMPROPER, "Damp more, or backtrack."),
    Reason.IMPROPER_STEP: (Status.IMPROPER, "Lower it."),
    Reason.NO_MOMENTS: (Status.IMPROPER, "Damp more, or backtrack."),
    Reason.LOWER_FREE_ENERGY: (Status.STALLED, "Start elsewhere, or let clients solve less far."),
    Reason.INCOMPLETE_ROUND: (Status.STALLED, "Look at the aggregation."),
    Reason.LEFT_OUT: (Status.STALLED, "Look at the aggregation."),
    Reason.DEFICIT: (Status.STALLED, "Widen the bounds on answers, or look at the clients' rows."),
    Reason.CHANGE: (Status.STALLED, "Widen the bounds on answers, or look at the clients' rows."),
    Reason.DOMINANCE: (Status.STALLED, "Widen the bounds on answers, or look at the clients' rows."),
    Reason.PROMINENCE: (Status.STALLED, "Widen the bounds on answers, or look at the clients' rows."),
}
"""How a run ends in which everybody's answers are refused, and what helps."""


def _ending(
    state: State, history: History, first: float, budget: Budget, whole: float, tolerance: float
) -> tuple[Status, str] | None:
    """How the run has ended, if it has. Falling free energy is what tells divergence: precisions may stay positive."""
    known = [first, *(row["free_energy"] for row in history if "free_energy" in row)]
    latest, best = known[-1], max(known)
    taking_part = set(np.flatnonzero(~state.gone).tolist())
    if not taking_part:
        return Status.STALLED, "Everybody has left. Let somebody join."
    if taking_part <= set(state.refused):
        k, refusal = next(iter(state.refused.items()))
        status, remedy = _REFUSED[refusal.reason]
        return status, f"No answer could be taken in: that of {state.names[k]} {refusal.sentence}. {remedy}"
    if len(history) and not latest > first - 10 * (1 + abs(first)) and not np.isnan(first):
        return Status.DIVERGED, f"The free energy ran away to {latest:.6g}. {_slower(state)}"
    if np.all(state.outcome[~state.gone] == Outcome.NO_MOMENTS):
        return Status.IMPROPER, "Nobody's tilted density has moments that could be matched."
    if state.settled(tolerance):
        return Status.CONVERGED, f"Every client's answer lies within {tolerance:g} nats of the posterior."
    if not budget.spent(state):
        return None
    if state.answers >= whole:
        left_out = sorted({name for _, name, _ in history.refusals})
        if left_out:
            return Status.STALLED, f"The only pass is over, and what {', '.join(left_out)} answered was refused."
        return Status.COMPLETE, "Every client has answered as often as the method asks."
    if best - latest > (best - first) / 2:
        return Status.DIVERGED, f"The free energy fell from {best:.6g} to {latest:.6g}. {_slower(state)}"
    worst = state.residual[~state.gone].max()
    if state.hyper and np.isinf(worst):
        return Status.BUDGET_SPENT, "The budget is spent before all have answered to hyperparameters as they are."
    nats = "nats, or of half the squared gradient in hyperparameters," if state.hyper else "nats"
    return Status.BUDGET_SPENT, f"The budget is spent with a residual of {worst:.3g} {nats} left."


def _slower(state: State) -> str:
    """The remedy for a free energy that falls."""
    return "Damp more, or learn hyperparameters in smaller steps." if state.hyper else "Damp more."
