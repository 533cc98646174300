"""Data sets that need no download."""

import json
from importlib import resources
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from partita.errors import InputError
from partita.models import Table


class Dataset(NamedTuple):
    """Training and test rows, an intercept first, with the names of the columns."""

    train: Table
    test: Table
    names: tuple[str, ...]


def adult() -> Dataset:
    """Adult: does a person earn more than 50,000 dollars? 48,842 rows, 108 columns with one-hot codes, an intercept.

    "?" is a category; columns are standardised with the training rows' means and sds. The training rows are the 80%
    that the paper's experiments use. Source: UCI Machine Learning Repository, DOI 10.24432/C5XW20, CC BY 4.0.
    """
    with resources.files("partita.datasets").joinpath("adult.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        columns = {name: stored[name] for name in stored.files}
    about = json.loads(str(columns.pop("about")))
    levels = about["levels"]
    y = (columns["income"] == levels["income"].index(">50K")).astype(float)
    features, names = [], []
    for name in about["columns"][:-1]:
        if name in levels:
            features.append(np.eye(len(levels[name]))[columns[name]])
            names += [f"{name}={level}" for level in levels[name]]
        else:
            features.append(columns[name].astype(float)[:, None])
            names.append(name)
    return standardised(np.concatenate(features, axis=1), y, names)


def breast_cancer() -> Dataset:
    """Breast cancer, Wisconsin: is a tumour malignant? 569 rows and 30 columns, from scikit-learn."""
    data = _scikit_learn().load_breast_cancer()
    return standardised(data.data, 1.0 - data.target, list(data.feature_names))


def digits() -> Dataset:
    """Handwritten digits: 1,797 images of 8 × 8 pixels in [0, 1], ten classes, from scikit-learn; without intercept."""
    data = _scikit_learn().load_digits()
    train, test = permuted(len(data.target))
    x, y = data.data / 16, data.target.astype(float)
    return Dataset(Table(x[train], y[train]), Table(x[test], y[test]), tuple(data.feature_names))


def standardised(x: np.ndarray, y: np.ndarray, names: list[str]) -> Dataset:
    """Training and test rows with columns scaled by the training rows, and an intercept put first."""
    train, test = permuted(len(y))
    mean, sd = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - mean) / np.where(sd > 0, sd, 1)
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    return Dataset(Table(x[train], y[train]), Table(x[test], y[test]), ("intercept", *names))


def permuted(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The 80% of rows to train on and the rest, as the paper's experiments divide them."""
    order = np.random.RandomState(0).permutation(rows)
    return order[: int(0.8 * rows)], order[int(0.8 * rows) :]


def _scikit_learn() -> ModuleType | Any:
    try:
        import sklearn.datasets as scikit_learn
    except ImportError:
        raise InputError("This data set comes with scikit-learn: pip install 'partita[data]'.") from None
    return scikit_learn
