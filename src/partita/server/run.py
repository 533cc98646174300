"""Runs partitioned variational inference (`alg:vmp`) until convergence or until the budget is spent."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from partita.data.shard import Partition
from partita.engines import Engine, LocalEngine
from partita.engines.base import Tasks
from partita.engines.prior import PriorEngine
from partita.errors import SettingsError
from partita.families import Family
from partita.io.wire import equal
from partita.models import Model
from partita.models.prior import OutsidePrior, base_of
from partita.results.history import History, with_error
from partita.results.posterior import Posterior
from partita.server.aggregation import Aggregation
from partita.server.arguments import check_arguments, check_companions
from partita.server.early_stopping import reported
from partita.server.learn import unmoved
from partita.server.mean_field import mean_field_check
from partita.server.membership import join, leave
from partita.server.method import Method
from partita.server.monitor import Monitor, posterior_of
from partita.server.origin import check_origin, origin, with_rows
from partita.server.rules import Rules
from partita.server.settling import same_member, settling
from partita.server.state import State, init, unanswered_columns, with_learning
from partita.server.step import ended, step
from partita.server.stopping import Budget, Ending, Status, Stopping
from partita.server.store import Requests, Store

__all__ = ["Result", "continued", "run"]

_MAY_ASK = (Status.BUDGET_SPENT, Status.STOPPED_EARLY)
"""Endings of runs that go well, at which clients may be asked what the newest posterior is worth."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The posterior of a run, how the run ended, and its history."""

    posterior: Posterior
    status: Status
    message: str
    history: History
    state: State
    settles_evidence: bool = True
    """Whether the method's estimate of log p(y) settles with its posterior; see `Aggregation`."""

    @property
    def free_energy(self) -> float:
        """The last global free energy: a lower bound on log p(y), or an estimate of one where it has an error."""
        return self._last("free_energy")

    @property
    def free_energy_error(self) -> float:
        """The standard error of `free_energy` where the model's expectation is sampled; 0 where it is computed."""
        return self._last("free_energy_error") if self._draws else 0.0

    @property
    def _draws(self) -> int:
        """By how many draws the free energy is estimated."""
        return self.posterior.model.expectation.evaluation_draws

    @property
    def log_evidence(self) -> float:
        """Power EP's estimate of log p(y), from the factors' scales; NaN if the method gives none.

        Methods that maximise the free energy have only that lower bound. It estimates log p(y) at a fixed point, so it
        is NaN of a run that has not converged, and of a method with one factor for all clients; the history has it step
        by step.
        """
        settled = self.status.arrived and self.settles_evidence
        return self._last("log_evidence") if settled else float("nan")

    def _last(self, name: str) -> float:
        return float(self.history.latest(name))

    def __repr__(self) -> str:
        clients = int(self.state.communicating.sum())
        spent = f"{clients} clients, {self.state.communications} communications"
        done = "" if self.status.arrived or self.status is Status.COMPLETE else " so far"
        value = with_error(self.free_energy, self.free_energy_error)
        kind = f"estimated with {self._draws} fresh draws" if self._draws else "a lower bound"
        known = [f"free energy {value}{done} ({kind})"] if np.isfinite(self.free_energy) else []
        known += [f"log evidence {self.log_evidence:.6g} (an estimate)"] if np.isfinite(self.log_evidence) else []
        family = f"{type(self.posterior.q).__name__} of {self.posterior.q.size()} natural parameters"
        lines = [f"Result({self.status.value}: {', '.join([spent, *known])}; {family})", self.message]
        return "\n".join(filter(None, [*lines, self.posterior.caveat()]))


