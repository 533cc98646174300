"""Named methods: each a composition of a schedule, an aggregation, a context and a solver.

`fit` runs any of them by name.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import optax

from partita.data.shard import Partition
from partita.errors import SettingsError, unknown
from partita.expectations import GridQuadrature, MonteCarlo
from partita.families import Family
from partita.hyper.learning import How, Learning, learning_by_name
from partita.inputs import check_choice, check_flag, check_kind, check_texts, check_whole
from partita.io.names import Turns
from partita.local.context import Cavity, Context, NoDeletion, Prior, Proximal, SplitPrior
from partita.local.solvers import MomentMatching, NaturalGradient, Newton, PowerEP, Solver
from partita.models import Model
from partita.server import aggregation as server
from partita.server.method import Method
from partita.server.run import Result, run
from partita.server.schedules import Asynchronous, Order, RandomSubset, Schedule, Sequential, Synchronous

__all__ = [
    "NAMED",
    "Common",
    "Optimiser",
    "Start",
    "asynchronous",
    "bayesian_admm",
    "bcm_same",
    "bcm_split",
    "double_loop",
    "expectation_propagation",
    "fit",
    "global_vi",
    "incremental_vi",
    "named",
    "power_ep",
    "sequential",
    "settings_of",
    "snep",
    "stochastic_global_vi",
    "stochastic_power_ep",
    "streaming_vb",
    "synchronous",
    "vcl",
]

Optimiser: TypeAlias = Callable[..., optax.GradientTransformation]
Start: TypeAlias = Family | None
_NEWTON = Newton()
_CAVITY = Cavity()
_SCHEDULES = {"sequential": Sequential(), "synchronous": Synchronous(), "asynchronous": Asynchronous()}


class Common(TypedDict, total=False):
    """Settings that every method has."""

    temperature: float
    """The factor of every KL divergence: 1 is Bayes, and less is colder."""
    restart: bool
    """Whether clients start every visit at `start`."""
    trust_region: float
    """How far q may move in one visit when the context is improper, in nats of KL per natural parameter."""
    learn: Sequence[str]
    """The hyperparameters to learn, by name."""
    how: How
    """The way of learning them; see `partita.hyper.learning`."""
    learning: Learning
    """A way of learning of your own, instead of `learn` and `how`."""


def _method(
    solver: Solver,
    schedule: Schedule,
    aggregation: server.Aggregation,
    context: Context = _CAVITY,
    learn: Sequence[str] = (),
    how: How = "coordinate",
    learning: Learning | None = None,
    **common: Any,
) -> Method:
    """A composition, with the settings that every method has."""
    check_texts("hyperparameters to learn", learn)
    check_choice("learning rule", how, ("coordinate", "collapsed", "stochastic"))
    if len(learn) and learning is not None:
        raise SettingsError(f"Hyperparameters to learn are a list of names, without other learning, not {learn!r}.")
    if len(learn):
        learning = learning_by_name(how, tuple(learn))
    return Method(solver, schedule, aggregation, context, learning=learning, **common)


def _product(damping: float | None, backtracking: bool) -> server.Aggregation:
    """The product rule, damped or with backtracking."""
    check_flag("setting backtracking", backtracking)
    return server.Backtracking(damping, monitor_free_energy=True) if backtracking else server.Damped(damping)


def sequential(
    solver: Solver = _NEWTON,
    order: Order = "fixed",
    damping: float | None = 1.0,
    backtracking: bool = False,
    anticipating: bool = False,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Sequential PVI (`sec:pvi:pvi_flavours`): one client at a time, by default undamped.

    With `backtracking` the damping is halved until the free energy does not fall; with `anticipating` the missing
    factors of clients that have not answered yet are estimated during the first pass.
    """
    check_flag("setting anticipating", anticipating)
    product = _product(damping, backtracking)
    aggregation = server.Anticipating(product) if anticipating else product
    return _method(solver, Sequential(order), aggregation, start=start, **common)


