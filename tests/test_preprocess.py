"""Federated preprocessing equals pooled preprocessing, whoever owns which rows."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partita import InputError
from partita.data import preprocess
from partita.data.columns import Counts
from partita.data.frame import Frame

COLOURS = ("red", "green", "blue")


def frame(rows, seed=0):
    """Numbers of many sizes, with gaps, and categories, of which "rare" is seen once."""
    random = np.random.default_rng(seed)
    gaps = random.normal(3.0, 2.0, rows)
    gaps[random.random(rows) < 0.3] = np.nan
    town = random.choice(["Bonn", "Ulm"], rows).astype("U4")
    town[rows // 2] = "rare"
    return Frame.build(
        {
            "age": random.uniform(18, 90, rows),
            "colour": random.choice(COLOURS[:2], rows),
            "offset": 1e9 + random.normal(size=rows),
            "gaps": gaps,
            "town": town,
            "constant": np.full(rows, 0.1),
            "gain": np.exp(random.normal(0, 3, rows)),
        },
        random.integers(0, 2, rows),
        {"colour": COLOURS},
    )


def pooled(frame):
    """The same encoding by plain NumPy, all rows at once; means are subtracted in rational arithmetic."""
    features = [np.ones(frame.size)]
    for name, values in frame.columns.items():
        if values.dtype.kind == "U":
            declared = frame.levels.get(name, ())
            levels = [*declared, *sorted(set(values.tolist()) - set(declared))]
            columns = [(values == level).astype(float) for level in levels]
        else:
            columns = [values]
        for column in columns:
            present = [Fraction(value) for value in column[~np.isnan(column)].tolist()]
            mean = sum(present, Fraction(0)) / max(len(present), 1)
            centred = np.array([0.0 if np.isnan(value) else float(Fraction(value) - mean) for value in column])
            sd = np.sqrt(np.sum(centred**2) / max(len(present), 1))
            features.append(centred / (sd if sd > 0 else 1.0))
    return np.stack(features, axis=1)


def parted(frame, owners):
    return [frame.rows(np.flatnonzero(owners == owner)) for owner in np.unique(owners)]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 2**32 - 1))
@example([0] * 30, 0)  # one client
@example(list(range(30)), 0)  # a client for every row
def test_any_partition_encodes_like_the_pooled_rows(owners, seed):
    table = frame(len(owners), seed)
    clients = parted(table, np.array(owners))
    encoding = preprocess.federated(clients)
    expected = pooled(table)
    for client, rows in zip(clients, parted(table._replace(y=np.arange(len(owners))), np.array(owners)), strict=True):
        encoded = encoding.encode(client)
        close(encoded.x, expected[rows.y])
        np.testing.assert_array_equal(encoded.y, client.y)


def test_it_is_numpys_mean_and_population_sd_where_these_are_accurate():
    table = frame(500)
    encoded = preprocess.federated(parted(table, np.arange(500) % 7)).encode(table)
    for name in ("age", "gain"):
        values = table.columns[name]
        close(encoded.x[:, NAMES.index(name)], (values - np.mean(values)) / np.std(values))


NAMES = (
    "intercept",
    "age",
    *("colour=red", "colour=green", "colour=blue"),
    *("offset", "gaps"),
    *("town=Bonn", "town=Ulm", "town=rare"),
    *("constant", "gain"),
)


def test_columns_come_in_the_frames_order_with_declared_levels_first():
    encoding = preprocess.federated([frame(50)])
    assert encoding.names == NAMES
    assert encoding.encode(frame(50)).x.shape == (50, len(NAMES))


def test_a_missing_number_becomes_the_mean_and_a_column_that_does_not_vary_zero():
    table = frame(200)
    x = preprocess.federated(parted(table, np.arange(200) % 3)).encode(table).x
    missing = np.isnan(table.columns["gaps"])
    assert 0 < missing.sum() < 200
    assert (x[missing, NAMES.index("gaps")] == 0).all()
    assert (x[:, NAMES.index("constant")] == 0).all()
    assert (x[:, NAMES.index("colour=blue")] == 0).all()


def test_very_different_clients_are_encoded_consistently():
    """Far apart, each with a constant column; one has only missing values, one no rows, one a level of its own."""
    columns = {"far": np.array([1e9, 1e9, -3.0, -3.0, 7.0]), "sparse": np.array([1.0, 2.0, np.nan, np.nan, 6.0])}
    table = Frame.build({**columns, "only": np.array(["a", "a", "b", "b", "own"])}, np.zeros(5))
    clients = [*parted(table, np.array([0, 0, 1, 1, 2])), table.rows(np.array([], dtype=int))]
    encoding = preprocess.federated(clients)
    close(encoding.encode(table).x, pooled(table))
    assert encoding.levels == {"only": ("a", "b", "own")}


def test_a_column_missing_at_all_clients_is_zero():
    table = Frame.build({"never": np.full(3, np.nan)}, np.zeros(3))
    np.testing.assert_array_equal(preprocess.federated([table, table]).encode(table).x, [[1, 0]] * 3)


def test_frames_without_columns_have_an_intercept():
    table = Frame.build({}, np.zeros(3))
    np.testing.assert_array_equal(preprocess.federated([table]).encode(table).x, np.ones((3, 1)))


def test_the_order_of_clients_does_not_matter_and_counts_are_exact():
    table = frame(300)
    summaries = [preprocess.summarise(part) for part in parted(table, np.arange(300) % 11)]
    merged = preprocess.merge(summaries)
    assert preprocess.merge(summaries[::-1]) == merged
    nested = preprocess.merge([preprocess.merge(summaries[:4]), preprocess.merge(summaries[4:])])
    for name, column in merged.columns.items():
        values = table.columns[name]
        if isinstance(column, Counts):
            assert column.counts == {level: int((values == level).sum()) for level in column.levels}
            assert nested.columns[name] == column
        else:
            assert column.present == nested.columns[name].present == int((~np.isnan(values)).sum())
            close(nested.columns[name].squares, column.squares)
            close(float(nested.columns[name].exact_mean - column.exact_mean), 0)


def shapes(summary):
    """The summary with every number replaced by 0."""
    return json.loads(json.dumps(summary.to_dict()), parse_int=lambda _: 0, parse_float=lambda _: 0)


def test_a_summary_does_not_grow_with_the_rows():
    once = preprocess.summarise(frame(100))
    twice = preprocess.summarise(frame(200))
    assert shapes(once) == shapes(twice)
    assert once != twice


def test_a_summary_survives_json():
    summary = preprocess.summarise(frame(100))
    assert preprocess.Summary.from_dict(json.loads(json.dumps(summary.to_dict()))) == summary


def test_a_summary_says_nothing_about_the_order_of_rows():
    table = Frame.build({"c": np.array(["z", "a", "m"])}, np.zeros(3))
    there, back = (json.dumps(preprocess.summarise(table.rows(order)).to_dict()) for order in ([0, 1, 2], [2, 1, 0]))
    assert there == back


@pytest.mark.parametrize(
    "contents",
    [
        {},
        {"columns": 3},
        {"columns": [{"name": "a", "present": 2, "mean": 0.0}]},
        {"columns": [{"name": "a", "present": -2, "mean": 0.0, "rest": 0.0, "squares": 0.0}]},
        {"columns": [{"name": "a", "present": 2, "mean": float("nan"), "rest": 0.0, "squares": 0.0}]},
        {"columns": [{"name": "a", "present": 2, "mean": 0.0, "rest": 0.0, "squares": -1.0}]},
        {"columns": [{"name": "a", "declared": [], "counts": {"b": -1}}]},
        {"columns": [{"name": "a", "declared": [], "counts": ["b"]}]},
        {"columns": [{"name": "a", "declared": [], "counts": {}}] * 2},
    ],
)
def test_invalid_summaries_are_refused(contents):
    with pytest.raises(InputError, match="not a summary"):
        preprocess.Summary.from_dict(contents)


def columns(**values):
    return Frame.build({name: np.array(column) for name, column in values.items()}, np.zeros(2))


KNOWN = columns(age=[1.0, 2.0], town=["Bonn", "Ulm"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (columns(age=[1.0, 2.0], town=["Ulm", "Jena"]), "'town' has the category 'Jena'"),
        (columns(age=[1.0, 2.0]), "'town' is missing"),
        (columns(age=[1.0, 2.0], town=["Ulm", "Ulm"], more=[1.0, 2.0]), "'more' was not summarised"),
        (columns(age=["1", "two"], town=["Ulm", "Ulm"]), "'age' has the text 'two' where a number"),
        (columns(age=[1.0, 2.0], town=[3.0, 4.0]), r"'town' has the value 3\.0 where a category"),
        (columns(age=[1.0, np.inf], town=["Ulm", "Ulm"]), "'age' has the value inf"),
    ],
)
def test_rows_that_do_not_fit_the_encoding_are_refused(other, message):
    with pytest.raises(InputError, match=message):
        preprocess.federated([KNOWN]).encode(other)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "no summary"),
        ([KNOWN, columns(age=[1.0, 2.0])], "same columns"),
        ([KNOWN, columns(age=["1", "2"], town=["Ulm", "Ulm"])], "'age' is numeric at one client"),
        ([KNOWN, KNOWN._replace(levels={"town": ("Ulm", "Bonn")})], "different levels for column 'town'"),
        ([columns(age=[1.0, -np.inf])], "'age' has the value -inf"),
        ([columns(age=[1.0, 1e200])], r"'age' has the value 1e\+200"),
    ],
)
def test_incompatible_clients_are_refused(others, message):
    with pytest.raises(InputError, match=message):
        preprocess.federated(others)
