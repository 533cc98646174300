"""Global VI without pooling rows, with all clients or some of them in a step."""

from typing import Unpack

import optax

from partita.inputs import check_whole
from partita.local.context import Prior
from partita.local.solvers import FixedPoint, Gradient, NaturalGradient, Solver
from partita.methods.composed import Common, Optimiser, Start, composed
from partita.numerics.rates import Damping
from partita.server import aggregation as server
from partita.server.method import Method
from partita.server.schedules import Order, RandomSubset, Sequential, Synchronous

__all__ = [
    "biased_global_vi",
    "global_vi",
    "incremental_vi",
    "stochastic_fixed_point",
    "stochastic_global_vi",
]

_STEPS = Gradient(max_steps=10, tolerance=None, keep_best=False)


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
    return composed(NaturalGradient(), Synchronous(), server.Adaptive() if natural else steps, **common)


def _optimiser(
    given: Optimiser | None, default: Optimiser, rate: float | None, usual: float
) -> tuple[Optimiser, float]:
    """An optimiser and its rate, with defaults for what is not given."""
    return default if given is None else given, usual if rate is None else rate


def stochastic_fixed_point(
    damping: Damping | None = None,
    order: Order = "random",
    participants: int = 1,
    batch_size: int | None = None,
    start: Start = None,
    **common: Unpack[Common],
) -> Method:
    """Mini-batch global VI by damped fixed points (`eq:stoch-global`): one average factor for all clients.

    A client's rows, or `batch_size` of them drawn at random, are the mini-batch, and stand for all clients'. ρ = 1/M,
    the default, is ρ' = 1: the average factor is taken out, and the client's is put in; ρ' may be up to M. With
    `RobbinsMonro` rates it ends at the optimum of global VI. Memory does not grow with the number of clients; visits to
    one client alone make q forget the others.
    """
    check_whole("number of participants", participants)
    solver = FixedPoint(max_steps=1, backtrack=False, batch_size=batch_size)
    schedule = Sequential(order) if participants == 1 else RandomSubset(participants)
    return composed(solver, schedule, server.Shared(damping), Prior(rescaled=True), start=start, **common)


def biased_global_vi(
    solver: Solver = _STEPS, order: Order = "fixed", start: Start = None, **common: Unpack[Common]
) -> Method:
    """Global VI with biased mini-batches (`sec:optim:offtheshelf`, footnote): several steps on one client's rows.

    They are weighted by N/N_k, and q is handed on from client to client. It keeps one set of natural parameters, and
    fits the client that came last.
    """
    return composed(solver, Sequential(order), server.Shared(1.0), Prior(rescaled=True), start=start, **common)


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
    return composed(NaturalGradient(), Sequential(order), steps, Prior(rescaled=True), **common)


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
    return composed(NaturalGradient(), schedule, own, **common)
