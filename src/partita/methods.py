"""Named methods: each a composition of a schedule, an aggregation, a context and a solver."""

from partita.aggregation import Damped
from partita.pvi import Method
from partita.schedules import Asynchronous, Order, Sequential, Synchronous
from partita.solvers import Newton, Solver

_NEWTON = Newton()


def global_vi(solver: Solver = _NEWTON) -> Method:
    """Global VI, on one client that holds all rows: maximises F(q) = ell(q) − KL(q ‖ p) at once (`sec:pvi:setup`).

    The only client's cavity is the prior.
    """
    return Method(solver, Synchronous(), Damped())


def alone(solver: Solver = _NEWTON) -> Method:
    """A client that talks to nobody: VI on its own rows, on a partition of that client only."""
    return global_vi(solver)


def sequential(solver: Solver = _NEWTON, order: Order = "fixed", damping: float | None = 1.0) -> Method:
    """Sequential PVI (`sec:pvi:pvi_flavours`): one client at a time, by default undamped."""
    return Method(solver, Sequential(order), Damped(damping))


def synchronous(solver: Solver = _NEWTON, damping: float | None = None) -> Method:
    """Synchronous PVI (`sec:pvi:pvi_flavours`): all clients at once, by default damped by 1/M."""
    return Method(solver, Synchronous(), Damped(damping))


def asynchronous(solver: Solver = _NEWTON, damping: float | None = None) -> Method:
    """Asynchronous PVI (`sec:pvi:pvi_flavours`): each answer is taken in as it comes, by default damped by 1/M."""
    return Method(solver, Asynchronous(), Damped(damping))
