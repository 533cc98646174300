"""What is p(y | θ)? Likelihoods, their checks and their predictions."""

from partita.models.base import LogDensity, Model
from partita.models.glm import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
)
from partita.models.group_effects import GroupEffects
from partita.models.mixture import GaussianMixture
from partita.models.network import Network, NetworkClassifier, NetworkRegressor
from partita.models.unknown_noise import UnknownNoiseRegression

__all__ = [
    "GaussianMixture",
    "GeneralisedLinear",
    "GroupEffects",
    "LinearRegression",
    "LogDensity",
    "LogisticRegression",
    "Model",
    "Network",
    "NetworkClassifier",
    "NetworkRegressor",
    "PoissonRegression",
    "ProbitRegression",
    "UnknownNoiseRegression",
]