def synchronous(
    solver: Solver = _NEWTON,
    damping: float | None = None,
    backtracking: bool = False,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Synchronous PVI (`sec:pvi:pvi_flavours`): all clients in parallel.

    By default the damping follows the free energy that clients report with their answers (`Adaptive`); with power EP,
    which climbs none, it is 1/M. A number is a fixed damping; with `backtracking` it is halved until the free energy
    does not fall.
    """
    fixed = damping is not None or backtracking or solver.estimates_evidence
    aggregation = _product(damping, backtracking) if fixed else server.Adaptive()
    return _method(solver, Synchronous(), aggregation, start=start, **common)


def asynchronous(
    solver: Solver = _NEWTON, damping: float | None = None, start: Start = None, **common: Unpack[Common]
) -> Method:
    """Asynchronous PVI (`sec:pvi:pvi_flavours`): each answer is aggregated on arrival.

    By default a client's first answer is whole, and the damping of later ones is at most 1/2 and follows the free
    energy by the clients' last reports (`Adaptive`). A number is a fixed damping.
    """
    fixed = damping is not None or solver.estimates_evidence
    aggregation = server.Damped(damping) if fixed else server.Adaptive(first=1.0, largest=0.5)
    return _method(solver, Asynchronous(), aggregation, start=start, **common)


def power_ep(
    alpha: float = 0.5,
    schedule: Turns = "sequential",
    damping: float | None = None,
    passes: int = 100,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Power EP (`alg:pep`) of a generalised linear model, with a site for every row.

    A visit iterates over the client's rows until its sites converge, at most `passes` times. The default damping is 1
    for the sequential schedule and 1/M otherwise. α → 0 is PVI.
    """
    check_choice("schedule", schedule, _SCHEDULES)
    if damping is None and schedule == "sequential":
        damping = 1.0
    solver = PowerEP(alpha=alpha, max_steps=passes)
    return _method(solver, _SCHEDULES[schedule], server.Damped(damping), start=start, **common)


def expectation_propagation(
    schedule: Turns = "sequential",
    damping: float | None = None,
    passes: int = 100,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Expectation propagation (Minka 2001): power EP with α = 1."""
    return power_ep(1.0, schedule, damping, passes, start, **common)


def double_loop(alpha: float = 0.5, points: int = 20, **common: Unpack[Common]) -> Method:
    """Power EP with clients as sites by a double loop (Hasenclever et al. 2017), which converges without damping.

    For any model of up to three parameters; moments are computed on a grid of `points` nodes per parameter.
    """
    solver = MomentMatching(alpha=alpha, rule=GridQuadrature(points))
    return _method(solver, Synchronous(), server.DoubleLoop(alpha), **common)


def snep(
    alpha: float = 0.5,
    samples: int = 100,
    step: float = 0.3,
    outer: float = 0.1,
    participants: int | None = None,
    **common: Unpack[Common],
) -> Method:
    """Stochastic natural-gradient EP (Hasenclever et al. 2017): the double loop in small steps, from noisy moments.

    For any model: moments are importance-weighted averages over `samples` draws from the posterior, with a bias of
    about 1/samples. In each round `participants` random clients answer, or all.
    """
    solver = MomentMatching(alpha=alpha, rule=MonteCarlo(samples), max_steps=1)
    schedule = Synchronous() if participants is None else RandomSubset(participants)
    return _method(solver, schedule, server.StochasticLoop(alpha, step, outer), **common)


def stochastic_power_ep(
    alpha: float = 0.5,
    damping: float | None = None,
    order: Order = "random",
    participants: int = 1,
    rows: bool = True,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Stochastic power EP (`alg:spep`; Li et al. 2015): one tied factor for all clients, damped by ρ (1/M if None).

    Memory does not grow with the number of clients. One client at a time answers, or `participants` random ones. With
    `rows` every row has a site, which needs a generalised linear model; otherwise a client's rows are one site, for any
    model of up to three parameters. α → 0 is mini-batch global VI with natural gradients (`prop:sep`).
    """
    check_flag("setting rows", rows)
    solver = PowerEP(alpha=alpha, max_steps=1, in_turn=False) if rows else MomentMatching(alpha=alpha)
    check_whole("number of participants", participants)
    schedule = Sequential(order) if participants == 1 else RandomSubset(participants)
    return _method(solver, schedule, server.Shared(damping), Prior(rescaled=True), start=start, **common)


def global_vi(
    optimiser: Optimiser | None = None,
    learning_rate: float | None = None,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Global VI without pooling rows (`prop:local-global-fp`, Ashman et al. 2022): a round is one step.

    Clients reply with one undamped fixed-point change; their sum is ∇_μ F, and the server takes the step. The iterates
    are those on pooled rows, whatever the number of clients. By default a step is along that natural gradient, and its
    length follows the free energy (`Adaptive`), so that there is no rate to choose; with full covariance it is Newton's
    step. Where an optimiser, a rate or a start is given, it is one of the optimiser (Adam, with rate 0.01) in
    unconstrained coordinates: for networks, whose natural gradients are those of a likelihood that is not log-concave.
    """
    natural = optimiser is None and learning_rate is None and start is None
    steps = server.ServerOptimiser(*_optimiser(optimiser, optax.adam, learning_rate, 1e-2), start)
    return _method(NaturalGradient(), Synchronous(), server.Adaptive() if natural else steps, **common)


def _optimiser(
    given: Optimiser | None, default: Optimiser, rate: float | None, usual: float
) -> tuple[Optimiser, float]:
    """An optimiser and its rate, with defaults for what is not given."""
    return default if given is None else given, usual if rate is None else rate


def stochastic_global_vi(
    optimiser: Optimiser = optax.adam,
    learning_rate: float = 1e-2,
    order: Order = "random",
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Stochastic global VI (`sec:experiments`, `eq:stoch-global`; Hoffman et al. 2013): a step on one client's rows.

    They are weighted by N/N_k. The gradient is biased if clients' sizes differ, since all are visited equally often.
    """
    steps = server.ServerOptimiser(optimiser, learning_rate, start)
    return _method(NaturalGradient(), Sequential(order), steps, Prior(rescaled=True), **common)


def incremental_vi(
    optimiser: Optimiser | None = None,
    learning_rate: float | None = None,
    gain: float = 0.5,
    participants: int = 1,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Incremental global VI: steps by the sum of all clients' last gradients (SAG/SAGA).

    One client at a time in random order, or `participants` random ones. It costs clients as much as stochastic global
    VI and avoids its noise and bias with many heterogeneous clients. By default a client's factor moves towards its
    natural gradient, half of the way after its first answer or less where the free energy falls (`Adaptive`), so that
    there is no rate to choose. Where an optimiser, a rate or a start is given, it is one of the optimiser (Adam, with
    rate 0.001) in unconstrained coordinates, with the `gain` of `Incremental`: for networks.
    """
    check_whole("number of participants", participants)
    schedule = Sequential("random") if participants == 1 else RandomSubset(participants)
    natural = optimiser is None and learning_rate is None and start is None
    chosen = _optimiser(optimiser, server.agile_adam, learning_rate, 1e-3)
    steps = server.Incremental(*chosen, gain, start)
    own = server.Adaptive(first=1.0, largest=0.5) if natural else steps
    return _method(NaturalGradient(), schedule, own, **common)


def bcm_same(solver: Solver = _NEWTON, start: Start = None, **common: Unpack[Common]) -> Method:
    """The Bayesian committee machine in which every client has the whole prior (`sec:experiments`; Tresp 2000).

    One round of undamped synchronous PVI.
    """
    return _method(solver, Synchronous(), server.Damped(), Prior(), start=start, passes=1, **common)


def bcm_split(solver: Solver = _NEWTON, start: Start = None, **common: Unpack[Common]) -> Method:
    """The Bayesian committee machine in which a client has the share p^(N_k/N) of the prior (`sec:experiments`)."""
    return _method(solver, Synchronous(), server.Damped(), SplitPrior(), start=start, passes=1, **common)


def vcl(solver: Solver = _NEWTON, order: Order = "fixed", start: Start = None, **common: Unpack[Common]) -> Method:
    """Variational continual learning (`eq:vcl_objective`; Nguyen et al. 2018): one pass of sequential PVI."""
    return _method(solver, Sequential(order), server.Damped(), NoDeletion(), start=start, passes=1, **common)


def streaming_vb(
    solver: Solver = _NEWTON, order: Order = "fixed", start: Start = None, **common: Unpack[Common]
) -> Method:
    """Streaming VB (`sec:experiments`; Broderick et al. 2013): sequential PVI without the deletion step.

    Clients that are visited again count their rows again.
    """
    return _method(solver, Sequential(order), server.Damped(), NoDeletion(), start=start, **common)


def bayesian_admm(
    solver: Solver = _NEWTON,
    penalty: float = 1.0,
    mixing: float | None = 0.5,
    step: float = 0.5,
    participants: int | None = None,
    over: server.Mean = "all",
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Bayesian ADMM (Möllenhoff et al. 2025): a KL penalty keeps clients close to the average of their answers.

    With penalty, mixing and step all 1 it is undamped synchronous PVI; the fixed point does not depend on them. Mixing
    and step are 1/2 by default; with the 1/(1 + penalty · M) and 1 of the paper, mixing None and step 1, runs take
    longer or drift away. In each round `participants` random clients answer, or all. `start` is the server's initial
    posterior.
    """
    schedule = Synchronous() if participants is None else RandomSubset(participants)
    return _method(solver, schedule, server.Averaging(penalty, mixing, step, over, start), Proximal(penalty), **common)


NAMED: Mapping[str, Callable[..., Method]] = {
    method.__name__: method
    for method in (
        sequential,
        synchronous,
        asynchronous,
        power_ep,
        expectation_propagation,
        double_loop,
        snep,
        stochastic_power_ep,
        global_vi,
        stochastic_global_vi,
        incremental_vi,
        bcm_same,
        bcm_split,
        vcl,
        streaming_vb,
        bayesian_admm,
    )
}
"""Every method by its name: what `fit`, TOML files and command lines know."""


def settings_of(name: str) -> list[str]:
    """The settings that the method with this name has."""
    check_choice("method", name, NAMED)
    own = inspect.signature(NAMED[name]).parameters.values()
    return [*(each.name for each in own if each.kind is not each.VAR_KEYWORD), *Common.__annotations__]


def named(name: str, **settings: Any) -> Method:
    """The method with this name and these settings, such as `named("synchronous", damping=0.2)`."""
    known = settings_of(name)
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)
    return NAMED[name](**settings)


def fit(
    name: str,
    model: Model,
    prior: Family,
    partition: Partition,
    settings: Mapping[str, Any] | None = None,
    *,
    learn: Sequence[str] = (),
    how: How = "coordinate",
    **options: Any,
) -> Result:
    """Runs a method by its name on a partition; every method's history has the same columns.

    Args:
        name: one of `NAMED`.
        model: the likelihood.
        prior: the prior, which is also the family of q.
        partition: the clients' rows; `partition.pooled()` has them in one client, and `partition.only(name)` is one
            client without the others.
        settings: the method's settings.
        learn: hyperparameters to learn: leaves of the model, such as "noise", and the prior's "prior_scale",
            "prior_scales" or "layer_scales".
        how: the way of learning them; see `partita.hyper.learning`.
        options: as for `run`.

    Returns:
        The result of the run.

    """
    check_texts("hyperparameters to learn", learn)
    if settings is not None:
        check_kind("settings", settings, Mapping, "give them by name", name="a dict")
    learned = {"learn": learn, "how": how} if len(learn) else {}
    return run(named(name, **learned, **settings or {}), model, prior, partition, **options)
