"""How are answers taken in? Step ③ of `alg:vmp`; the only place that damps."""

from partita.aggregation.anticipating import Anticipating
from partita.aggregation.averaging import Averaging, Mean
from partita.aggregation.base import Aggregation, FreeEnergy, Holdings, Taken
from partita.aggregation.double_loop import DoubleLoop
from partita.aggregation.incremental import Incremental, agile_adam
from partita.aggregation.product import Backtracking, Damped, check_damping
from partita.aggregation.server_optimiser import ServerOptimiser
from partita.aggregation.shared import Shared
from partita.aggregation.stochastic_loop import StochasticLoop

__all__ = [
    "Aggregation",
    "Anticipating",
    "Averaging",
    "Backtracking",
    "Damped",
    "DoubleLoop",
    "FreeEnergy",
    "Holdings",
    "Incremental",
    "Mean",
    "ServerOptimiser",
    "Shared",
    "StochasticLoop",
    "Taken",
    "agile_adam",
    "check_damping",
]
