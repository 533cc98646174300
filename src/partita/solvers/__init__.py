"""How does a client climb its objective?"""

from partita.solvers.alpha_divergence import AlphaDivergence
from partita.solvers.base import Outcome, Solution, Solver
from partita.solvers.blockwise import Blockwise
from partita.solvers.fixed_point import Conjugate, FixedPoint, NaturalGradient
from partita.solvers.gradient import LBFGS, Gradient
from partita.solvers.moment_matching import MomentMatching
from partita.solvers.named import named
from partita.solvers.newton import Newton
from partita.solvers.power_ep import PowerEP

__all__ = [
    "LBFGS",
    "AlphaDivergence",
    "Blockwise",
    "Conjugate",
    "FixedPoint",
    "Gradient",
    "MomentMatching",
    "NaturalGradient",
    "Newton",
    "Outcome",
    "PowerEP",
    "Solution",
    "Solver",
    "named",
]
