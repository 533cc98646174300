"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "data": "Frame Partition Shard Table federate split partitioners with_intercept",
    "engines": "Engine LocalEngine",
    "errors": "DamagedFileError DataError FederationError InputError MissingExtraError SettingsError",
    "expectations": "Analytic Assignments GaussHermite GridQuadrature LocalReparameterisation MonteCarlo",
    "families": "Dirichlet Family FullGaussian Gamma InverseGamma LogNormal MeanFieldGaussian NormalGamma Product",
    "local.context": "Cavity Context Prior Proximal SplitPrior NoDeletion",
    "local.solvers": (
        "LBFGS AlphaDivergence Blockwise Conjugate FixedPoint Gradient MomentMatching NaturalGradient "
        "Newton PowerEP Solver"
    ),
    "models": (
        "GaussianMixture LinearRegression LogDensity LogisticRegression Model NetworkClassifier "
        "NetworkRegressor PoissonRegression ProbitRegression UnknownNoiseRegression"
    ),
    "results.history": "History",
    "results.posterior": "Posterior",
    "server.admission": "Admission",
    "server.aggregation": "Aggregation Backtracking Damped",
    "server.method": "Method",
    "server.monitor": "Monitor",
    "server.rules": "Rules",
    "server.run": "Result run",
    "server.schedules": "Asynchronous RandomSubset Schedule Sequential Synchronous",
    "server.stopping": "Status",
    "storage.checkpoint": "Checkpoint",
    "storage.ledger": "Ledger",
}
"""Modules, and their names that are also names of the package; `__init__.pyi` has them for type checkers."""
_MODULES = {
    "aggregation": "server.aggregation",
    "checks": "checks",
    "datasets": "data.datasets",
    "learning": "hyper.learning",
    "methods": "methods",
    "metrics": "results.metrics",
}
"""Modules with a name at the top, and where they are."""
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted([*_HOME, *_MODULES])


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
