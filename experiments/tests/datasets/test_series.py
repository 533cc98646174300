import numpy as np
import pytest

from partita.errors import InputError
from partita_experiments.datasets.series import Measurements, features
from support.slow_series import slow


def made_up(seed, stays=12, variables=4, number=600):
    """Hours on a grid, so that there are ties and measurements at the very ends of windows; stay 5 is without any."""
    rng = np.random.default_rng(seed)
    stay = rng.choice([s for s in range(stays) if s != 5], number)
    # The later variables are rarer: many series of one or two measurements, and absent ones.
    variable = rng.choice(variables, number, p=[0.7, 0.25, 0.04, 0.01])
    time = rng.integers(0, 20 * 3, number) / 3
    value = np.where(variable == 1, rng.integers(0, 2, number), rng.gamma(2, 40, number))
    return Measurements(stay, variable, time, value)


def single(time, value):
    zeros = np.zeros(len(time), dtype=int)
    return Measurements(zeros, zeros, np.array(time, dtype=float), np.array(value, dtype=float))


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_a_plain_implementation(seed):
    measurements = made_up(seed)
    x, _ = features(measurements, 12, ["HR", "MechVent", "pH", "TroponinI"])
    expected = slow(measurements, 12, 4)
    assert x.shape == (12, 4 * 42)
    assert np.isnan(x[5]).all()
    assert 0.1 < np.isnan(x).mean() < 0.6
    assert (x[:, 5::6] == 1).any()
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-9)


def test_the_order_of_the_measurements_does_not_matter():
    measurements = made_up(3)
    shuffled = np.random.default_rng(4).permutation(len(measurements.time))
    x, _ = features(measurements, 12, "abcd")
    y, _ = features(Measurements(*(entries[shuffled] for entries in measurements)), 12, "abcd")
    np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_names_are_ordered_as_the_benchmarks_columns():
    measurements = single([0, 1, 2, 8, 9.5, 10], [1, 2, 3, 4, 5, 7])
    x, names = features(measurements, 1, ["HR"])
    named = dict(zip(names, x[0], strict=True))
    assert len(named) == 42
    assert names[:7] == (
        *(f"HR · all · {s}" for s in ("min", "max", "mean", "sd", "skew", "count")),
        "HR · first 10% · min",
    )
    assert named["HR · first 10% · count"] == 2  # t = 0 and 1, at the very end of the window
    assert named["HR · last 10% · mean"] == 6
    assert named["HR · first 50% · max"] == 3
    assert named["HR · last 25% · min"] == 4
    assert [name for name in names if name.endswith("mean")][4] == "HR · last 10% · mean"


def test_windows_begin_with_the_variables_own_first_measurement():
    early, late = single([0, 1, 10], [5, 6, 7]), single([30, 31, 40], [5, 6, 7])
    np.testing.assert_array_equal(features(early, 1, ["HR"])[0], features(late, 1, ["HR"])[0])


def test_a_single_measurement_is_all_of_its_windows():
    x, _ = features(single([7], [36.6]), 1, ["Temp"])
    np.testing.assert_array_equal(x.reshape(7, 6), np.tile([36.6, 36.6, 36.6, 0, 0, 1], (7, 1)))


def test_equal_values_have_no_spread_at_all():
    """The sum of 0.1s divided by their number is not 0.1: a variance of 1e-34 would give an arbitrary skewness."""
    x, _ = features(single(range(49), [0.1] * 49), 1, ["FiO2"])
    np.testing.assert_array_equal(x.reshape(7, 6)[:, :5], np.tile([0.1, 0.1, 0.1, 0, 0], (7, 1)))


def test_a_large_offset_and_a_small_scale_cost_no_digits():
    value = np.random.default_rng(0).integers(0, 50, 40)
    plain = features(single(range(40), value), 1, ["x"])[0].reshape(7, 6)
    shifted = features(single(range(40), value + 1e12), 1, ["x"])[0].reshape(7, 6)
    tiny = features(single(range(40), value * 1e-150), 1, ["x"])[0].reshape(7, 6)
    np.testing.assert_allclose(shifted[:, 3:], plain[:, 3:], rtol=1e-12)
    np.testing.assert_allclose(tiny[:, 4], plain[:, 4], rtol=1e-12)
    np.testing.assert_allclose(tiny[:, 3], plain[:, 3] * 1e-150, rtol=1e-12)


def test_without_measurements_everything_is_missing():
    x, names = features(single([], []), 3, ["HR", "pH"])
    assert x.shape == (3, 84)
    assert len(names) == 84
    assert np.isnan(x).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stay": np.array([0, 2])}, "stay of a measurement is not a whole number below 2"),
        ({"variable": np.array([-1, 0])}, "variable of a measurement"),
        ({"variable": np.array([0.0, 0.0])}, "variable of a measurement"),
        ({"time": np.array([0.0, np.inf])}, "time of a measurement is not a finite number"),
        ({"value": np.array([np.nan, 0.0])}, "value of a measurement is not a finite number"),
        ({"value": np.array([0.0])}, "differ in length"),
    ],
)
def test_unusable_measurements_are_refused(change, message):
    measurements = single([0, 1], [2, 3])._replace(**change)
    with pytest.raises(InputError, match=message):
        features(measurements, 2, ["HR"])
