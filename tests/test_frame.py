"""A table before preprocessing."""

import numpy as np
import pytest

from partita import InputError
from partita.data.frame import Frame


def test_a_frame_keeps_its_columns_together():
    frame = Frame.build(
        {"a": np.array([1, 2, 3]), "b": np.array(["x", "y", "z"], dtype=object)}, [0, 1, 0], {"b": ["y", "x", "z"]}
    )
    some = frame.rows(np.array([2, 0]))
    assert (frame.size, some.size) == (3, 2)
    assert some.columns["a"].dtype == float
    np.testing.assert_array_equal(some.columns["a"], [3, 1])
    np.testing.assert_array_equal(some.columns["b"], ["z", "x"])
    np.testing.assert_array_equal(some.y, [0, 0])
    assert some.levels == {"b": ("y", "x", "z")}


@pytest.mark.parametrize(
    ("columns", "levels", "message"),
    [
        ({"a": np.zeros(2)}, {}, r"'a' has the shape \(2,\) beside 3 responses"),
        ({"a": np.zeros((3, 1))}, {}, r"'a' has the shape \(3, 1\)"),
        ({"a": np.array(["x", 2.0, None], dtype=object)}, {}, "'a' holds 2.0"),
        ({"a": np.zeros(3)}, {"a": ("0",)}, "Levels are declared for 'a'"),
        ({}, {"a": ("0",)}, "Levels are declared for 'a'"),
        ({"a": np.array(["x", "y", "z"])}, {"a": ("x", "x")}, "'a' repeat one"),
    ],
)
def test_a_frame_with_inconsistent_columns_is_refused(columns, levels, message):
    with pytest.raises(InputError, match=message):
        Frame.build(columns, np.zeros(3), levels)
