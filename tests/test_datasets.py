import json
from importlib import resources

import numpy as np
import pytest
from typer.testing import CliRunner

from partita import datasets
from partita.cli import app
from partita.tables.reading import frame_of


@pytest.fixture(scope="module")
def adult():
    return datasets.adult()


def test_adult_has_the_papers_rows_and_columns(adult):
    """`sec:appen:experiments:uci`: 80% of 48,842 rows, 108 columns after one-hot coding; an intercept comes first."""
    assert adult.train.x.shape == (39_073, 109)
    assert adult.test.x.shape == (48_842 - 39_073, 109)
    assert len(adult.names) == 109
    assert adult.names[0] == "intercept"
    assert round(adult.train.y.mean(), 4) == 0.2396
    assert set(np.unique(adult.train.y)) == {0.0, 1.0}


def test_adult_is_standardised_with_the_training_rows(adult):
    assert (adult.train.x[:, 0] == 1).all()
    x = adult.train.x[:, 1:]
    # Rounding of sums of 4e4 terms, some of size 100.
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-10)
    sd = x.std(axis=0)
    constant = np.ptp(x, axis=0) == 0
    np.testing.assert_allclose(sd[~constant], 1, rtol=1e-10)
    # The one person from there is among the test rows.
    assert [adult.names[i + 1] for i in np.flatnonzero(constant)] == ["native-country=Holand-Netherlands"]
    assert np.isfinite(adult.test.x).all()


def test_adults_one_hot_columns_are_one_category_each(adult):
    columns = [i for i, name in enumerate(adult.names) if name.startswith("sex=")]
    assert len(columns) == 2
    # Two standardised indicators of the same event are opposite.
    np.testing.assert_allclose(adult.train.x[:, columns[0]], -adult.train.x[:, columns[1]], atol=1e-10)
    assert any(name.endswith("=?") for name in adult.names)


def test_adult_keeps_every_row_and_its_levels():
    frames = datasets.adult_frames()
    assert (frames.train.size, frames.test.size) == (39_073, 9_769)
    assert len(frames.train.columns) == 14
    assert (frames.train.columns["workclass"] == "?").any()
    for name, levels in frames.train.levels.items():
        assert set(frames.train.columns[name]) | set(frames.test.columns[name]) == set(levels)


def test_adult_is_what_pooled_standardisation_of_the_stored_codes_gives():
    with resources.files("partita.data").joinpath("adult.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        codes = {name: stored[name] for name in stored.files}
    about = json.loads(str(codes["about"]))
    x = np.concatenate(
        [
            np.eye(len(about["levels"][name]))[codes[name]] if name in about["levels"] else codes[name][:, None] / 1.0
            for name in about["columns"][:-1]
        ],
        axis=1,
    )
    train = np.random.RandomState(0).permutation(len(x))[:39_073]
    mean, sd = x[train].mean(axis=0), x[train].std(axis=0)
    expected = (x[train] - mean) / np.where(sd > 0, sd, 1)
    data = datasets.adult()
    np.testing.assert_allclose(data.train.x[:, 1:], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(data.train.y, codes["income"][train] == about["levels"]["income"].index(">50K"))


def test_adult_is_attributed():
    with resources.files("partita.data").joinpath("adult.npz").open("rb") as file:
        about = json.loads(str(np.load(file, allow_pickle=False)["about"]))
    assert "10.24432/C5XW20" in about["attribution"]
    assert "CC BY 4.0" in about["attribution"]


def test_breast_cancer():
    data = datasets.breast_cancer()
    assert data.train.x.shape == (455, 31)
    assert data.test.x.shape == (114, 31)
    np.testing.assert_allclose(data.train.x[:, 1:].std(axis=0), 1, rtol=1e-10)
    assert data.train.y.sum() + data.test.y.sum() == 212  # malignant tumours are the positives


def test_digits():
    data = datasets.digits()
    assert data.train.x.shape == (1437, 64)
    assert data.test.x.shape == (360, 64)
    assert set(np.unique(data.train.y)) == set(range(10))
    assert (data.train.x.min(), data.train.x.max()) == (0.0, 1.0)
    assert len(data.names) == 64


def test_training_and_test_rows_are_the_papers_permutation():
    """The first 80% of `np.random.seed(0)`'s permutation."""
    train, test = datasets.permuted(48_842)
    assert (len(train), len(test)) == (39_073, 9_769)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(48_842))
    np.testing.assert_array_equal(train[:5], np.random.RandomState(0).permutation(48_842)[:5])


def test_the_example_is_adult_as_it_is(tmp_path):
    path = tmp_path / "adult.csv"
    said = CliRunner().invoke(app, ["example", str(path)])
    assert said.exit_code == 0
    assert "partita fit 'income ~" in said.output
    read = frame_of(path).to_pandas()
    table = datasets.adult_table()
    assert list(read) == list(table)
    assert all((read[name] == table[name]).all() for name in table)
    again = CliRunner().invoke(app, ["example", str(path)])
    assert "already exists" in str(again.exception)
