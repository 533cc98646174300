"""Models by name, for configuration files."""

import dataclasses
from collections.abc import Callable, Mapping

from partita.models.base import Model
from partita.models.glm import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression
from partita.models.network import NetworkClassifier, NetworkRegressor

__all__ = ["KINDS", "Likelihood"]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The likelihood p(y ∣ θ)."""

    kind: str
    """One of `KINDS`."""
    noise: float = 1.0
    """The standard deviation of the response, for linear models and regressors."""
    hidden: tuple[int, ...] = ()
    """Widths of a network's hidden layers."""
    classes: int = 2
    """The number of classes of a classifier."""

    def model(self, columns: int) -> Model:
        """The model for this number of encoded columns."""
        return KINDS[self.kind](self, columns)


KINDS: Mapping[str, Callable[[Likelihood, int], Model]] = {
    "linear": lambda about, _: LinearRegression(about.noise),
    "logistic": lambda *_: LogisticRegression(),
    "probit": lambda *_: ProbitRegression(),
    "poisson": lambda *_: PoissonRegression(),
    "classifier": lambda about, columns: NetworkClassifier((columns, *about.hidden, about.classes)),
    "regressor": lambda about, columns: NetworkRegressor((columns, *about.hidden, 1), about.noise),
}
