"""What is looked at while a run goes on: free energy, metrics, a progress bar, and whatever callbacks do."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partita.engines.base import Engine
from partita.hyper.values import model_given
from partita.inputs import check_flag, check_function, check_kind, check_whole
from partita.local.solvers import Outcome
from partita.models import Model
from partita.results.history import History
from partita.results.posterior import Posterior
from partita.server.aggregation.base import divergence
from partita.server.bound import Evaluation, evaluated
from partita.server.convergence import distance_left
from partita.server.early_stopping import reported
from partita.server.mean_field import known_check
from partita.server.method import Method
from partita.server.progress import Progress
from partita.server.state import State
from partita.server.step import Event
from partita.server.stopping import Budget

__all__ = ["Callback", "Metrics", "Monitor", "posterior_of"]

Metrics = Callable[[Posterior], Mapping[str, float]]
Callback = Callable[[State, Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Monitor:
    """What is evaluated during a run, and who is notified."""

    metrics: Metrics | None = None
    """A function of the posterior that returns numbers by name, which become columns of the history."""
    every: int = 1
    """After how many steps free energy and metrics are computed, and at the end; 0 for never.

    The free energy is then what clients have reported with their last answers, which costs nothing and is stale.
    """
    progress: bool | None = None
    """Whether a progress bar is shown; where there is a terminal when None."""
    label: str = "PVI"
    """What the progress bar is called."""
    callbacks: tuple[Callback, ...] = ()
    """Called after every step with the state and the new row of the history; what they raise ends the run."""

    def __post_init__(self) -> None:
        check_whole("number of steps between two evaluations, every,", self.every, 0)
        if self.metrics is not None:
            check_function("metrics", self.metrics)
        if self.progress is not None:
            check_flag("setting progress", self.progress)
        check_kind("label", self.label, str, "give one")
        check_kind("callbacks", self.callbacks, tuple, "give (function,)")
        for callback in self.callbacks:
            check_function("callback", callback)

    @contextlib.contextmanager
    def watch(
        self, method: Method, model: Model, engine: Engine, budget: Budget, history: History
    ) -> Iterator["_Watch"]:
        """What makes the rows of a run's history."""
        with Progress(self.label, min(budget.answers, budget.communications), self.progress) as bar:
            earlier = history.rows[-1]["seconds"] if len(history) else 0.0
            yield _Watch(self, method, model, engine, budget, bar, time.perf_counter() - earlier)


@dataclasses.dataclass
class _Watch:
    """Makes the rows of one run's history."""

    monitor: Monitor
    method: Method
    model: Model
    engine: Engine
    budget: Budget
    bar: Progress
    started: float
    """When it would have begun without pauses between sittings."""

    def free_energy(self, state: State) -> Evaluation:
        """F of the prior, with which a run is compared; NaN where the free energy is never computed."""
        if not self.monitor.every:
            return Evaluation(float("nan"), 0.0)
        return evaluated(self.engine, state, state.prior, state.prior)

    def row(self, state: State, event: Event, last: bool) -> dict[str, Any]:
        """The history's row after a step; on the last one everything is computed that is computed at all."""
        row = _counts(state, event) | {"temperature": float(self.method.temperature)}
        if self.monitor.every and (last or state.turn % self.monitor.every == 0):
            at = (state.current_prior, state.posterior.nearest(), state.hyper)
            row |= self._with_error("free_energy", *evaluated(self.engine, state, *at))
            found = self.monitor.metrics(posterior_of(self.model, state)) if self.monitor.metrics else {}
            row |= {name: float(value) for name, value in found.items()}
        elif not self.monitor.every and (known := np.isfinite(state.ell))[state.active].all():
            apart = float(divergence(state.posterior, state.current_prior)) + float(state.posterior.gap or 0.0)
            error = np.sqrt(state.ell_variance[known].sum())
            row |= self._with_error("reported_free_energy", state.ell[known].sum() - apart, error)
        if self.method.solver.estimates_evidence:
            evidence = self.method.aggregation.log_evidence(state.current_prior, state.iterate)
            row |= {} if evidence is None else {"log_evidence": evidence}
        row["seconds"] = time.perf_counter() - self.started
        fewer = self.budget.answers < self.budget.communications
        self.bar.update(state.answers if fewer else state.communications, row)
        return row

    def _with_error(self, name: str, value: float, error: float) -> dict[str, float]:
        """A column, and that of its standard error where it is estimated by draws."""
        sampled = not self.model.expectation.deterministic
        return {name: value} | ({f"{name}_error": float(error)} if sampled else {})

    def notify(self, state: State, row: Mapping[str, Any]) -> None:
        """Calls the callbacks."""
        for callback in self.monitor.callbacks:
            callback(state, row)


def posterior_of(model: Model, state: State) -> Posterior:
    """The user-facing posterior, with the learned hyperparameters in the model."""
    model, q = model_given(model, state.hyper), state.posterior.returned
    return Posterior(model, q, state.hyper, mean_field=known_check(model, state))


def _counts(state: State, event: Event) -> dict[str, Any]:
    """What a step did, as a row of the history."""
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
        "residual": state.worst_residual,
        "distance_left": distance_left(state),
        "damping": event.damping,
        **reported(state),
        "returned": event.returned,
        **({"hyper": {name: np.asarray(value).tolist() for name, value in state.hyper.items()}} if state.hyper else {}),
        "refused": {names[k]: refusal.sentence for k, refusal in event.refusals.items()},
        "unanswered": {names[k]: reason for k, reason in event.unanswered.items()},
        "skipped": {names[k]: rows for k, reply in event.replies.items() if (rows := int(reply.info.skipped))},
        "unconverged": {
            names[k]: outcome.sentence
            for k, reply in event.replies.items()
            if (outcome := Outcome(int(reply.info.outcome))) is not Outcome.CONVERGED
        },
    }
