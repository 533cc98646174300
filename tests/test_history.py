"""What happened in a run, as a table."""

import numpy as np

from partita.results.history import History

ROWS = [
    {"step": 1, "clients": ["Ayr"], "refused": {}},
    {"step": 2, "clients": ["Ayr", "Bath"], "refused": {"Bath": "is not finite"}, "free_energy": -3.5},
    {"step": 3, "clients": ["Bath"], "refused": {"Ayr": "is late", "Bath": "is not finite"}},
]


def test_columns_come_in_the_order_of_their_first_appearance():
    assert History(ROWS).columns == ["step", "clients", "refused", "free_energy"]
    assert History().columns == []


def test_a_column_has_a_value_per_row_and_nan_where_a_row_has_none():
    history = History(ROWS)
    np.testing.assert_array_equal(history["step"], [1, 2, 3])
    np.testing.assert_array_equal(history["free_energy"], [np.nan, -3.5, np.nan])
    assert history["clients"].tolist() == [["Ayr"], ["Ayr", "Bath"], ["Bath"]]
    assert history["clients"].shape == history["refused"].shape == (3,)


def test_refusals_are_listed_with_step_client_and_reason():
    assert History(ROWS).refusals == [(2, "Bath", "is not finite"), (3, "Ayr", "is late"), (3, "Bath", "is not finite")]


def test_rows_are_copied_when_they_come_in():
    row = {"step": 1, "refused": {}}
    history = History([row])
    history.append(row)
    row["step"] = 7
    assert [kept["step"] for kept in history] == [1, 1]
    assert len(history) == 2
