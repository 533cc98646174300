"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

from partita import aggregation, checks, datasets, learning, methods, metrics
from partita.aggregation import Backtracking, Damped
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
from partita.method import Method
from partita.models import (
    GaussianMixture,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    NetworkClassifier,
    NetworkRegressor,
    PoissonRegression,
    ProbitRegression,
    Table,
    UnknownNoiseRegression,
    with_intercept,
)
from partita.partition import federate, split, splits
from partita.pvi import Status, run
from partita.schedules import Asynchronous, RandomSubset, Sequential, Synchronous
from partita.solvers import (
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
