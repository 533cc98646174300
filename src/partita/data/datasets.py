"""Data sets ready for a model: Adult is bundled, two come with scikit-learn."""

import json
from importlib import resources
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from partita.data.frame import Frame, Frames, divided, permuted
from partita.data.preprocess import federated
from partita.data.table import Table
from partita.errors import MissingExtraError

__all__ = ["Dataset", "adult", "adult_frames", "adult_table", "breast_cancer", "digits", "encoded"]


class Dataset(NamedTuple):
    """Training and test rows with the names of the columns; an intercept comes first, but for images."""

    train: Table
    test: Table
    names: tuple[str, ...]


def adult() -> Dataset:
    """Adult: does a person earn more than 50,000 dollars? 48,842 rows, 108 columns with one-hot codes, an intercept.

    "?" is a category; columns are standardised with the training rows' means and sds. The training rows are the 80%
    that the paper's experiments use. Source: UCI Machine Learning Repository, DOI 10.24432/C5XW20, CC BY 4.0.
    """
    return encoded(adult_frames())


def adult_frames() -> Frames:
    """Adult: does a person earn more than 50,000 dollars? 48,842 rows, 14 columns; "?" is a category.

    The training rows are the 80% that the paper's experiments use. DOI 10.24432/C5XW20, CC BY 4.0.
    """
    columns, levels = _adult()
    y = columns.pop("income") == levels.pop("income")[-1]
    return divided(Frame.build(columns, y, levels))


def adult_table() -> dict[str, np.ndarray]:
    """Adult as it is, for `fit`: 48,842 rows, 14 columns and `income`, "<=50K" or ">50K"; names have underscores."""
    return {name.replace("-", "_"): values for name, values in _adult()[0].items()}


def _adult() -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """The columns, the response last, and the levels of those that have some."""
    with resources.files("partita.data").joinpath("adult.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        codes = {name: stored[name] for name in stored.files}
    about = json.loads(str(codes["about"]))
    levels = about["levels"]
    return {
        name: np.array(levels[name])[codes[name]] if name in levels else codes[name] for name in about["columns"]
    }, levels


def breast_cancer() -> Dataset:
    """Breast cancer, Wisconsin: is a tumour malignant? 569 rows and 30 columns, from scikit-learn."""
    data = _scikit_learn().load_breast_cancer()
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    return encoded(divided(Frame.build(columns, 1.0 - data.target)))


def digits() -> Dataset:
    """Handwritten digits: 1,797 images of 8 × 8 pixels in [0, 1], ten classes, from scikit-learn; without intercept."""
    data = _scikit_learn().load_digits()
    train, test = permuted(len(data.target))
    x, y = data.data / 16, data.target.astype(float)
    return Dataset(Table(x[train], y[train]), Table(x[test], y[test]), tuple(data.feature_names))


def encoded(frames: Frames) -> Dataset:
    """Training and test rows with columns scaled by the training rows, and an intercept put first."""
    encoding = federated([frames.train])
    return Dataset(encoding.encode(frames.train), encoding.encode(frames.test), encoding.names)


def _scikit_learn() -> ModuleType | Any:
    try:
        import sklearn.datasets as scikit_learn
    except ImportError:
        raise MissingExtraError("scikit-learn, with which this data set comes,", "data") from None
    return scikit_learn
