"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "aggregation": ("Backtracking", "Damped"),
    "errors": ("InputError",),
    "expectations": ("Analytic", "Assignments", "GaussHermite", "Grid", "LocalReparameterisation", "MonteCarlo"),
    "families": (
        "Dirichlet",
        "Family",
        "FullGaussian",
        "Gamma",
        "InverseGamma",
        "LogNormal",
        "MeanFieldGaussian",
        "NormalGamma",
        "Product",
    ),
    "method": ("Method",),
    "models": (
        "GaussianMixture",
        "LinearRegression",
        "LogDensity",
        "LogisticRegression",
        "NetworkClassifier",
        "NetworkRegressor",
        "PoissonRegression",
        "ProbitRegression",
        "Table",
        "UnknownNoiseRegression",
        "with_intercept",
    ),
    "partition": ("federate", "split", "splits"),
    "pvi": ("Status", "run"),
    "schedules": ("Asynchronous", "RandomSubset", "Sequential", "Synchronous"),
    "solvers": (
        "LBFGS",
        "AlphaDivergence",
        "Blockwise",
        "Conjugate",
        "FixedPoint",
        "Gradient",
        "MomentMatching",
        "Newton",
        "PowerEP",
    ),
}
"""Modules, and their names that are also names of the package."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name or a module when it is first asked for (PEP 562), so that `partita --help` does without JAX."""
    if name in _HOME:
        value = getattr(importlib.import_module(f"partita.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    module = f"partita.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module 'partita' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
