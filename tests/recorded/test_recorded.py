"""The numbers of short runs are those that were recorded, so that a change that should not alter them does not.

Here they agree within 1e-8, absolutely or of the largest entry of each array, since other processors round otherwise;
in single precision within 3e-4, which is as many of its digits: half. On the machine that recorded them,
`python tests/recorded/record.py --compare` asks for 1e-12. Where numbers are meant to change, record them again.
"""

import numpy as np
import pytest

from recorded.record import apart, differences, read, write
from recorded.runs import RUNS, mixture, positive_numbers, unknown_noise

RECORDED = read()
SLOW = (mixture, positive_numbers, unknown_noise)
"""Those that take longest to compile: three eighths of the time of all."""


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=run.__name__, marks=[pytest.mark.slow] * (run in SLOW)) for run in RUNS]
)
def test_runs_reproduce_their_recorded_numbers(run):
    recorded = RECORDED[run.__name__]
    tolerance = 3e-4 if any(array.dtype == np.float32 for array in recorded.values()) else 1e-8
    away = differences(run(), recorded)
    assert {name: pair for name, pair in away.items() if not min(pair) <= tolerance} == {}


def test_every_recorded_run_is_run():
    assert [*RECORDED] == [run.__name__ for run in RUNS]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([np.inf, np.nan, -4.0], (0.0, 0.0)),
        ([np.inf, np.nan, -4.5], (0.5, 0.125)),
        ([np.inf, 0.0, -4.0], (np.inf, np.inf)),
        ([-np.inf, np.nan, -4.0], (np.inf, np.inf)),
        ([np.inf, np.nan], (np.inf, np.inf)),
        (np.array([np.inf, np.nan, -4.0], np.float32), (np.inf, np.inf)),
    ],
)
def test_non_finite_values_equal_only_themselves(found, expected):
    assert apart(np.asarray(found), np.array([np.inf, np.nan, -4.0])) == expected


def test_an_array_missing_on_one_side_counts_as_different():
    away = differences({"a": np.zeros(2), "b": np.zeros(2)}, {"b": np.zeros(2), "c": np.zeros(0)})
    assert away == {"b": (0.0, 0.0), "c": (np.inf, np.inf), "a": (np.inf, np.inf)}


def test_arrays_survive_writing_and_reading(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(np.inf), "c": np.array([True, False])}
    write({"one": arrays, "two": {"a": np.arange(3)}}, tmp_path / "numbers.npz")
    found = read(tmp_path / "numbers.npz")
    assert not any(any(pair) for pair in differences(found["one"], arrays).values())
    assert found["two"]["a"].dtype == np.arange(3).dtype
