"""A table of results holds what the cells hold, and is refused where it is something else."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from partita import InputError
from partita_experiments import store
from support.made_up_cells import CLIENTS, DIGESTS, cell


def cells():
    """A run of two seeds with an infinite number, and clients alone, who have a row each."""
    made = [cell("sequential", [0.5, 0.25, np.inf], seed, settings={"damping": 0.5}) for seed in (0, 1)]
    alone = cell("alone", [0.5, 0.4], statuses=("converged", "budget spent"))
    for row, name in zip(alone["rows"], ("a", "b"), strict=True):
        row["client"] = name
    return [one | DIGESTS for one in (*made, alone)]


def numbers(some):
    """The cells with the numbers that a table keeps, as precise as it keeps them; JSON has infinity as text."""

    def kept(row):
        exact = {name: int(row[name]) for name in store.COUNTS}
        rounded = {name: float(store.rounded(float(row[name]), digits)) for name, digits in store.DIGITS.items()}
        return exact | rounded | {name: row[name] for name in (*store.MEASURED, "client") if name in row}

    return [one | {"rows": list(map(kept, one["rows"]))} for one in some]


def saved(path, some, experiment="uci"):
    store.save(path, store.Stored(experiment, some, CLIENTS))
    return store.load(path)


def test_a_table_holds_what_the_cells_hold(tmp_path):
    found = saved(tmp_path / store.FILE, cells())
    assert found == store.Stored("uci", numbers(cells()), CLIENTS)
    before = (tmp_path / store.FILE).read_bytes()
    store.save(tmp_path / store.FILE, found)
    assert (tmp_path / store.FILE).read_bytes() == before


def test_what_only_some_experiments_measure_is_a_column_of_theirs(tmp_path):
    some = cells()
    plain = saved(tmp_path / "plain", some)
    for k, row in enumerate(some[0]["rows"]):
        row |= {"train_nll": 0.25 * k, "train_error": 0.5, "by_recency": [0.5 * place for place in range(k + 1)]}
    found = saved(tmp_path / "more", some)
    assert found.cells[0]["rows"] == numbers(some)[0]["rows"]
    assert found.cells[1:] == plain.cells[1:]
    assert pq.read_schema(tmp_path / "plain").names == pq.read_schema(tmp_path / "more").names[: -len(store.MEASURED)]


@pytest.mark.parametrize("digits", sorted(set(store.DIGITS.values())))
def test_a_number_is_kept_to_so_many_binary_digits(digits):
    values = np.concatenate([np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-5, 5).repeat(100), [0.0]])
    kept = store.rounded(values, digits)
    np.testing.assert_allclose(kept, values, rtol=2.0 ** -(digits + 1))
    np.testing.assert_array_equal(store.rounded(kept, digits), kept)
    np.testing.assert_array_equal(store.rounded([np.inf, -np.inf, np.nan], digits), [np.inf, -np.inf, np.nan])
    assert (kept != values).mean() > 0.8, "digits are dropped"
    assert digits > store.SINGLE or (kept == kept.astype(np.float32)).all()


def test_tables_in_double_precision_are_read(tmp_path):
    """As tables once were, with a column more."""
    import pyarrow as pa

    saved(tmp_path / "x", cells())
    table = pq.read_table(tmp_path / "x")
    double = pa.schema(
        [(field.name, pa.float64() if field.name in store.NUMBERS else field.type) for field in table.schema]
    )
    old = table.cast(double.with_metadata(table.schema.metadata)).append_column("residual", table.column("nll"))
    pq.write_table(old, tmp_path / "old")
    assert store.load(tmp_path / "old") == store.load(tmp_path / "x")


def test_of_two_results_of_a_cell_the_later_counts(tmp_path):
    first, *others = cells()
    tables = [saved(tmp_path / "a", [first, *others]), saved(tmp_path / "b", [first | {"digest": "d" * 16}])]
    merged = store.merged(tables)
    assert [one["digest"][0] for one in merged.cells] == ["d", "a", "a"]
    assert merged.clients == CLIENTS


def test_results_of_different_experiments_are_not_merged(tmp_path):
    tables = [saved(tmp_path / "a", cells()), saved(tmp_path / "b", cells(), "heart")]
    with pytest.raises(InputError, match="results of different experiments, uci and heart: merge those of one"):
        store.merged(tables)


@pytest.mark.parametrize("contents", [b"", b"PAR1", b"not a table" * 50])
def test_a_file_that_is_no_table_is_refused(tmp_path, contents):
    (tmp_path / "x.parquet").write_bytes(contents)
    with pytest.raises(InputError, match=r"x\.parquet is no Parquet file"):
        store.load(tmp_path / "x.parquet")


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    import pyarrow as pa

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is no table of results"):
        store.load(tmp_path / "x.parquet")


def test_a_hundred_evaluations_of_fifty_cells_are_tens_of_kilobytes(tmp_path):
    rng = np.random.default_rng(0)
    some = [
        cell(f"run {k}", rng.random(100).tolist(), seed, error=rng.random(100)) | DIGESTS
        for k in range(10)
        for seed in range(5)
    ]
    saved(tmp_path / store.FILE, some)
    # two columns of random numbers, less than five bytes each, and hardly anything for the others
    assert (tmp_path / store.FILE).stat().st_size < 10 * 100 * 50
