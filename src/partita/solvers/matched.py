"""Which solvers' answers tell the moments of tilted densities."""

from partita.solvers.base import Solver
from partita.solvers.moment_matching import MomentMatching
from partita.solvers.power_ep import PowerEP


def matched_power(solver: Solver) -> float | None:
    """The α for which q · Δ^α has the moments of q · (p(y_k | θ) / t_k)^α; None where answers do not tell them.

    A solver that goes on to where a client's own sites agree, or part of the way to the moments, does not answer with
    them. Of `PowerEP` it is true for clients of one row.
    """
    match solver:
        case MomentMatching():
            tells = float(solver.step_size) == 1
        case PowerEP():
            tells = not solver.in_turn and int(solver.max_steps) == 1
        case _:
            return None
    return float(solver.alpha) if tells else None
