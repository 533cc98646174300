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
    """The cells with their numbers as numbers; JSON has infinity as text."""
    return [
        one | {"rows": [{k: float(v) if k in store.NUMBERS else v for k, v in row.items()} for row in one["rows"]]}
        for one in some
    ]


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
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is no table of results"):
        store.load(tmp_path / "x.parquet")


def test_a_hundred_evaluations_of_many_runs_are_tens_of_kilobytes(tmp_path):
    rng = np.random.default_rng(0)
    some = [
        cell(f"run {k}", rng.random(100).tolist(), seed, error=rng.random(100)) | DIGESTS
        for k in range(10)
        for seed in range(5)
    ]
    saved(tmp_path / store.FILE, some)
    # two columns of random numbers, eight bytes each, and hardly anything for the others
    assert (tmp_path / store.FILE).stat().st_size < 1.5 * 2 * 8 * 100 * 50
