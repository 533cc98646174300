"""Data sets as numbers, ready for a model: Adult is bundled, three come with scikit-learn, two are downloaded."""

from types import ModuleType
from typing import Any, NamedTuple

from partita.datasets.frame import Frame, Frames, divided, permuted
from partita.datasets.uci import adult_frames, bank_frames, credit_frames
from partita.errors import InputError
from partita.models import Table
from partita.preprocess import federated


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


def bank() -> Dataset:
    """Bank: does a customer who is called subscribe? 45,211 rows, 51 columns, an intercept; see `bank_frames`."""
    return encoded(bank_frames())


def credit() -> Dataset:
    """Credit: is a card refused? 653 rows, 46 columns, an intercept; see `credit_frames`."""
    return encoded(credit_frames())


def breast_cancer() -> Dataset:
    """Breast cancer, Wisconsin: is a tumour malignant? 569 rows and 30 columns, from scikit-learn."""
    data = _scikit_learn().load_breast_cancer()
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    return encoded(divided(Frame.build(columns, 1.0 - data.target)))


def diabetes() -> Dataset:
    """Diabetes: how far does the disease progress in a year? 442 rows and 10 columns, from scikit-learn.

    The response is centred.
    """
    data = _scikit_learn().load_diabetes()
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    return encoded(divided(Frame.build(columns, data.target - data.target.mean())))


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
        raise InputError("This data set comes with scikit-learn: pip install 'partita[data]'.") from None
    return scikit_learn
