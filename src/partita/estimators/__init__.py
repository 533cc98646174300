"""What does scikit-learn expect?"""

from partita.errors import MissingExtraError

try:
    import sklearn as _installed  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingExtraError("scikit-learn", "data") from error

from partita.estimators.classifier import PartitionedClassifier
from partita.estimators.regressors import PartitionedPoissonRegressor, PartitionedRegressor

__all__ = ["PartitionedClassifier", "PartitionedPoissonRegressor", "PartitionedRegressor"]