def run(
    method: Method,
    model: Model,
    prior: Family | OutsidePrior,
    partition: Partition | None = None,
    *,
    rounds: float | None = None,
    communications: int | None = None,
    tolerance: float | None = 1e-6,
    seed: int = 0,
    state: State | None = None,
    engine: Engine | None = None,
    rules: Rules | None = None,
    store: Store | None = None,
    requests: Requests | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """Runs `alg:vmp` until it has converged or a budget is spent.

    Args:
        method: what is run, from `partita.methods` or composed.
        model: the likelihood.
        prior: the prior, a member of q's family; or an `OutsidePrior`, whose base is one.
        partition: the clients' rows, for clients in this process.
        rounds: how many rounds at most; a round is as many answers as there are clients. 100 where no budget is given,
            and never more than the method's own number of passes.
        communications: how many pairs of messages at most; a run whose damping follows the free energy may ask every
            client for one number more when it ends.
        tolerance: how many nats of KL(q_k ‖ q) every client's last answer may lie from the posterior when a run has
            converged; it must also be within 0.01 standard deviations of its fixed point (`distance_left`). None for
            a run that goes on until its budget is spent.
        seed: what random numbers depend on; a `state` has its own.
        state: where to go on from, such as another run's `result.state`: the budget counts from there, clients that
            have rows now join or come back, those without leave, and the method may be another one. A run that ended
            at the nearest member of a smaller family settles there if that family's prior is given.
        engine: where clients run, if not in this process.
        rules: how long to wait for clients and for how many, and what their answers must keep to.
        store: where the run is kept, such as `Checkpoint("run.npz")`. The run goes on from what is kept there, to the
            same numbers as if it had not been interrupted. What was kept of a run with another method, model or prior,
            or with other rows where they are in this process, is refused; a `state` may be adopted from it.
        requests: changes of membership that may be asked for while it runs.
        monitor: metrics, how often they are computed, progress and callbacks.

    Returns:
        The posterior, how the run ended, its history, and its last state.

    """
    check_arguments(method, model, prior, partition, seed, rounds, communications, tolerance)
    check_companions(state, engine, rules, store, requests, monitor)
    if partition is not None and engine is None:
        engine = LocalEngine(partition)
    elif partition is not None or engine is None:
        raise SettingsError("Give either a partition, for clients in this process, or an engine.")
    given, prior = prior, base_of(prior)
    if isinstance(given, OutsidePrior):
        method.check_outside()
        engine = PriorEngine(engine, given)
    store, requests, monitor = store or Store(), requests or Requests(), monitor or Monitor()
    # whoever is elsewhere may never answer
    rules = rules or (Rules() if engine.simulated else Rules(deadline=3600.0, until=engine.now() + 86400.0))
    method.check(prior, len(engine.names))
    rules.check(method.aggregation)
    recipe = method.recipe(model)
    engine.check(recipe, prior)
    engine.bind(recipe, prior)
    engine.submit_again()

    fresh = init(prior, engine.names, seed, method.aggregation)
    if method.learning is not None:
        fresh = with_learning(fresh, method.learning, model)
    fresh = with_rows(dataclasses.replace(fresh, origin=origin(method, model, given)), engine.digests())
    start = fresh if state is None else continued(state, fresh, method)
    start = dataclasses.replace(start, hosted=np.isin(start.names, engine.hosted))
    budget = Budget.of(method, start, len(engine.names), rounds, communications)
    state, history = store.load(start)
    check_origin(state, start, store)
    state = with_rows(state, engine.digests())
    state = requests.apply(state, method.aggregation)

    with engine.running(), monitor.watch(method, model, engine, budget, history) as watch:
        aggregation = method.aggregation
        stopping = Stopping(
            budget, tolerance, watch.free_energy(state), history, aggregation.guarded, aggregation.tuned, rules.early
        )
        while (ending := stopping.ending(state)) is None:
            state = _with_newcomers(state, engine.names, method.aggregation)
            state, event = step(method, model, engine, state, rules, store, requests, tolerance)
            if event.clients:
                stopping.hear(reported(state))
            over = engine.now() >= rules.until
            found = stopping.ending(state)
            last = found is not None or (over and bool(event.clients))
            if last:
                known = found is not None and (found.status.arrived or found.status in _MAY_ASK)
                state = ended(method, engine, state, ask=known and not over)
            if event.clients:
                row = watch.row(state, event, last=last)
                history.append(row)
                stopping.observe(row)
                store.close(state, history, last=stopping.ending(state) is not None)
                watch.notify(state, row)
            if over:
                ending = stopping.ending(state) or Ending(Status.TIMED_OUT, "The time is up.")
                store.close(state, history, last=True)
                break
            state = requests.apply(state, method.aggregation)

    message = " ".join([ending.message, *history.remarks])
    if method.learning is not None and not ending.status.arrived and equal(state.hyper, start.hyper):
        message = f"{message} {unmoved(method.learning, state)}"
    posterior = posterior_of(model, state)
    check = mean_field_check(posterior.model, engine, state, method.temperature)
    posterior = dataclasses.replace(posterior, mean_field=check)
    return Result(posterior, ending.status, message, history, state, method.aggregation.settles_evidence)


def continued(state: State, fresh: State, method: Method) -> State:
    """A state from which a run with other clients, or with another method, goes on.

    Factors and counts stay. Nothing is under way, and what is known of clients' last answers is of the run before.
    """
    state = settling(state, fresh.prior)
    if not same_member(state.prior, fresh.prior):
        raise SettingsError("The state belongs to a run with another prior: start without it.")
    same = _alike(state.memory, fresh.memory) and state.keeps_product == fresh.keeps_product
    if not same and not (state.keeps_product and fresh.keeps_product):
        raise SettingsError(
            f"{type(method.aggregation).__name__} cannot go on from the state of another aggregation: start without it."
        )
    heard = state.versions > 0
    resumed = method.aggregation.resumed
    memory = method.aggregation.continued(state.iterate) if same else resumed(state.iterate, heard, state.inactive)
    columns = unanswered_columns(len(state.names), {"gradients": fresh.gradients})
    unknown = {name: columns[name] for name in ("residual", "size", "outcome")}
    going_on = dataclasses.replace(state, memory=memory, **unknown, in_flight=Tasks(), arrived=(), refused={})
    going_on = dataclasses.replace(going_on, origin=fresh.origin, round_began=state.answers)
    if set(state.hyper) != set(fresh.hyper):
        going_on = dataclasses.replace(going_on, hyper=fresh.hyper, gradients=columns["gradients"])
        change = going_on.current_prior / state.current_prior
        going_on = going_on.with_iterate(method.aggregation.with_prior(going_on.iterate, change))
    if not _alike(state.learning, fresh.learning):
        going_on = dataclasses.replace(going_on, learning=fresh.learning)
    for name in state.names:
        if name not in fresh.names and name not in state.inactive_names:
            going_on = leave(going_on, name, method.aggregation)
        elif name in fresh.names and name in state.inactive_names:
            going_on = join(going_on, name, method.aggregation)
    rows = dict(zip(fresh.names, fresh.rows.tolist(), strict=True))
    going_on = with_rows(_with_newcomers(going_on, fresh.names, method.aggregation), rows)
    return dataclasses.replace(going_on, round_start=going_on.posterior)


def _alike(first: PyTree, second: PyTree) -> bool:
    """Whether two memories are of one kind: the same structure, with arrays of the same shapes."""
    leaves, trees = zip(*(jax.tree.flatten(tree) for tree in (first, second)), strict=True)
    return bool(trees[0] == trees[1]) and all(np.shape(a) == np.shape(b) for a, b in zip(*leaves, strict=True))


def _with_newcomers(state: State, names: Sequence[str], aggregation: Aggregation) -> State:
    """The state that clients of these names have joined, unless they are known already."""
    if state.names == tuple(names):
        return state
    known = set(state.names)
    for name in names:
        state = state if name in known else join(state, name, aggregation)
    return state
