"""Diabetes, from scikit-learn: a response that is a number."""

from partita.data.datasets import Dataset, encoded
from partita.data.frame import Frame, divided


def diabetes() -> Dataset:
    """Diabetes: how far does the disease progress in a year? 442 rows and 10 columns, from scikit-learn.

    The response is centred.
    """
    from sklearn.datasets import load_diabetes  # takes long to import

    data = load_diabetes()
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    return encoded(divided(Frame.build(columns, data.target - data.target.mean())))
