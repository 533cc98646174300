"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita import checks, methods
    from partita.data import Frame, Partition, Shard, Table, federate, partitioners, split, with_intercept
    from partita.data import bundled as datasets
    from partita.engines import Engine, LocalEngine
    from partita.errors import (
        DamagedFileError,
        DataError,
        FederationError,
        InputError,
        MissingExtraError,
        SettingsError,
    )
    from partita.expectations import (
        Analytic,
        Assignments,
        GaussHermite,
        GridQuadrature,
        LocalReparameterisation,
        MonteCarlo,
    )
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
    from partita.local.context import Cavity, Context, NoDeletion, Prior, Proximal, SplitPrior
    from partita.local.solvers import (
        LBFGS,
        AlphaDivergence,
        Blockwise,
        Conjugate,
        FixedPoint,
        Gradient,
        MomentMatching,
        NaturalGradient,
        Newton,
        PowerEP,
        Solver,
    )
    from partita.models import (
        GaussianMixture,
        LinearRegression,
        LogDensity,
        LogisticRegression,
        Model,
        NetworkClassifier,
        NetworkRegressor,
        PoissonRegression,
        ProbitRegression,
        UnknownNoiseRegression,
    )
    from partita.results import metrics
    from partita.results.history import History
    from partita.results.posterior import Posterior
    from partita.server import aggregation
    from partita.server.admission import Admission
    from partita.server.aggregation import Aggregation, Backtracking, Damped
    from partita.server.method import Method
    from partita.server.monitor import Monitor
    from partita.server.rules import Rules
    from partita.server.run import Result, run
    from partita.server.schedules import Asynchronous, RandomSubset, Schedule, Sequential, Synchronous
    from partita.server.stopping import Status
    from partita.storage.checkpoint import Checkpoint
    from partita.storage.ledger import Ledger

__version__ = "0.1.0"

__all__ = [
    "LBFGS",
    "Admission",
    "Aggregation",
    "AlphaDivergence",
    "Analytic",
    "Assignments",
    "Asynchronous",
    "Backtracking",
    "Blockwise",
    "Cavity",
    "Checkpoint",
    "Conjugate",
    "Context",
    "DamagedFileError",
    "Damped",
    "DataError",
    "Dirichlet",
    "Engine",
    "Family",
    "FederationError",
    "FixedPoint",
    "Frame",
    "FullGaussian",
    "Gamma",
    "GaussHermite",
    "GaussianMixture",
    "Gradient",
    "GridQuadrature",
    "History",
    "InputError",
    "InverseGamma",
    "Ledger",
    "LinearRegression",
    "LocalEngine",
    "LocalReparameterisation",
    "LogDensity",
    "LogNormal",
    "LogisticRegression",
    "MeanFieldGaussian",
    "Method",
    "MissingExtraError",
    "Model",
    "MomentMatching",
    "Monitor",
    "MonteCarlo",
    "NaturalGradient",
    "NetworkClassifier",
    "NetworkRegressor",
    "Newton",
    "NoDeletion",
    "NormalGamma",
    "Partition",
    "PoissonRegression",
    "Posterior",
    "PowerEP",
    "Prior",
    "ProbitRegression",
    "Product",
    "Proximal",
    "RandomSubset",
    "Result",
    "Rules",
    "Schedule",
    "Sequential",
    "SettingsError",
    "Shard",
    "Solver",
    "SplitPrior",
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
    "partitioners",
    "run",
    "split",
    "with_intercept",
]

_MODULES = {
    "aggregation": "server.aggregation",
    "checks": "checks",
    "datasets": "data.bundled",
    "learning": "hyper.learning",
    "methods": "methods",
    "metrics": "results.metrics",
}
"""Modules with a name at the top, and where they are."""
_HOMES = {
    "data": (
        "Frame",
        "Partition",
        "Shard",
        "Table",
        "federate",
        "split",
        "partitioners",
        "with_intercept",
    ),
    "engines": (
        "Engine",
        "LocalEngine",
    ),
    "errors": (
        "DamagedFileError",
        "DataError",
        "FederationError",
        "InputError",
        "MissingExtraError",
        "SettingsError",
    ),
    "expectations": (
        "Analytic",
        "Assignments",
        "GaussHermite",
        "GridQuadrature",
        "LocalReparameterisation",
        "MonteCarlo",
    ),
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
    "local.context": (
        "Cavity",
        "Context",
        "Prior",
        "Proximal",
        "SplitPrior",
        "NoDeletion",
    ),
    "local.solvers": (
        "LBFGS",
        "AlphaDivergence",
        "Blockwise",
        "Conjugate",
        "FixedPoint",
        "Gradient",
        "MomentMatching",
        "NaturalGradient",
        "Newton",
        "PowerEP",
        "Solver",
    ),
    "models": (
        "GaussianMixture",
        "LinearRegression",
        "LogDensity",
        "LogisticRegression",
        "Model",
        "NetworkClassifier",
        "NetworkRegressor",
        "PoissonRegression",
        "ProbitRegression",
        "UnknownNoiseRegression",
    ),
    "results.history": ("History",),
    "results.posterior": ("Posterior",),
    "server.admission": ("Admission",),
    "server.aggregation": (
        "Aggregation",
        "Backtracking",
        "Damped",
    ),
    "server.method": ("Method",),
    "server.monitor": ("Monitor",),
    "server.rules": ("Rules",),
    "server.run": (
        "Result",
        "run",
    ),
    "server.schedules": (
        "Asynchronous",
        "RandomSubset",
        "Schedule",
        "Sequential",
        "Synchronous",
    ),
    "server.stopping": ("Status",),
    "storage.checkpoint": ("Checkpoint",),
    "storage.ledger": ("Ledger",),
}
"""Modules, and their names that are also names of the package."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name or a module when it is first asked for (PEP 562), so that `partita --help` does without JAX."""
    if name in _HOME:
        value = getattr(importlib.import_module(f"partita.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    module = f"partita.{_MODULES.get(name, name)}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module 'partita' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
