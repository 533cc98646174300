"""How is E_q[log p(y | θ)] computed?"""

from partita.expectations.base import Derivatives, Expectation
from partita.expectations.common_draws import CommonDraws
from partita.expectations.deterministic import Analytic, Assignments, GaussHermite, GridQuadrature, root
from partita.expectations.estimate import Estimate
from partita.expectations.local_effects import LocalEffects
from partita.expectations.points import Points
from partita.expectations.predictors import PredictorQuadrature
from partita.expectations.regression import Regression
from partita.expectations.sampled import LocalReparameterisation, MonteCarlo, Sampled

__all__ = [
    "Analytic",
    "Assignments",
    "CommonDraws",
    "Derivatives",
    "Estimate",
    "Expectation",
    "GaussHermite",
    "GridQuadrature",
    "LocalEffects",
    "LocalReparameterisation",
    "MonteCarlo",
    "Points",
    "PredictorQuadrature",
    "Regression",
    "Sampled",
    "root",
]
