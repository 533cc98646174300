"""How does a client climb its objective?"""

from partita.local.local_factors import InFamily, InPredictor
from partita.local.solvers.alpha_divergence import AlphaDivergence
from partita.local.solvers.base import Outcome, Solution, Solver
from partita.local.solvers.blockwise import Blockwise
from partita.local.solvers.conjugate_directions import ConjugateDirections
from partita.local.solvers.fixed_point import Conjugate, FixedPoint, NaturalGradient
from partita.local.solvers.gradient import LBFGS, Gradient
from partita.local.solvers.local_fixed_point import LocalFixedPoint
from partita.local.solvers.mode import ModeFixedPoint
from partita.local.solvers.moment_matching import MomentMatching
from partita.local.solvers.named import named
from partita.local.solvers.newton import Newton
from partita.local.solvers.power_ep import PowerEP
from partita.local.solvers.proximal_point import ProximalPoint

__all__ = [
    "LBFGS",
    "AlphaDivergence",
    "Blockwise",
    "Conjugate",
    "ConjugateDirections",
    "FixedPoint",
    "Gradient",
    "InFamily",
    "InPredictor",
    "LocalFixedPoint",
    "ModeFixedPoint",
    "MomentMatching",
    "NaturalGradient",
    "Newton",
    "Outcome",
    "PowerEP",
    "ProximalPoint",
    "Solution",
    "Solver",
    "named",
]
