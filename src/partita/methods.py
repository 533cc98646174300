"""Named methods: each a composition of a schedule, an aggregation, a context and a solver.

`fit` runs any of them by name.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import optax

from partita.data.shard import Partition
from partita.errors import SettingsError, unknown
from partita.expectations import Grid, MonteCarlo
from partita.families import Family
from partita.hyper import learning
from partita.hyper.learning import How
from partita.local.context import Prior, Proximal, SplitPrior, Undeleted
from partita.local.solvers import MomentMatching, NaturalGradient, Newton, PowerEP, Solver
from partita.models import Model
from partita.server.aggregation import (
    Anticipating,
    Averaging,
    Backtracking,
    Damped,
    DoubleLoop,
    Incremental,
    Mean,
    ServerOptimiser,
    Shared,
    StochasticLoop,
    agile_adam,
)
from partita.server.method import Method
from partita.server.run import Result, run
from partita.server.schedules import Asynchronous, Order, RandomSubset, Schedule, Sequential, Synchronous

_NEWTON = Newton()
_SCHEDULES: Mapping[str, Schedule] = {
    "sequential": Sequential(),
    "synchronous": Synchronous(),
    "asynchronous": Asynchronous(),
}
Optimiser = Callable[..., optax.GradientTransformation]


def sequential(
    solver: Solver = _NEWTON,
    order: Order = "fixed",
    damping: float | None = 1.0,
    backtracking: bool = False,
    anticipating: bool = False,
    start: Family | None = None,
) -> Method:
    """Sequential PVI (`sec:pvi:pvi_flavours`): one client at a time, by default undamped.

    With `backtracking` the damping is halved until the free energy does not fall; with `anticipating` the missing
    factors of clients that have not answered yet are estimated during the first pass.
    """
    product = Backtracking(damping, watch_free_energy=True) if backtracking else Damped(damping)
    return Method(solver, Sequential(order), Anticipating(product) if anticipating else product, start=start)


def synchronous(
    solver: Solver = _NEWTON,
    damping: float | None = None,
    backtracking: bool = False,
    start: Family | None = None,
) -> Method:
    """Synchronous PVI (`sec:pvi:pvi_flavours`): all clients in parallel, by default with damping 1/M.

    With `backtracking` the damping is halved until the free energy does not fall.
    """
    product = Backtracking(damping, watch_free_energy=True) if backtracking else Damped(damping)
    return Method(solver, Synchronous(), product, start=start)


def asynchronous(solver: Solver = _NEWTON, damping: float | None = None, start: Family | None = None) -> Method:
    """Asynchronous PVI (`sec:pvi:pvi_flavours`): each answer is aggregated on arrival, by default with damping 1/M."""
    return Method(solver, Asynchronous(), Damped(damping), start=start)


def power_ep(
    alpha: float = 0.5,
    schedule: Literal["sequential", "synchronous", "asynchronous"] = "sequential",
    damping: float | None = None,
    passes: int = 100,
    start: Family | None = None,
) -> Method:
    """Power EP (`alg:pep`) of a generalised linear model, with a site for every row.

    A visit iterates over the client's rows until its sites converge, at most `passes` times. The default damping is 1
    for the sequential schedule and 1/M otherwise. α → 0 is PVI.
    """
    if schedule not in _SCHEDULES:
        raise unknown("schedule", schedule, _SCHEDULES)
    if damping is None and schedule == "sequential":
        damping = 1.0
    return Method(PowerEP(alpha=alpha, max_steps=passes), _SCHEDULES[schedule], Damped(damping), start=start)


def expectation_propagation(
    schedule: Literal["sequential", "synchronous", "asynchronous"] = "sequential",
    damping: float | None = None,
    passes: int = 100,
    start: Family | None = None,
) -> Method:
    """Expectation propagation (Minka 2001): power EP with α = 1."""
    return power_ep(1.0, schedule, damping, passes, start)


def double_loop(alpha: float = 0.5, points: int = 20) -> Method:
    """Power EP with clients as sites by a double loop (Hasenclever et al. 2017), which converges without damping.

    For any model of up to three parameters; moments are computed on a grid of `points` nodes per parameter.
    """
    return Method(MomentMatching(alpha=alpha, rule=Grid(points)), Synchronous(), DoubleLoop(alpha))


def snep(
    alpha: float = 0.5, samples: int = 100, step: float = 0.3, outer: float = 0.1, participants: int | None = None
) -> Method:
    """Stochastic natural-gradient EP (Hasenclever et al. 2017): the double loop in small steps, from noisy moments.

    For any model: moments are importance-weighted averages over `samples` draws from the posterior, with a bias of
    about 1/samples. In each round `participants` random clients answer, or all.
    """
    solver = MomentMatching(alpha=alpha, rule=MonteCarlo(samples), max_steps=1)
    schedule = Synchronous() if participants is None else RandomSubset(participants)
    return Method(solver, schedule, StochasticLoop(alpha, step, outer))


def stochastic_power_ep(
    alpha: float = 0.5,
    damping: float | None = None,
    order: Order = "random",
    participants: int = 1,
    rows: bool = True,
    start: Family | None = None,
) -> Method:
    """Stochastic power EP (`alg:spep`; Li et al. 2015): one tied factor for all clients, damped by ρ (1/M if None).

    Memory does not grow with the number of clients. One client at a time answers, or `participants` random ones. With
    `rows` every row has a site, which needs a generalised linear model; otherwise a client's rows are one site, for any
    model of up to three parameters. α → 0 is mini-batch global VI with natural gradients (`prop:sep`).
    """
    solver = PowerEP(alpha=alpha, max_steps=1, in_turn=False) if rows else MomentMatching(alpha=alpha)
    schedule = Sequential(order) if participants == 1 else RandomSubset(participants)
    return Method(solver, schedule, Shared(damping), Prior(rescaled=True), start=start)


def global_vi(optimiser: Optimiser = optax.adam, learning_rate: float = 1e-2, start: Family | None = None) -> Method:
    """Global VI without pooling rows (`prop:local-global-fp`, Ashman et al. 2022): a round is one optimiser step.

    Clients reply with one undamped fixed-point change; their sum is ∇_μ F, and the server takes the step. The iterates
    are those of the optimiser on pooled rows, whatever the number of clients.
    """
    return Method(NaturalGradient(), Synchronous(), ServerOptimiser(optimiser, learning_rate, start))


def stochastic_global_vi(
    optimiser: Optimiser = optax.adam,
    learning_rate: float = 1e-2,
    order: Order = "random",
    start: Family | None = None,
) -> Method:
    """Stochastic global VI (`sec:experiments`, `eq:stoch-global`; Hoffman et al. 2013): a step on one client's rows.

    They are weighted by N/N_k. The gradient is biased if clients' sizes differ, since all are visited equally often.
    """
    server = ServerOptimiser(optimiser, learning_rate, start)
    return Method(NaturalGradient(), Sequential(order), server, Prior(rescaled=True))


def incremental_vi(
    optimiser: Optimiser = agile_adam,
    learning_rate: float = 1e-3,
    gain: float = 0.5,
    participants: int = 1,
    start: Family | None = None,
) -> Method:
    """Incremental global VI: a server-side optimiser on the sum of all clients' last gradients (SAG/SAGA).

    One client at a time in random order, or `participants` random ones. It costs clients as much as stochastic global
    VI and avoids its noise and bias with many heterogeneous clients; see `Incremental`.
    """
    schedule = Sequential("random") if participants == 1 else RandomSubset(participants)
    return Method(NaturalGradient(), schedule, Incremental(optimiser, learning_rate, gain, start))


def bcm_same(solver: Solver = _NEWTON, start: Family | None = None) -> Method:
    """The Bayesian committee machine in which every client has the whole prior (`sec:experiments`; Tresp 2000).

    One round of undamped synchronous PVI.
    """
    return Method(solver, Synchronous(), Damped(), Prior(), start=start, passes=1)


def bcm_split(solver: Solver = _NEWTON, start: Family | None = None) -> Method:
    """The Bayesian committee machine in which a client has the share p^(N_k/N) of the prior (`sec:experiments`)."""
    return Method(solver, Synchronous(), Damped(), SplitPrior(), start=start, passes=1)


def vcl(solver: Solver = _NEWTON, order: Order = "fixed", start: Family | None = None) -> Method:
    """Variational continual learning (`eq:vcl_objective`; Nguyen et al. 2018): one pass of sequential PVI."""
    return Method(solver, Sequential(order), Damped(), Undeleted(), start=start, passes=1)


def streaming_vb(solver: Solver = _NEWTON, order: Order = "fixed", start: Family | None = None) -> Method:
    """Streaming VB (`sec:experiments`; Broderick et al. 2013): sequential PVI without the deletion step.

    Clients that are visited again count their rows again.
    """
    return Method(solver, Sequential(order), Damped(), Undeleted(), start=start)


def bayesian_admm(
    solver: Solver = _NEWTON,
    penalty: float = 1.0,
    mixing: float | None = None,
    step: float = 1.0,
    participants: int | None = None,
    over: Mean = "all",
    start: Family | None = None,
) -> Method:
    """Bayesian ADMM (Möllenhoff et al. 2025): a KL penalty keeps clients close to the average of their answers.

    With penalty, mixing and step all 1 it is undamped synchronous PVI; the fixed point does not depend on them. In each
    round `participants` random clients answer, or all. `start` is the server's initial posterior.
    """
    schedule = Synchronous() if participants is None else RandomSubset(participants)
    return Method(solver, schedule, Averaging(penalty, mixing, step, over, start), Proximal(penalty))


def pooled(solver: Solver = _NEWTON, start: Family | None = None) -> Method:
    """Global VI on one client that holds all rows: maximises F(q) = ell(q) − KL(q ‖ p) (`sec:pvi:setup`).

    The client's cavity is the prior. It is the reference for all other methods.
    """
    return Method(solver, Synchronous(), Damped(), start=start)


def alone(solver: Solver = _NEWTON, start: Family | None = None) -> Method:
    """Local-only VI: one client fits its own rows without communication."""
    return pooled(solver, start)


NAMED: Mapping[str, Callable[..., Method]] = {
    "sequential": sequential,
    "synchronous": synchronous,
    "asynchronous": asynchronous,
    "power_ep": power_ep,
    "expectation_propagation": expectation_propagation,
    "double_loop": double_loop,
    "snep": snep,
    "stochastic_power_ep": stochastic_power_ep,
    "global_vi": global_vi,
    "stochastic_global_vi": stochastic_global_vi,
    "incremental_vi": incremental_vi,
    "bcm_same": bcm_same,
    "bcm_split": bcm_split,
    "vcl": vcl,
    "streaming_vb": streaming_vb,
    "bayesian_admm": bayesian_admm,
    "pooled": pooled,
    "alone": alone,
}


COMMON = ("anew", "how", "learn", "learning", "temperature", "trust_region")
"""Settings common to all methods."""


def named(name: str, **settings: Any) -> Method:
    """The method with this name and these settings, such as `named("synchronous", damping=0.2)`.

    With `learn` it learns the hyperparameters named, in one of the ways of `partita.hyper.learning` (`how`).
    """
    if name not in NAMED:
        raise unknown("method", name, NAMED)
    own = inspect.signature(NAMED[name]).parameters
    for setting in settings:
        if setting not in own and setting not in COMMON:
            raise unknown(f"setting of {name}", setting, [*own, *COMMON])
    method = NAMED[name](**{setting: value for setting, value in settings.items() if setting in own})
    common = {setting: value for setting, value in settings.items() if setting not in own}
    names, how = common.pop("learn", ()), common.pop("how", "coordinate")
    if isinstance(names, str) or (names and "learning" in common):
        raise SettingsError(f"`learn` must be a list of names, and excludes `learning`: {names!r}.")
    if names:
        common["learning"] = learning.named(how, tuple(names))
    return dataclasses.replace(method, **common)


def fit(
    name: str,
    model: Model,
    prior: Family,
    partition: Partition,
    settings: Mapping[str, Any] | None = None,
    *,
    client: str | None = None,
    learn: Sequence[str] = (),
    how: How = "coordinate",
    **options: Any,
) -> Result:
    """Runs a method by its name, with `options` as for `run`; every method's history has the same columns.

    "pooled" runs on the union of all rows, and "alone" on the rows of the `client` named. Hyperparameters to `learn`
    are leaves of the model, such as "noise", and the prior's "prior_scale", "prior_scales" or "layer_scales"; see
    `partita.hyper.learning` for the ways of learning them.
    """
    method = named(name, learn=learn, how=how, **settings or {})
    if (client is not None) != (name == "alone"):
        raise SettingsError('"alone" needs the name of a client; other methods take none.')
    if client is not None:
        if client not in partition.names:
            raise unknown("client", client, partition.names)
        partition = partition.alone(partition.names.index(client))
    return run(method, model, prior, partition.pooled() if name == "pooled" else partition, **options)
