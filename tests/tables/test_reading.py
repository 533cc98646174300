"""Every kind of table gives the same columns, to the bit."""

import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pytest

from partita.errors import DataError
from partita.tables.reading import frame_of, sites_of

NAMES = ("age", "visits", "sex", "smokes", "ward", "score")


def rows(size=30, seed=0):
    generator = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": generator.normal(60, 10, size),
            "visits": generator.integers(0, 5, size),
            "sex": generator.choice(["f", "m"], size),
            "smokes": generator.random(size) < 0.5,
            "ward": pandas.Categorical(generator.choice(["north", "süd"], size)),
            "score": pandas.array(range(size), dtype="Int64"),
            "site": generator.choice(["Hull", "York"], size),
        }
    )
    frame.loc[3, "age"], frame.loc[4, "sex"], frame.loc[5, "score"] = np.nan, None, pandas.NA
    return frame


FRAME = rows()
TABLES = {
    "polars": polars.from_pandas,
    "polars lazy": lambda frame: polars.from_pandas(frame).lazy(),
    "pyarrow": pyarrow.Table.from_pandas,
    "duckdb": lambda frame: duckdb.from_df(frame),
    "mapping": lambda frame: {name: frame[name].to_numpy() for name in frame},
}


def plain(table):
    found = sites_of(frame_of(table), NAMES, "site")
    return [(site.name, site.rows, site.dropped, {n: v.tolist() for n, v in site.columns.items()}) for site in found]


@pytest.mark.parametrize("convert", TABLES.values(), ids=TABLES)
def test_tables_of_other_libraries(convert):
    assert plain(convert(FRAME)) == plain(FRAME)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_files(tmp_path, suffix):
    path = tmp_path / f"patients{suffix}"
    FRAME.to_parquet(path) if suffix == ".parquet" else FRAME.to_csv(path, index=False)
    assert plain(path) == plain(FRAME)
    assert sum(dropped for _, _, dropped, _ in plain(path)) == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pandas.date_range("2026-01-01", periods=30), "numbers, texts or truth values"),
        ([[1, 2]] * 30, "numbers, texts or truth values"),
        ([1, "a"] * 15, "numbers, texts or truth values"),
    ],
)
def test_other_columns_are_refused(values, said):
    with pytest.raises(DataError, match=said):
        sites_of(frame_of(FRAME.assign(other=values)), ("other",), None)


def test_a_column_that_stands_twice_is_refused():
    twice = pandas.concat([FRAME, FRAME[["age"]]], axis=1)
    with pytest.raises(DataError, match="same name"):
        sites_of(frame_of(twice), ("age",), None)
