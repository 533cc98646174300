"""Methods that match moments: EP, power EP and their relatives."""

from typing import Unpack

from partita.expectations import GridQuadrature, MonteCarlo
from partita.inputs import check_choice, check_flag, check_whole
from partita.io.names import Turns
from partita.local.context import NoDeletion, Prior
from partita.local.solvers import MomentMatching, PowerEP
from partita.methods.composed import Common, Start, composed
from partita.server import aggregation as server
from partita.server.method import Method
from partita.server.schedules import Asynchronous, Order, RandomSubset, Sequential, Synchronous

__all__ = [
    "assumed_density_filtering",
    "double_loop",
    "expectation_propagation",
    "power_ep",
    "snep",
    "stochastic_power_ep",
]

_SCHEDULES = {"sequential": Sequential(), "synchronous": Synchronous(), "asynchronous": Asynchronous()}


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
    return composed(solver, _SCHEDULES[schedule], server.Damped(damping), start=start, **common)


def expectation_propagation(
    schedule: Turns = "sequential",
    damping: float | None = None,
    passes: int = 100,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Expectation propagation (Minka 2001): power EP with α = 1."""
    return power_ep(1.0, schedule, damping, passes, start, **common)


def assumed_density_filtering(
    alpha: float = 1.0, order: Order = "fixed", start: Start = None, **common: Unpack[Common]
) -> Method:
    """Assumed density filtering (Maybeck 1982; Minka 2001): every row is matched once, in turn, and none is deleted.

    What streaming VB is to PVI, it is to EP (`sec:experiments`): one pass of EP without the deletion step.
    """
    solver = PowerEP(alpha=alpha, max_steps=1)
    return composed(solver, Sequential(order), server.Damped(), NoDeletion(), start=start, passes=1, **common)


def double_loop(alpha: float = 0.5, points: int = 20, **common: Unpack[Common]) -> Method:
    """Power EP with clients as sites by a double loop (Hasenclever et al. 2017), which converges without damping.

    For any model of up to three parameters; moments are computed on a grid of `points` nodes per parameter.
    """
    solver = MomentMatching(alpha=alpha, rule=GridQuadrature(points))
    return composed(solver, Synchronous(), server.DoubleLoop(alpha), **common)


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
    return composed(solver, schedule, server.StochasticLoop(alpha, step, outer), **common)


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
    return composed(solver, schedule, server.Shared(damping), Prior(rescaled=True), start=start, **common)
