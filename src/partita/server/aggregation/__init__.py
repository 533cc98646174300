"""Aggregation of clients' changes (step ③ of `alg:vmp`), the only place where damping is applied."""

from partita.numerics.rates import RobbinsMonro
from partita.server.aggregation.adaptive import Adaptive
from partita.server.aggregation.anticipating import Anticipating
from partita.server.aggregation.averaging import Averaging, Mean
from partita.server.aggregation.base import Aggregated, Aggregation, FreeEnergy, Iterate, Report
from partita.server.aggregation.double_loop import DoubleLoop
from partita.server.aggregation.estimates import Amortised, FactorEstimate, GeometricMean, LastFactor
from partita.server.aggregation.incremental import Incremental, agile_adam
from partita.server.aggregation.product import Backtracking, Damped, check_damping
from partita.server.aggregation.server_optimiser import ServerOptimiser
from partita.server.aggregation.shared import Shared
from partita.server.aggregation.stochastic_loop import StochasticLoop

__all__ = [
    "Adaptive",
    "Aggregated",
    "Aggregation",
    "Amortised",
    "Anticipating",
    "Averaging",
    "Backtracking",
    "Damped",
    "DoubleLoop",
    "FactorEstimate",
    "FreeEnergy",
    "GeometricMean",
    "Incremental",
    "Iterate",
    "LastFactor",
    "Mean",
    "Report",
    "RobbinsMonro",
    "ServerOptimiser",
    "Shared",
    "StochasticLoop",
    "agile_adam",
    "check_damping",
]
