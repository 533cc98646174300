"""Partitioned VI by its schedules, and methods that clients answer in the same way."""

from typing import Unpack

from partita.inputs import check_flag, check_whole
from partita.local.context import NoDeletion, Prior, Proximal, SplitPrior
from partita.local.solvers import FixedPoint, Solver
from partita.methods.composed import NEWTON, Common, Start, composed, product
from partita.numerics.rates import Damping
from partita.server import aggregation as server
from partita.server.measures import Divergence, Measure
from partita.server.method import Method
from partita.server.schedules import Asynchronous, Order, RandomSubset, Sequential, Synchronous

__all__ = [
    "asynchronous",
    "bayesian_admm",
    "bcm_same",
    "bcm_split",
    "sequential",
    "stochastic_local",
    "stochastic_synchronous",
    "streaming_vb",
    "synchronous",
    "vcl",
]

_DIVERGENCE = Divergence()


def sequential(
    solver: Solver = NEWTON,
    order: Order = "fixed",
    damping: float | None = 1.0,
    backtracking: bool = False,
    anticipating: bool = False,
    start: Start = None,
    measure: Measure = _DIVERGENCE,
    **common: Unpack[Common],
) -> Method:
    """Sequential PVI (`sec:pvi:pvi_flavours`): one client at a time, by default undamped.

    With `backtracking` the damping is halved until the free energy does not fall; with `anticipating` the missing
    factors of clients that have not answered yet are estimated during the first pass. In the order "residual" the
    `measure` says how large an answer is.
    """
    check_flag("setting anticipating", anticipating)
    damped = product(damping, backtracking)
    aggregation = server.Anticipating(damped) if anticipating else damped
    return composed(solver, Sequential(order, measure), aggregation, start=start, **common)


def synchronous(
    solver: Solver = NEWTON,
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
    aggregation = product(damping, backtracking) if fixed else server.Adaptive()
    return composed(solver, Synchronous(), aggregation, start=start, **common)


def asynchronous(
    solver: Solver = NEWTON, damping: float | None = None, start: Start = None, **common: Unpack[Common]
) -> Method:
    """Asynchronous PVI (`sec:pvi:pvi_flavours`): each answer is aggregated on arrival.

    By default a client's first answer is whole, and the damping of later ones is at most 1/2 and follows the free
    energy by the clients' last reports (`Adaptive`). A number is a fixed damping.
    """
    fixed = damping is not None or solver.estimates_evidence
    aggregation = server.Damped(damping) if fixed else server.Adaptive(first=1.0, largest=0.5)
    return composed(solver, Asynchronous(), aggregation, start=start, **common)


def stochastic_synchronous(
    participants: int = 1,
    solver: Solver = NEWTON,
    damping: Damping | None = None,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Synchronous PVI with `participants` random clients in each round (`sec:conclusion`); 1 of them is sequential.

    The damping is by default 1 over their number.
    """
    check_whole("number of participants", participants)
    damping = 1 / participants if damping is None else damping
    return composed(solver, RandomSubset(participants), server.Damped(damping), start=start, **common)


def stochastic_local(
    damping: Damping = 1.0,
    order: Order = "random",
    participants: int = 1,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Stochastic scheduling of local fixed points (`eq:stoch-local`; Khan and Lin 2017): clients are groups of rows.

    One damped fixed-point step a visit, of one client or of `participants` random ones; with a row for each client that
    is `eq:stoch-fully-local`. Inside a client `solvers.LocalFixedPoint` does it with groups and rows.
    """
    check_whole("number of participants", participants)
    solver = FixedPoint(max_steps=1, backtrack=False)
    schedule = Sequential(order) if participants == 1 else RandomSubset(participants)
    return composed(solver, schedule, server.Damped(damping), start=start, **common)


def bcm_same(solver: Solver = NEWTON, start: Start = None, **common: Unpack[Common]) -> Method:
    """The Bayesian committee machine in which every client has the whole prior (`sec:experiments`; Tresp 2000).

    One round of undamped synchronous PVI.
    """
    return composed(solver, Synchronous(), server.Damped(), Prior(), start=start, passes=1, **common)


def bcm_split(solver: Solver = NEWTON, start: Start = None, **common: Unpack[Common]) -> Method:
    """The Bayesian committee machine in which a client has the share p^(N_k/N) of the prior (`sec:experiments`)."""
    return composed(solver, Synchronous(), server.Damped(), SplitPrior(), start=start, passes=1, **common)


def vcl(solver: Solver = NEWTON, order: Order = "fixed", start: Start = None, **common: Unpack[Common]) -> Method:
    """Variational continual learning (`eq:vcl_objective`; Nguyen et al. 2018): one pass of sequential PVI."""
    return composed(solver, Sequential(order), server.Damped(), NoDeletion(), start=start, passes=1, **common)


def streaming_vb(
    solver: Solver = NEWTON, order: Order = "fixed", start: Start = None, **common: Unpack[Common]
) -> Method:
    """Streaming VB (`sec:experiments`; Broderick et al. 2013): sequential PVI without the deletion step.

    Clients that are visited again count their rows again.
    """
    return composed(solver, Sequential(order), server.Damped(), NoDeletion(), start=start, **common)


def bayesian_admm(
    solver: Solver = NEWTON,
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
    return composed(solver, schedule, server.Averaging(penalty, mixing, step, over, start), Proximal(penalty), **common)
