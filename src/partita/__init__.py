"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

from partita import checks, methods
from partita.data import Frame, Partition, federate, split, splits
from partita.data import bundled as datasets
from partita.data.table import Table, with_intercept
from partita.errors import InputError
from partita.expectations import Analytic, Assignments, GaussHermite, Grid, LocalReparameterisation, MonteCarlo
from partita.families import (
    Dirichlet,
    Family,
    FullGaussian,
    Gamma,
    InverseGamma,
    LogNormal,
    MeanFieldGaussian,
    NormalGamma,
    Product,
)
from partita.hyper import learning
from partita.local.solvers import (
    LBFGS,
    AlphaDivergence,
    Blockwise,
    Conjugate,
    FixedPoint,
    Gradient,
    MomentMatching,
    Newton,
    PowerEP,
)
from partita.models import (
    GaussianMixture,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    NetworkClassifier,
    NetworkRegressor,
    PoissonRegression,
    ProbitRegression,
    UnknownNoiseRegression,
)
from partita.results import metrics
from partita.server import aggregation
from partita.server.aggregation import Backtracking, Damped
from partita.server.method import Method
from partita.server.run import run
from partita.server.schedules import Asynchronous, RandomSubset, Sequential, Synchronous
from partita.server.stopping import Status

__version__ = "0.1.0"

__all__ = [
    "LBFGS",
    "AlphaDivergence",
    "Analytic",
    "Assignments",
    "Asynchronous",
    "Backtracking",
    "Blockwise",
    "Conjugate",
    "Damped",
    "Dirichlet",
    "Family",
    "FixedPoint",
    "Frame",
    "FullGaussian",
    "Gamma",
    "GaussHermite",
    "GaussianMixture",
    "Gradient",
    "Grid",
    "InputError",
    "InverseGamma",
    "LinearRegression",
    "LocalReparameterisation",
    "LogDensity",
    "LogNormal",
    "LogisticRegression",
    "MeanFieldGaussian",
    "Method",
    "MomentMatching",
    "MonteCarlo",
    "NetworkClassifier",
    "NetworkRegressor",
    "Newton",
    "NormalGamma",
    "Partition",
    "PoissonRegression",
    "PowerEP",
    "ProbitRegression",
    "Product",
    "RandomSubset",
    "Sequential",
    "Status",
    "Synchronous",
    "Table",
    "UnknownNoiseRegression",
    "aggregation",
    "checks",
    "datasets",
    "federate",
    "learning",
    "methods",
    "metrics",
    "run",
    "split",
    "splits",
    "with_intercept",
]
